package machine_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/wasi"
)

var lockstep = machine.Config{Memory: 64 << 20, Deterministic: true, Rand: zeros{}}

// workAt boots a guest that works, and stops it after so many instructions.
func workAt(t testing.TB, instructions uint64) *worker {
	t.Helper()
	return workOfAt(t, platform.RISCV64, instructions)
}

func workOfAt(t testing.TB, architecture platform.Architecture, instructions uint64) *worker {
	t.Helper()
	w := bootWorkerOf(t, architecture, lockstep, "work=1")
	if w.Retired() > instructions {
		t.Fatalf("the guest had %d instructions when it was ready, the test wants to stop it at %d", w.Retired(), instructions)
	}
	w.advance(int64(instructions - w.Retired()))
	return w
}

// A restored machine does what its original does, instruction by instruction, however the image came into its memory,
// and both do what a machine does that was never captured. AGENTVM_TEST_MILLIONS=1000 looks at a billion instructions.
func TestRestoredMachineEqualsItsOriginal(t *testing.T) {
	t.Parallel()
	for _, architecture := range platform.Supported() {
		t.Run(string(architecture), func(t *testing.T) { restoredEqualsItsOriginal(t, architecture) })
	}
}

func restoredEqualsItsOriginal(t *testing.T, architecture platform.Architecture) {
	original, untouched := workOfAt(t, architecture, 60e6), workOfAt(t, architecture, 60e6)
	image := original.capture()
	mapped := original.restore(lockstep, image)
	copied := newWorker(t)
	cfg := lockstep
	cfg.Console = copied.console
	copied.attach(original.program.CopyImages().Restore(t.Context(), cfg, image))
	all := []*worker{untouched, original, mapped, copied}
	for millions := range lockstepMillions(t, architecture) {
		want := all[0].hash()
		for i, w := range all[1:] {
			if w.hash() != want {
				t.Fatalf("%s differs after %d million instructions", []string{"the original", "the mapped one", "the copied one"}[i], millions)
			}
		}
		for _, w := range all {
			w.advance(1e6)
		}
	}
}

func lockstepMillions(t *testing.T, architecture platform.Architecture) int {
	t.Helper()
	text := os.Getenv("AGENTVM_TEST_MILLIONS")
	if text == "" && architecture == platform.ARM64 {
		return 5 // the devices are the same
	}
	if text == "" {
		return 20
	}
	millions, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return millions
}

// Each image is made by a machine that comes from the image before; decoded code has to come along.
func TestCaptureOfCaptures(t *testing.T) {
	t.Parallel()
	untouched := workAt(t, 60e6)
	w := workAt(t, 60e6)
	for generation := range 12 {
		image := w.capture()
		if n := len(image.Extents()); n > 300 {
			t.Errorf("image %d has %d extents", generation, n)
		}
		if generation%3 == 0 { // the others continue by themselves
			w = restoreWorker(t, lockstep, image)
		}
		w.advance(3e6)
		untouched.advance(3e6)
		if w.hash() != untouched.hash() {
			t.Fatalf("generation %d differs from a machine that was never captured", generation)
		}
	}
}

func TestForksDivergeAlone(t *testing.T) {
	w := bootWorker(t, idleGuest, "")
	w.ask("write original")
	image := w.capture()
	before := contents(t, image)
	var forks []*worker
	for range 8 {
		forks = append(forks, restoreWorker(t, idleGuest, image))
	}
	for i, f := range forks {
		f.ask(fmt.Sprintf("write fork %d", i))
		f.ask("run")
	}
	for i, f := range forks {
		if got, want := f.ask("read"), fmt.Sprintf("fork %d <nil>", i); got != want {
			t.Errorf("fork %d reads %q, want %q", i, got, want)
		}
	}
	if got := w.ask("read"); got != "original <nil>" {
		t.Errorf("the original reads %q", got)
	}
	if contents(t, image) != before {
		t.Error("the image changed")
	}
	if got := restoreWorker(t, idleGuest, image).ask("read"); got != "original <nil>" {
		t.Errorf("another fork reads %q", got)
	}
}

// contents sums up an image.
func contents(t *testing.T, i *machine.MemoryImage) [32]byte {
	t.Helper()
	return sum(t, func(w io.Writer) error {
		for _, e := range i.Extents() {
			if _, err := fmt.Fprintln(w, e.At, e.Length); err != nil {
				return err
			}
			if _, err := io.Copy(w, io.NewSectionReader(e.File, e.Offset, e.Length)); err != nil {
				return err
			}
		}
		return nil
	})
}

// An image outlives the machines, and the machines the image.
func TestImageAndMachinesEndInAnyOrder(t *testing.T) {
	w := bootWorker(t, idleGuest, "")
	w.ask("write something")
	first := w.capture()
	w.ask("run")
	second := w.capture()
	w.close()
	a := restoreWorker(t, idleGuest, second)
	if err := errors.Join(first.Close(), second.Close(), second.Close()); err != nil {
		t.Fatal(err)
	}
	if m, err := testProgram(t).Restore(t.Context(), withConsole(idleGuest), second); err == nil {
		m.Close()
		t.Error("a closed image is restored")
	}
	third := a.capture()
	a.close()
	if got := restoreWorker(t, idleGuest, third).ask("read"); got != "something <nil>" {
		t.Errorf("the guest reads %q", got)
	}
}

// For the guest, no time passes between image and restored machine, nor while its clock is stopped.
func TestTimeStandsStill(t *testing.T) {
	const pause = 300 * time.Millisecond
	w := bootWorker(t, idleGuest, "")
	start, first := time.Now(), guestTime(t, w)
	image := w.capture()
	time.Sleep(pause)
	restored := restoreWorker(t, idleGuest, image)
	if second, limit := guestTime(t, restored), time.Since(start)-pause; second < first || second-first > limit {
		t.Errorf("restored: the guest's clock went from %v to %v, at most %v may have passed", first, second, limit)
	}

	start, first = time.Now(), guestTime(t, w)
	if err := w.StopClock(); err != nil {
		t.Fatal(err)
	}
	paused := w.capture()
	time.Sleep(pause)
	if err := w.StartClock(); err != nil {
		t.Fatal(err)
	}
	for name, w := range map[string]*worker{"paused": w, "restored from a paused one": restoreWorker(t, idleGuest, paused)} {
		if second, limit := guestTime(t, w), time.Since(start)-pause; second < first || second-first > limit {
			t.Errorf("%s: the guest's clock went from %v to %v, at most %v may have passed", name, first, second, limit)
		}
	}
}

func guestTime(t *testing.T, w *worker) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(w.ask("time") + "us")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestRestoreRefusesAnotherShape(t *testing.T) {
	m := newMachine(t, machine.Config{Memory: 32 << 20, Console: wasi.NewStream(1)})
	image, err := m.Capture(machine.ExtentsForMany)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	tests := []struct {
		name   string
		change func(*machine.Config)
		want   string
	}{
		{"smaller RAM", func(c *machine.Config) { c.Memory = 16 << 20 }, "RAM"},
		{"larger RAM", func(c *machine.Config) { c.Memory = 256 << 20 }, "RAM"},
		{"much smaller RAM", func(c *machine.Config) { c.Memory = 16 << 20 }, "of another shape"},
		{"no console", func(c *machine.Config) { c.Console = nil }, "a console: true, the configuration false"},
		{"a control port", func(c *machine.Config) { c.Control = wasi.NewStream(1) }, "a control port: false, the configuration true"},
		{"a network", func(c *machine.Config) { c.Network = wasi.NewStream(1) }, "a network: false, the configuration true"},
		{"a disk", func(c *machine.Config) { c.Disks = []machine.Disk{{File: wasi.NewStream(1), ReadOnly: true}} }, "disks [], the configuration [read-only]"},
		{"a share", func(c *machine.Config) { c.Shares = []machine.Share{{Tag: "home", File: wasi.NewStream(1)}} }, `shares [], the configuration ["home"]`},
		{"another clock", func(c *machine.Config) { c.Deterministic = true }, "clock"},
		{"machine mode", func(c *machine.Config) { c.MachineMode = true }, "machine mode"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := machine.Config{Memory: 32 << 20, Console: wasi.NewStream(1)}
			tt.change(&cfg)
			m, err := testProgram(t).Restore(t.Context(), cfg, image)
			if err == nil {
				m.Close()
			}
			if !errors.Is(err, machine.ErrShape) || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("Restore() = %v, want ErrShape with %q", err, tt.want)
			}
		})
	}
}

func TestNewImageRefuses(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(8192); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		size    int64
		extents []machine.Extent
	}{
		{"no memory", 0, nil},
		{"odd size", 4096, nil},
		{"more than there are addresses", 1 << 32, nil},
		{"no file", 1 << 20, []machine.Extent{{0, 4096, nil, 0}}},
		{"odd place", 1 << 20, []machine.Extent{{1, 4096, file, 0}}},
		{"odd length", 1 << 20, []machine.Extent{{0, 4095, file, 0}}},
		{"odd offset", 1 << 20, []machine.Extent{{0, 4096, file, 1}}},
		{"nothing", 1 << 20, []machine.Extent{{0, 0, file, 0}}},
		{"before the memory", 1 << 20, []machine.Extent{{-4096, 8192, file, 0}}},
		{"before the file", 1 << 20, []machine.Extent{{0, 4096, file, -4096}}},
		{"behind the memory", 1 << 20, []machine.Extent{{1 << 20, 4096, file, 0}}},
		{"half behind the memory", 1 << 20, []machine.Extent{{1<<20 - 4096, 8192, file, 0}}},
		{"behind the file", 1 << 20, []machine.Extent{{0, 4096, file, 8192}}},
		{"half behind the file", 1 << 20, []machine.Extent{{0, 8192, file, 4096}}},
		{"wrapping around", 1 << 20, []machine.Extent{{4096, 1<<63 - 4096, file, 4096}}},
		{"overlapping", 1 << 20, []machine.Extent{{4096, 4096, file, 0}, {0, 8192, file, 0}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if i, err := machine.NewImage(tt.size, tt.extents); err == nil {
				i.Close()
				t.Error("NewImage() succeeds")
			}
		})
	}
	i, err := machine.NewImage(1<<20, []machine.Extent{{8192, 4096, file, 4096}, {0, 4096, file, 0}})
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	if e := i.Extents(); len(e) != 2 || e[0].At != 0 || e[1].At != 8192 || e[0].File != file {
		t.Errorf("Extents() = %v", e)
	}
	if m, err := testProgram(t).Restore(t.Context(), machine.Config{}, i); !errors.Is(err, machine.ErrShape) {
		t.Errorf("Restore() = %v, %v, want ErrShape", m, err)
	}
}
