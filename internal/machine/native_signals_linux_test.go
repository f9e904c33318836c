package machine_test

import (
	"runtime"
	"runtime/debug"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"agentvm/internal/machine"
)

// TestNativeUnderManySignals: the thread that executes native code gets Go's preemption signal as often as another can send it, while all other
// goroutines collect garbage, with one processor and with several. The result is that of an interpreter without signals.
func TestNativeUnderManySignals(t *testing.T) {
	const instructions = 12_000_000
	interpreted := lockstepGuest(t, testProgram(t))
	interpreted.advance(instructions)
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	for _, processors := range []int{1, 4} {
		before := runtime.GOMAXPROCS(processors)
		translated := lockstepGuest(t, programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot}))
		runtime.LockOSThread()
		thread, done := unix.Gettid(), make(chan struct{})
		var sender sync.WaitGroup
		sent := 0
		sender.Go(func() {
			var garbage []byte
			for {
				select {
				case <-done:
					runtime.KeepAlive(garbage)
					return
				default:
					if unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) == nil {
						sent++
					}
					garbage = make([]byte, 4096)
					if sent%16 == 0 {
						unix.Nanosleep(&unix.Timespec{Nsec: 20_000}, nil)
					}
				}
			}
		})
		translated.advance(instructions)
		close(done)
		sender.Wait()
		runtime.UnlockOSThread()
		runtime.GOMAXPROCS(before)
		s := translated.JITStats()
		t.Logf("%d processors: %d signals, %d of %d instructions in native code", processors, sent, s.Executed, translated.Retired())
		if translated.Retired() != interpreted.Retired() || translated.hash() != interpreted.hash() {
			t.Errorf("%d processors: the machines differ after %d and %d instructions", processors, interpreted.Retired(), translated.Retired())
		}
		if s.Native == 0 || s.Executed < instructions/10 || sent < 100 {
			t.Errorf("%d processors: %d instructions in native code, %d signals: the test does not try what it should", processors, s.Executed, sent)
		}
	}
}
