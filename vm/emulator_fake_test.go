package vm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentvm/images"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/machine"
	"agentvm/wasi"
)

// fakeMachine is an emulator without a computer: a supervisor in Go at the other end of the control stream. Its memory is one page, which
// has a number that commands count up. It reads and writes only while Run runs, as a guest does.
type fakeMachine struct {
	t       testing.TB
	devices machine.Config
	rigid   bool // it cannot be captured

	commands, slices atomic.Int64
	clock            atomic.Int64                      // -1 while it is stopped
	ended            chan func() (machine.Exit, error) // what Run returns next
	closed           chan struct{}
	ready            chan struct{} // has a token when the control stream has become ready
	served           sync.WaitGroup
	running          sync.RWMutex         // locked while Run does not run
	started          guestrpc.StartParams // of the last start
}

var _, _ emulator = (*fakeMachine)(nil), (*machine.Machine)(nil)

// fakeKind makes fake machines, which it also sends on the channel.
func fakeKind(t testing.TB, rigid bool) (*emulatorKind, <-chan *fakeMachine) {
	machines := make(chan *fakeMachine, 10)
	return &emulatorKind{digest: "fake", start: func(_ context.Context, devices machine.Config, linux machine.Linux, memory *machine.MemoryImage) (emulator, error) {
		m := &fakeMachine{t: t, devices: devices, rigid: rigid, ended: make(chan func() (machine.Exit, error), 1), closed: make(chan struct{}), ready: make(chan struct{}, 1)}
		if memory == nil {
			if !strings.HasPrefix(linux.CommandLine, "console=hvc0") || len(linux.Kernel) == 0 || len(linux.Initramfs) == 0 {
				t.Errorf("it boots %d bytes of kernel and %d of initramfs with %q", len(linux.Kernel), len(linux.Initramfs), linux.CommandLine)
			}
		} else {
			var page [8]byte
			e := memory.Extents()[0]
			if _, err := e.File.ReadAt(page[:], e.Offset); err != nil {
				return nil, err
			}
			m.commands.Store(int64(binary.LittleEndian.Uint64(page[:])))
		}
		m.running.Lock()
		control := devices.Control.(*wasi.Stream)
		control.Attach(func() {
			select {
			case m.ready <- struct{}{}:
			default:
			}
		})
		m.served.Go(func() { _ = guestrpc.Serve(context.Background(), fakeControl{m, control}, fakeSupervisor{m: m}, nil) })
		_, _ = devices.Console.(*wasi.Stream).Write([]byte("fake console\n"))
		machines <- m
		return m, nil
	}}, machines
}

func (m *fakeMachine) Run(ctx context.Context) (machine.Exit, error) {
	m.running.Unlock()
	defer m.running.Lock()
	select {
	case <-ctx.Done():
		return machine.Exit{}, ctx.Err()
	case end := <-m.ended:
		return end()
	}
}

func (m *fakeMachine) StopClock() error  { m.clock.Add(-1); return nil }
func (m *fakeMachine) StartClock() error { m.clock.Add(1); return nil }

func (m *fakeMachine) Capture(int) (*machine.MemoryImage, error) {
	if m.rigid {
		return nil, errors.ErrUnsupported
	}
	file, err := os.Create(filepath.Join(m.t.TempDir(), "memory"))
	if err != nil {
		return nil, err
	}
	m.t.Cleanup(func() { _ = file.Close() })
	page := binary.LittleEndian.AppendUint64(nil, uint64(m.commands.Load()))
	if _, err := file.Write(append(page, make([]byte, 4096-len(page))...)); err != nil {
		return nil, err
	}
	return machine.NewTrustedImage(1<<16, []machine.Extent{{Length: 4096, File: file}})
}

func (m *fakeMachine) Written() ([]machine.Range, error) { return nil, nil }

func (m *fakeMachine) Progress() machine.Progress {
	return machine.Progress{Slice: uint64(m.slices.Load()), Retired: uint64(m.commands.Load())}
}

func (m *fakeMachine) Close() error {
	close(m.closed)
	files := []wasi.File{m.devices.Console, m.devices.Control, m.devices.Bulk, m.devices.Network}
	for _, d := range m.devices.Disks {
		files = append(files, d.File)
	}
	for _, s := range m.devices.Shares {
		files = append(files, s.File)
	}
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
	m.served.Wait()
	return nil
}

// fakeControl is the guest's end of the control stream.
type fakeControl struct {
	m *fakeMachine
	*wasi.Stream
}

func (p fakeControl) Read(b []byte) (int, error) {
	for {
		n, errno, gone := p.try(p.Stream.Read, b)
		switch {
		case gone, errno == wasi.ErrnoSuccess && n == 0:
			return 0, io.EOF
		case errno == wasi.ErrnoSuccess:
			return n, nil
		}
		select {
		case <-p.m.ready:
		case <-p.m.closed:
		}
	}
}

func (p fakeControl) Write(b []byte) (written int, err error) {
	for written < len(b) {
		n, errno, gone := p.try(p.Stream.Write, b[written:])
		if gone || errno != wasi.ErrnoSuccess && errno != wasi.ErrnoAgain {
			return written, io.ErrClosedPipe
		}
		if written += n; n == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	return written, nil
}

// try reads or writes while Run runs.
func (p fakeControl) try(do func([]byte) (int, wasi.Errno), b []byte) (n int, errno wasi.Errno, gone bool) {
	for !p.m.running.TryRLock() {
		select {
		case <-p.m.closed:
			return 0, wasi.ErrnoSuccess, true
		case <-time.After(time.Millisecond):
		}
	}
	defer p.m.running.RUnlock()
	n, errno = do(b)
	return n, errno, false
}

func (p fakeControl) Close() error { return nil }

// fakeSupervisor answers each command with its number, and with code 3.
type fakeSupervisor struct {
	guestrpc.Handler // nil: the rest is not called
	m                *fakeMachine
}

func (g fakeSupervisor) Start(p guestrpc.StartParams, _ func(slog.Level, string)) (guestrpc.GuestInfo, error) {
	g.m.started = p
	return guestrpc.GuestInfo{Release: "fake", Boot: time.Second}, nil
}

func (g fakeSupervisor) Exec(_ context.Context, r guestrpc.Request) (guestrpc.Program, guestrpc.Delivery, error) {
	text := fmt.Sprintf("%d: %s\n", g.m.commands.Add(1), r.Args[len(r.Args)-1])
	return nil, guestrpc.Delivery{Stdout: []byte(text), Exit: &guestrpc.ExitStatus{Code: 3}}, nil
}

func (g fakeSupervisor) SetClock(time.Time) error { return nil }

func (g fakeSupervisor) WriteBack() error { return nil }

func (g fakeSupervisor) Shutdown() error {
	g.m.ended <- func() (machine.Exit, error) { return machine.Exit{Reason: machine.PowerOff}, nil }
	<-g.m.closed
	return nil
}

// startFake starts a VM on a fake machine. It ends with the test.
func startFake(t *testing.T, change func(*Config)) (*VM, *fakeMachine, <-chan *fakeMachine) {
	t.Helper()
	kind, machines := fakeKind(t, false)
	c := Config{Image: images.BuiltinName, StoreDir: t.TempDir(), Kernel: []byte("no kernel"), emulator: kind}
	if change != nil {
		change(&c)
	}
	v, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.Close() })
	return v, <-machines, machines
}

func wantAnswer(t *testing.T, v *VM, line, want string) {
	t.Helper()
	r, err := v.Exec(t.Context(), line)
	if err != nil || string(r.Stdout) != want || r.ExitCode != 3 {
		t.Errorf("%s: %q, code %d, %v, want %q", line, r.Stdout, r.ExitCode, err, want)
	}
}

func TestFakeRunsAndStops(t *testing.T) {
	v, m, _ := startFake(t, func(c *Config) { c.Hostname = "fake" })
	wantAnswer(t, v, "true", "1: true\n")
	if m.started.Hostname != "fake" || v.KernelRelease() != "fake" || v.Instructions() != 1 {
		t.Errorf("hostname %q, kernel %q, %d instructions", m.started.Hostname, v.KernelRelease(), v.Instructions())
	}
	if err := v.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := v.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := v.Exec(t.Context(), "true"); !errors.Is(err, ErrStopped) {
		t.Errorf("after Stop: %v", err)
	}
}

func TestFakePauses(t *testing.T) {
	v, m, _ := startFake(t, nil)
	if err := v.Pause(t.Context()); err != nil || !v.Paused() || m.clock.Load() != -1 {
		t.Fatalf("%v, paused %v, clock %d", err, v.Paused(), m.clock.Load())
	}
	limited, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := v.Exec(limited, "true"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while paused: %v", err)
	}
	if err := v.Resume(t.Context()); err != nil || v.Paused() || m.clock.Load() != 0 {
		t.Fatalf("%v, paused %v, clock %d", err, v.Paused(), m.clock.Load())
	}
	wantAnswer(t, v, "true", "1: true\n")
	if err := errors.Join(v.Pause(t.Context()), v.Stop(t.Context())); err != nil {
		t.Errorf("stop a paused VM: %v", err)
	}
}

func TestFakeEndsByItself(t *testing.T) {
	for _, test := range []struct {
		exit machine.Exit
		err  error
		want Reason
	}{
		{machine.Exit{}, errors.New("unreachable instruction"), Broken},
		{machine.Exit{Reason: machine.PowerOff}, nil, PoweredOff},
		{machine.Exit{Reason: machine.Failure, Code: 7}, nil, Failed},
	} {
		t.Run(string(test.want), func(t *testing.T) {
			v, m, _ := startFake(t, nil)
			m.ended <- func() (machine.Exit, error) { return test.exit, test.err }
			var ended *GuestError
			if err := v.Wait(t.Context()); !errors.As(err, &ended) || ended.Reason != test.want || string(ended.Console) != "fake console\n" {
				t.Errorf("%v", err)
			}
			if test.err != nil && !errors.Is(ended, test.err) {
				t.Errorf("%v does not wrap %v", ended, test.err)
			}
			<-m.closed
			if _, err := v.Exec(t.Context(), "true"); !errors.As(err, &ended) || ended.Reason != test.want {
				t.Errorf("a command: %v", err)
			}
		})
	}
}

// A slice that does not end for OverrunTime ends all calls; when it ends after all, everything of the VM is freed.
func TestFakeOverruns(t *testing.T) {
	var lasted atomic.Int64
	v, m, _ := startFake(t, func(c *Config) {
		c.Overrun = func(d time.Duration) {
			if d >= OverrunTime { // the first that is; a later look finds more
				lasted.CompareAndSwap(0, int64(d))
			}
		}
	})
	var released atomic.Bool
	m.ended <- func() (machine.Exit, error) {
		m.slices.Add(1)
		defer m.slices.Add(1)
		for !released.Load() {
			runtime.Gosched() // not sleeping: it would count as waiting for a processor
		}
		return machine.Exit{}, context.Canceled
	}
	var overran *OverrunError
	if err := v.Wait(t.Context()); !errors.As(err, &overran) || overran.Lasts != OverrunTime || time.Duration(lasted.Load()) != OverrunTime {
		t.Errorf("%v, reported %v", err, time.Duration(lasted.Load()))
	}
	var ended *GuestError
	if err := v.Pause(t.Context()); !errors.As(err, &ended) || ended.Reason != Overran {
		t.Errorf("Pause: %v", err)
	}
	released.Store(true)
	select {
	case <-v.Done():
	case <-time.After(time.Minute):
		t.Error("the VM is not freed")
	}
}

// A fork and a snapshot continue from the fake's memory, which has the number of commands.
func TestFakeForksAndRestores(t *testing.T) {
	v, _, machines := startFake(t, nil)
	wantAnswer(t, v, "true", "1: true\n")
	forks, err := v.Fork(t.Context(), 1, ForkOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer forks[0].Close()
	wantAnswer(t, forks[0], "in the fork", "2: in the fork\n")
	wantAnswer(t, v, "in the VM", "2: in the VM\n")
	if r := (<-machines).started.Restored; r == nil || !r.NewIdentity || r.Generation != 1 || len(r.Entropy) == 0 {
		t.Errorf("the fork was started with %+v", r)
	}
	path := filepath.Join(t.TempDir(), "fake.snap")
	if _, err := v.Snapshot(t.Context(), path, SnapshotOptions{}); err != nil {
		t.Fatal(err)
	}
	c := v.config
	c.Kernel = nil
	restored, err := Restore(t.Context(), path, c, RestoreOptions{SameIdentity: true})
	if err != nil {
		t.Fatal(err)
	}
	defer restored.Close()
	wantAnswer(t, restored, "restored", "3: restored\n")
	c.emulator = nil
	if _, err := Restore(t.Context(), path, c, RestoreOptions{}); err == nil || !strings.Contains(err.Error(), "snapshot of another version: its memory is of") {
		t.Errorf("another emulator restores it: %v", err)
	}
}

// The second VM of a kind continues from a base.
func TestFakeStartsFromBase(t *testing.T) {
	first, _, _ := startFake(t, func(c *Config) { c.Kernel = nil })
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	second, m, _ := startFake(t, func(c *Config) { c.Kernel, c.StoreDir = nil, first.config.StoreDir })
	if !FromBase(second) || m.started.Restored == nil {
		t.Errorf("from a base %t, restored %v", FromBase(second), m.started.Restored)
	}
	wantAnswer(t, second, "true", fmt.Sprintf("%d: true\n", warmupRuns+1))
}

// A machine that cannot be captured runs; there is only no base, fork or snapshot of it.
func TestFakeThatCannotBeCaptured(t *testing.T) {
	kind, _ := fakeKind(t, true)
	store := t.TempDir()
	for range 2 { // the second would continue from the first one's base
		v, err := Start(t.Context(), Config{Image: images.BuiltinName, StoreDir: store, emulator: kind})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = v.Close() })
		wantAnswer(t, v, "true", fmt.Sprintf("%d: true\n", warmupRuns+1))
		if forks, err := v.Fork(t.Context(), 1, ForkOptions{}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Fork: %v, %v", forks, err)
		}
		if _, err := v.Snapshot(t.Context(), filepath.Join(t.TempDir(), "x.snap"), SnapshotOptions{}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Snapshot: %v", err)
		}
		if FromBase(v) {
			t.Error("there is a base")
		}
	}
}

// The seam stays small, or it becomes the whole machine.
func TestEmulatorHasSevenMethods(t *testing.T) {
	if n := reflect.TypeFor[emulator]().NumMethod(); n > 7 {
		t.Errorf("an emulator needs %d methods", n)
	}
}
