package machine_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"agentvm/internal/machine"
)

// moment is a guest that is copied at exact moments of what it does.
type moment struct {
	*worker
	cfg machine.Config
}

func (w *worker) say(question string) {
	w.Helper()
	if _, err := io.WriteString(w.console.Host(), question+"\n"); err != nil {
		w.Fatal(err)
	}
}

// stepTo runs the guest in steps of so many instructions until it gives an answer of this length, and calls at, whose time does not count,
// after each step.
func (w *worker) stepTo(length int, step int64, at func()) string {
	w.Helper()
	var seen []string
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
		if _, stopped, err := w.Step(step); stopped || err != nil {
			w.Fatalf("the guest stopped: %v", err)
		}
		called := time.Now()
		at()
		end = end.Add(time.Since(called))
		select {
		case line := <-w.lines:
			if answer, found := strings.CutPrefix(line, "= "); found && len(answer) == length {
				return answer
			}
			seen = append(seen, line)
		case <-time.After(20 * time.Microsecond): // the line comes by another goroutine
		}
	}
	w.Fatalf("the guest does not answer, but says %q", seen)
	return ""
}

// copies makes two machines of other generations of the guest as it is now.
func (m *moment) copies() [2]*worker {
	m.Helper()
	image := m.capture()
	var made [2]*worker
	for i := range made {
		made[i] = restoreGeneration(m.TB, m.cfg, image, byte(i+2))
		made[i].wantInterrupt()
	}
	return made
}

// wantInterrupt checks that a copy made while a program runs continues in the kernel: programs cannot turn interrupts off.
func (w *worker) wantInterrupt() {
	w.Helper()
	if w.inKernel() {
		return
	}
	w.advance(1)
	if !w.inKernel() {
		w.Error("a copy has executed an instruction of its program before the interrupt")
	}
}

// inKernel tells by the upper half of the address space.
func (w *worker) inKernel() bool {
	w.Helper()
	r, err := w.Registers()
	if err != nil {
		w.Fatal(err)
	}
	return r.PC>>63 != 0
}

// A machine that is copied while its kernel makes random numbers finishes that in each copy, and none must continue with the
// state from before (internal/machine/kernel/vmfork.patch).
func TestCopiesOfABusyGenerator(t *testing.T) {
	t.Parallel()
	cfg := machine.Config{Memory: 64 << 20, Deterministic: true, Rand: zeros{}, Generation: [16]byte{1}}
	booted := bootMemory(t, cfg)
	booted.say("random") // the kernel's generator is ready and in use
	booted.stepTo(64, 500, func() {})
	image := booted.capture()
	t.Run("reseeding", func(t *testing.T) { copyWhileReseeding(&moment{restoreWorker(t, cfg, image), cfg}) })
	t.Run("reseeding as a copy", func(t *testing.T) { copyTheCopy(&moment{restoreGeneration(t, cfg, image, 1), cfg}) })
	t.Run("read", func(t *testing.T) { copyWhileReading(&moment{restoreWorker(t, cfg, image), cfg}) })
}

// copyWhileReseeding asks copies made at any moment of a reseed, and before it and after it, for their first number.
func copyWhileReseeding(m *moment) {
	check, done := m.compare()
	m.say("reseed")
	m.stepTo(len("done"), interval, check)
	done()
}

// copyTheCopy does that while a copy reseeds because it is one.
func copyTheCopy(m *moment) {
	check, done := m.compare()
	for range 28_000 / interval {
		m.advance(interval)
		check()
	}
	done()
}

// interval is the number of instructions between two copies; a reseed has 14,000.
const interval = 700

// compare asks two copies for their first number each time that check is called; done says how often these were equal.
func (m *moment) compare() (check, done func()) {
	var equal []uint64
	points, started := 0, m.Retired()
	check = func() {
		points++
		var numbers [2]string
		for i, w := range m.copies() {
			w.say("random")
			numbers[i] = w.stepTo(64, 5000, func() {})
			w.close()
		}
		if numbers[0] == numbers[1] {
			equal = append(equal, m.Retired()-started)
		}
	}
	return check, func() {
		m.Helper()
		m.Logf("%d pairs of copies in %d instructions", points, m.Retired()-started)
		if len(equal) != 0 {
			m.Errorf("%d pairs of copies drew equal numbers: those made after %d instructions", len(equal), equal)
		}
	}
}

// copyWhileReading compares the ends of long reads that were under way when the copies were made.
func copyWhileReading(m *moment) {
	whole := restoreGeneration(m.TB, m.cfg, m.capture(), 0)
	whole.say("stream")
	whole.stepTo(64, 50_000, func() {})
	length := int64(whole.Retired() - m.Retired())
	m.say("stream")
	for quarter := range 3 {
		m.advance(length / 4)
		var ends [2]string
		for i, w := range m.copies() {
			ends[i] = w.stepTo(64, 50_000, func() {})
		}
		if ends[0] == ends[1] {
			m.Errorf("copies made after %d/4 of a read have the same end of it", quarter+1)
		}
	}
}
