package machine_test

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentvm/internal/machine"
)

func mustRAM(t *testing.T, m *machine.Machine) []byte {
	t.Helper()
	ram, err := m.RAM()
	if err != nil {
		t.Fatal(err)
	}
	return ram
}

// resident counts the bytes of memory that take memory of the host.
func resident(t *testing.T, memory []byte) int {
	t.Helper()
	pages := make([]byte, len(memory)/4096)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&memory[0])), uintptr(len(memory)),
		uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	return bytes.Count(pages, []byte{1}) * 4096
}

// A process that has used most of the memory costs the host nothing after its end.
func TestFreeMemoryGoesBack(t *testing.T) {
	t.Parallel()
	const used = 300 << 20
	w := bootMemory(t, machine.Config{Memory: 512 << 20})
	askMemory(w, "fork")
	ram := mustRAM(t, w.Machine)
	before := resident(t, ram)

	peak := 0
	answer := askWatching(w, "fill 300", func() { peak = max(peak, resident(t, ram)) })
	ended := time.Now()
	if answer != "done" || peak < used {
		t.Fatalf("the guest says %q, and at most %d MiB were in use: the test shows nothing", answer, peak>>20)
	}
	after := resident(t, ram)
	for after > before*3/2 && time.Since(ended) < 5*time.Minute {
		w.runFor(200 * time.Millisecond)
		after = resident(t, ram)
	}
	t.Logf("RAM that takes memory: %d MiB, %d MiB %v after a process that used %d MiB",
		before>>20, after>>20, time.Since(ended).Round(time.Second/10), used>>20)
	if after > before*3/2 {
		t.Errorf("%d MiB of the RAM take memory, %d MiB did before", after>>20, before>>20)
	}
	if got := askMemory(w, "fill 100"); got != "done" {
		t.Errorf("the guest cannot use the memory again: %s", got)
	}
}

func TestReleasedPages(t *testing.T) {
	const size = 16 << 20
	m := newMachine(t, machine.Config{Memory: size})
	ram, start := mustRAM(t, m), m.RAMAddress()
	tests := []struct {
		name   string
		ranges [][2]uint32
		want   func(offset int) bool // is dropped
		fails  bool
	}{
		{"none", nil, func(int) bool { return false }, false},
		{"the first page", [][2]uint32{{start, 4096}}, func(o int) bool { return o < 4096 }, false},
		{"all", [][2]uint32{{start, size}}, func(int) bool { return true }, false},
		{"two", [][2]uint32{{start + 8192, 4096}, {start + size - 4096, 4096}},
			func(o int) bool { return o >= 8192 && o < 12288 || o >= size-4096 }, false},
		{"parts of pages", [][2]uint32{{start + 1, 8190}}, func(int) bool { return false }, false},
		{"a page and parts", [][2]uint32{{start + 1, 8191}}, func(o int) bool { return o >= 4096 && o < 8192 }, false},
		{"before the RAM", [][2]uint32{{start - 4096, 8192}}, func(int) bool { return false }, true},
		{"the module's own data", [][2]uint32{{0x10000, 4096}}, func(int) bool { return false }, true},
		{"across the end", [][2]uint32{{start + size - 4096, 8192}}, func(int) bool { return false }, true},
		{"behind the RAM", [][2]uint32{{start + size, 4096}}, func(int) bool { return false }, true},
		{"wrapping around", [][2]uint32{{start, math.MaxUint32}}, func(int) bool { return false }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for i := range ram {
				ram[i] = 1
			}
			left, err := m.ReleasePages(uint32(len(tt.ranges)), tt.ranges...)
			if (err != nil) != tt.fails {
				t.Errorf("releasePages() = %v, want an error: %t", err, tt.fails)
			}
			if err == nil && left != 0 {
				t.Errorf("%d ranges are still to be released", left)
			}
			for offset, b := range ram {
				if (b == 0) != tt.want(offset) {
					t.Fatalf("the byte at %#x is %d", offset, b)
				}
			}
		})
	}
	full := slices.Repeat([][2]uint32{{start, 4096}}, 512)
	if _, err := m.ReleasePages(math.MaxUint32, full...); err != nil {
		t.Errorf("a count that is too large: %v", err)
	}
}

// A guest that gives pages back in the slice in which it powers itself off is off.
func TestReleaseKeepsTheEnd(t *testing.T) {
	m := newMachine(t, machine.Config{Memory: 16 << 20})
	for reason, want := range map[machine.Reason]machine.Reason{
		machine.PowerOff: machine.PowerOff, machine.Reboot: machine.Reboot, machine.Failure: machine.Failure,
		machine.ReasonIdle: machine.ReasonBudget, machine.ReasonBudget: machine.ReasonBudget,
	} {
		if got, err := m.ReleaseAt(reason); got != want || err != nil {
			t.Errorf("after a slice that %v: %v, %v, want %v", reason, got, err, want)
		}
	}
}
