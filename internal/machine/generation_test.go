package machine_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
)

// memoryInitramfs has testdata/memory as its only program.
var memoryInitramfs = sync.OnceValues(func() ([]byte, error) { return initramfsOf(platform.RISCV64, "memory") })

// bootMemory boots testdata/memory and runs it until it waits for questions.
func bootMemory(t testing.TB, cfg machine.Config) *worker {
	t.Helper()
	return bootGuest(t, cfg, memoryInitramfs, "")
}

func askMemory(w *worker, question string) string {
	w.Helper()
	return askWatching(w, question, func() {})
}

// askWatching asks, and watches the guest every now and then until it answers: minutes later on a busy computer.
func askWatching(w *worker, question string, watch func()) string {
	w.Helper()
	if _, err := io.WriteString(w.console.Host(), question+"\n"); err != nil {
		w.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
		w.runFor(20 * time.Millisecond)
		watch()
		select {
		case line := <-w.lines:
			if answer, found := strings.CutPrefix(line, "= "); found {
				return answer
			}
		default:
		}
	}
	w.Fatalf("the guest does not answer %q", question)
	return ""
}

func (w *worker) runFor(d time.Duration) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), d)
	defer cancel()
	if exit, err := w.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
		w.Fatalf("the guest stopped: %v, %v", exit, err)
	}
}

// Machines from one image have random numbers of their own from their first instruction on, without help from inside the
// guest: everything else about them is the same here, the entropy device included.
func TestGenerationReseedsTheGuest(t *testing.T) {
	cfg := machine.Config{Memory: 64 << 20, Deterministic: true, Rand: zeros{}, Generation: [16]byte{1}}
	original := bootMemory(t, cfg)
	askMemory(original, "random") // the kernel's generator is ready and in use
	saved := original.capture()

	numbers := make(map[string]string)
	restore := func(name string, generation byte) *worker {
		cfg.Generation[15] = generation
		w := restoreWorker(t, cfg, saved)
		numbers[name] = askMemory(w, "random")
		return w
	}
	restore("first", 2)
	same := restore("of the same generation", 2)
	if numbers["first"] != numbers["of the same generation"] {
		t.Fatal("two machines that differ in nothing have different random numbers: the test shows nothing")
	}
	unchanged := restore("of the image's own generation", 0)
	restore("second", 3)
	numbers["original"] = askMemory(original, "random")
	if numbers["original"] != numbers["of the image's own generation"] {
		t.Error("a machine restored as it was has other random numbers than its original")
	}
	delete(numbers, "of the same generation")
	delete(numbers, "of the image's own generation")
	seen := make(map[string]string)
	for name, number := range numbers {
		if other, twice := seen[number]; twice || len(number) != 64 {
			t.Errorf("random numbers of the machines %q and %q: both %s", name, other, number)
		}
		seen[number] = name
	}
	if got := askMemory(same, "reseeds"); got != "1" {
		t.Errorf("the kernel says %q times that it has reseeded, want once", got)
	}
	if got := askMemory(unchanged, "reseeds"); got != "0" {
		t.Errorf("the kernel says %q times that it has reseeded without reason", got)
	}

	again := restoreGeneration(t, cfg, same.capture(), 4)
	if got := askMemory(again, "reseeds"); got != "2" {
		t.Errorf("after a second restore the kernel says %q times that it has reseeded, want twice", got)
	}
}

func restoreGeneration(t testing.TB, cfg machine.Config, i *machine.MemoryImage, generation byte) *worker {
	t.Helper()
	cfg.Generation[15] = generation
	return restoreWorker(t, cfg, i)
}
