package vm_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentvm/internal/machine"
	"agentvm/vm"
)

func TestPace(t *testing.T) {
	type look struct {
		slice, call uint64
		work        time.Duration // of the process until then
		want        time.Duration
	}
	const half = 500 * time.Millisecond
	tests := []struct {
		name  string
		looks []look
	}{
		{"slices that end", []look{{1, 0, 0, 0}, {3, 0, half, 0}, {5, 0, 2 * half, 0}, {7, 0, 3 * half, 0}, {9, 0, 4 * half, 0}}},
		{"idle", []look{{2, 0, 0, 0}, {2, 0, 0, 0}, {2, 0, 0, 0}, {2, 0, 0, 0}, {2, 0, 0, 0}}},
		{"idle, while others of the process compute", []look{{2, 0, 0, 0}, {2, 0, 4 * half, 0}, {2, 0, 8 * half, 0}, {2, 0, 12 * half, 0}}},
		{"one that does not end", []look{{1, 0, 0, 0}, {1, 0, half, half}, {1, 0, 2 * half, 2 * half}, {1, 0, 3 * half, 3 * half}, {1, 0, 4 * half, 4 * half}, {1, 0, 5 * half, 5 * half}}},
		{"one that ends late", []look{{1, 0, 0, 0}, {1, 0, half, half}, {3, 0, 2 * half, 0}, {3, 0, 3 * half, half}}},
		{"one that waits for a slow disk", []look{{1, 1, 0, 0}, {1, 1, half, 0}, {1, 1, 2 * half, 0}, {1, 1, 3 * half, 0}, {1, 1, 4 * half, 0}, {1, 1, 5 * half, 0}, {2, 2, 5 * half, 0}}},
		{"one of calls without end", []look{{1, 1, 0, 0}, {1, 3, half, half}, {1, 5, 2 * half, 2 * half}, {1, 7, 3 * half, 3 * half}, {1, 9, 4 * half, 4 * half}}},
		{"one that gets no processor", []look{{1, 0, 0, 0}, {1, 0, 0, half}, {1, 0, 0, 2 * half}, {1, 0, 1, 3 * half}, {1, 0, 2, 3 * half}, {1, 0, 3, 3 * half}, {1, 0, 4 * half, 4 * half}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var p vm.Pace
			for i, l := range test.looks {
				if got := p.Look(l.slice, l.call, l.work); got != l.want {
					t.Errorf("look %d: lasts %v, want %v", i, got, l.want)
				}
			}
		})
	}
}

// An idle machine is not looked at, except until the end of a slice that was late has been reported.
func TestIdleMachineIsNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // of the three
		var now machine.Progress
		var looks int
		var reports []time.Duration
		locked := func(do func()) { mu.Lock(); defer mu.Unlock(); do() }
		progress := func() (p machine.Progress) { locked(func() { looks++; p = now }); return p }
		report := func(lasts time.Duration) { locked(func() { reports = append(reports, lasts) }) }
		vm.WatchSlices(progress, report, func(setBusy func(bool)) {
			pass := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
			for range 1000 { // a guest that waits often
				locked(func() { now.Slice += 2 })
				setBusy(false)
				pass(time.Second)
				setBusy(true)
				pass(100 * time.Millisecond)
			}
			locked(func() {
				if looks != 0 {
					t.Errorf("%d looks at a machine that computes for a tenth of a second at a time", looks)
				}
				now.Slice++
			})
			pass(1600 * time.Millisecond)
			locked(func() { now.Slice++ })
			setBusy(false)
			pass(time.Hour)
			locked(func() {
				if want := []time.Duration{time.Second / 2, time.Second, 0}; !slices.Equal(reports, want) || looks != 4 {
					t.Errorf("reports %v after %d looks, want %v", reports, looks, want)
				}
			})
			setBusy(true)
		})
		time.Sleep(time.Hour)
		locked(func() {
			if looks != 4 {
				t.Error("looks after the end")
			}
		})
	})
}

// A slice that does not end lets no call wait: commands, Stop, Close and Wait return with an error that says so. The machine is the
// real one, except that after some time its run never returns. So the test has a process of its own, which ends with it.
func TestOverrun(t *testing.T) {
	if os.Getenv("AGENTVM_TEST_OVERRUN") == "" {
		again := exec.CommandContext(limited(t), os.Args[0], "-test.run=^TestOverrun$", "-test.v")
		// A garbage collection would wait for the slice, and everything else for that.
		again.Env = append(os.Environ(), "AGENTVM_TEST_OVERRUN=1", "AGENTVM_STORE="+kit.store.Dir(), "GOGC=off", "GOMAXPROCS=4")
		if out, err := again.CombinedOutput(); !strings.Contains(string(out), "all is as it should be\n") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	c := config(t)
	c.ColdBoot = true
	vm.UseModule(t, c.StoreDir, overrunning(t, 3000))
	var lasted atomic.Int64
	c.Overrun = func(d time.Duration) { lasted.Store(int64(d)) }
	v, err := vm.Start(limited(t), c)
	if err == nil {
		_, err = v.Exec(limited(t), "while :; do :; done")
	}
	var overran *vm.OverrunError
	if !errors.As(err, &overran) || overran.Lasts < vm.OverrunTime {
		t.Errorf("a command, or the boot: %v", err)
	}
	if got := time.Duration(lasted.Load()); got < vm.OverrunTime {
		t.Errorf("Config.Overrun got %v", got)
	}
	if v != nil {
		for what, do := range map[string]func() error{
			"Stop":  func() error { return v.Stop(limited(t)) },
			"Close": v.Close,
			"Wait":  func() error { return v.Wait(limited(t)) },
			"Run":   func() error { _, err := v.Exec(limited(t), "true"); return err },
			"Pause": func() error { return v.Pause(limited(t)) },
		} {
			var ended *vm.GuestError
			if err := do(); !errors.As(err, &ended) || ended.Reason != vm.Overran {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	if !t.Failed() {
		os.Stdout.WriteString("all is as it should be\n")
	}
	os.Exit(0) // nothing else ends the machine
}

// overrunning is the machine's module with a run that never returns from its call number `calls` on.
func overrunning(t *testing.T, calls int64) []byte {
	t.Helper()
	module, err := os.ReadFile("../internal/machine/machine.wasm")
	if err != nil {
		t.Fatal(err)
	}
	const (
		importSection   = 2
		functionSection = 3
		globalSection   = 6
		exportSection   = 7
		codeSection     = 10
	)
	sections, order := map[byte][]byte{}, []byte{}
	for rest := module[8:]; len(rest) > 0; {
		id, size := rest[0], uint64(0)
		size, rest = leb(rest[1:])
		sections[id] = append(sections[id], rest[:size]...)
		if order = append(order, id); id == 0 {
			t.Fatal("the module has sections by name, which would be moved")
		}
		rest = rest[size:]
	}
	count := func(id byte) (n uint64, rest []byte) { return leb(sections[id]) }
	imports, rest := count(importSection)
	for range imports { // module, name, kind 0, type
		for range 2 {
			n, r := leb(rest)
			rest = r[n:]
		}
		if rest[0] != 0 {
			t.Fatal("the module imports something that is no function")
		}
		_, rest = leb(rest[1:])
	}
	functions, types := count(functionSection)
	globals, globalsRest := count(globalSection)
	exports, exportsRest := count(exportSection)
	bodies, bodiesRest := count(codeSection)

	added := imports + functions
	run, list := added, binary.AppendUvarint(nil, exports)
	for range exports {
		n, r := leb(exportsRest)
		name, kind := r[:n], r[n]
		index, after := leb(r[n+1:])
		if string(name) == "run" {
			run, index = index, added
		}
		list = append(append(append(binary.AppendUvarint(list, n), name...), kind), binary.AppendUvarint(nil, index)...)
		exportsRest = after
	}
	sections[exportSection] = list
	kind := uint64(0)
	for range run - imports + 1 {
		kind, types = leb(types)
	}
	_, types = count(functionSection)
	if run == added {
		t.Fatal("the module exports no run")
	}
	global := binary.AppendUvarint(nil, globals)
	body := bytes.Join([][]byte{
		{0, 0x23}, global, {0x42, 1, 0x7d, 0x24}, global, // no locals; global = global - 1
		{0x23}, global, {0x50, 0x04, 0x40, 0x03, 0x40, 0x0c, 0, 0x0b, 0x0b}, // if it is 0: loop for ever
		{0x20, 0, 0x20, 1, 0x10}, binary.AppendUvarint(nil, run), {0x0b}, // run(its arguments)
	}, nil)
	begin := append(append([]byte{0x7e, 1, 0x42}, signedLEB(calls)...), 0x0b) // i64, mutable
	for id, parts := range map[byte][][]byte{
		functionSection: {binary.AppendUvarint(nil, functions+1), types, binary.AppendUvarint(nil, kind)},
		globalSection:   {binary.AppendUvarint(nil, globals+1), globalsRest, begin},
		codeSection:     {binary.AppendUvarint(nil, bodies+1), bodiesRest, binary.AppendUvarint(nil, uint64(len(body))), body},
	} {
		sections[id] = bytes.Join(parts, nil)
	}
	made := module[:8:8]
	for _, id := range order {
		made = append(binary.AppendUvarint(append(made, id), uint64(len(sections[id]))), sections[id]...)
	}
	return made
}

// leb reads an unsigned number of WebAssembly.
func leb(b []byte) (uint64, []byte) {
	n, size := binary.Uvarint(b)
	return n, b[size:]
}

// signedLEB writes a signed one.
func signedLEB(n int64) (b []byte) {
	for {
		low := byte(n & 0x7f)
		n >>= 7
		if n == 0 && low&0x40 == 0 || n == -1 && low&0x40 != 0 {
			return append(b, low)
		}
		b = append(b, low|0x80)
	}
}
