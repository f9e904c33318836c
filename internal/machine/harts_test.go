package machine_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/kernel"
)

var hartsInitramfs = sync.OnceValues(func() ([]byte, error) { return initramfsOf(platform.ARM64, "harts") })

// hartsProgram makes machines of several processors.
func hartsProgram(t *testing.T, translation machine.Translation) *machine.Program {
	t.Helper()
	p, err := machine.NewProgram(context.Background(), machine.ProgramConfig{Architecture: platform.ARM64, Harts: true, Translation: translation})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	return p
}

// TestHarts runs testdata/harts: litmus tests of the order in which processors see each other's stores, atomic operations, mappings and code that one
// changes and others use, and threads that wake each other; interpreted and translated.
func TestHarts(t *testing.T) {
	if testing.Short() {
		t.Skip("runs machines of several processors")
	}
	initramfs, err := hartsInitramfs()
	if err != nil {
		t.Fatal(err)
	}
	image, err := kernel.Image(platform.ARM64)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		harts       int
		translation machine.Translation
	}{{2, machine.TranslateNever}, {2, machine.TranslateHot}, {4, machine.TranslateHot}} {
		t.Run(fmt.Sprintf("%d harts, %d", c.harts, c.translation), func(t *testing.T) {
			out := newConsole()
			m, err := hartsProgram(t, c.translation).NewMachine(t.Context(), machine.Config{Memory: 256 << 20, Console: out.stream, Harts: c.harts})
			if err != nil {
				t.Fatal(err)
			}
			rounds := 1
			linux := machine.Linux{Kernel: image, Initramfs: initramfs, CommandLine: "console=hvc0 quiet panic=-1 rounds=" + strconv.Itoa(rounds)}
			if err := m.LoadLinux(linux); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			began := time.Now()
			exit, err := m.Run(ctx)
			stats := m.JITStats()
			if closing := m.Close(); closing != nil {
				t.Error(closing)
			}
			text := strings.ReplaceAll(out.wait(), "\r", "")
			if err != nil || exit.Reason != machine.PowerOff || !strings.Contains(text, "\ndone\n") {
				t.Errorf("the guest %v, %v\n%s", exit.Reason, err, text)
			}
			if !strings.Contains(text, fmt.Sprintf("processors: %d\n", c.harts)) {
				t.Errorf("not %d processors", c.harts)
			}
			for line := range strings.Lines(text) {
				if name, verdict, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && name != "processors" && verdict != "ok" {
					t.Error(line)
				}
			}
			t.Logf("%d million instructions in %v, %+v\n%s", m.Retired()/1e6, time.Since(began), stats, text)
		})
	}
}

// TestHartsRestored stops a machine of several processors again and again, at moments of no particular kind, and continues it in another one that is
// made of its image, trusted or not: testdata/harts finds nothing wrong.
func TestHartsRestored(t *testing.T) {
	if testing.Short() {
		t.Skip("runs machines of several processors")
	}
	initramfs, err := hartsInitramfs()
	if err != nil {
		t.Fatal(err)
	}
	image, err := kernel.Image(platform.ARM64)
	if err != nil {
		t.Fatal(err)
	}
	const harts = 2
	p := hartsProgram(t, machine.TranslateHot)
	out := newConsole()
	config := func() machine.Config { return machine.Config{Memory: 128 << 20, Console: out.stream, Harts: harts} }
	m, err := p.NewMachine(t.Context(), config())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.LoadLinux(machine.Linux{Kernel: image, Initramfs: initramfs, CommandLine: "console=hvc0 quiet panic=-1"}); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for turn := 0; ; turn++ {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(50+37*(turn%20))*time.Millisecond)
		if turn == 60 {
			ctx, cancel = context.WithTimeout(t.Context(), 5*time.Minute)
		}
		exit, err := m.Run(ctx)
		cancel()
		if err == nil {
			if exit.Reason != machine.PowerOff {
				t.Errorf("the guest %v", exit.Reason)
			}
			break
		}
		if ctx.Err() == nil || turn == 60 {
			t.Fatalf("turn %d: %v\n%s", turn, err, text.String()+out.wait())
		}
		saved, err := m.Capture(machine.ExtentsForMany)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		text.WriteString(out.wait())
		from := saved
		if turn%2 == 1 {
			if from, err = machine.NewImage(saved.Size(), saved.Extents()); err != nil {
				t.Fatal(err)
			}
		}
		out = newConsole()
		if m, err = p.Restore(t.Context(), config(), from); err != nil {
			t.Fatalf("turn %d: %v", turn, err)
		}
		if from != saved {
			err = from.Close()
		}
		if err := errors.Join(err, saved.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	all := strings.ReplaceAll(text.String()+out.wait(), "\r", "")
	for line := range strings.Lines(all) {
		if name, verdict, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && name != "processors" && verdict != "ok" {
			t.Error(line)
		}
	}
	if !strings.Contains(all, "done\n") {
		t.Errorf("it did not come to its end:\n%s", all)
	}
	t.Logf("%s", all)
}

// TestHartsThatAreOffRest: processors that the guest has not started, and those that have nothing to do, take no time.
func TestHartsThatAreOffRest(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a machine of several processors")
	}
	initramfs, err := hartsInitramfs()
	if err != nil {
		t.Fatal(err)
	}
	image, err := kernel.Image(platform.ARM64)
	if err != nil {
		t.Fatal(err)
	}
	out := newConsole()
	m, err := hartsProgram(t, machine.TranslateHot).NewMachine(t.Context(), machine.Config{Memory: 128 << 20, Console: out.stream, Harts: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.LoadLinux(machine.Linux{Kernel: image, Initramfs: initramfs, CommandLine: "console=hvc0 quiet panic=-1 maxcpus=2"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if exit, err := m.Run(ctx); err != nil || exit.Reason != machine.PowerOff {
		t.Fatal(exit, err)
	}
	const few = 50 // what wakes it, and each Run
	for number := 2; number < 4; number++ {
		if n := m.SlicesOf(number); n > few {
			t.Errorf("processor %d, which is off, had %d slices", number, n/2)
		}
	}
}
