package machine_test

import (
	"bytes"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"

	"agentvm/internal/debugenv"
	"agentvm/internal/machine"
	"agentvm/internal/machine/native"
)

// nativeTest has programs that are made in a test translate to native code.
func nativeTest(t *testing.T) {
	t.Helper()
	if !native.Supported {
		t.Skip("there is no native code on this system")
	}
	t.Setenv(debugenv.Variable, "native")
}

// TestNative runs the tests of translation with native code: each row of the instruction table, sequences, bare programs, and Linux with several
// sets of programs, of which each compares with the interpreter or a model.
func TestNative(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"steps": TestTranslatedStepIsExact, "instructions": TestInstructionTranslated, "sequences": TestTranslatedSequences, "loops": TestTranslatedLoops,
		"bare": TestBareTranslated, "lockstep": TestTranslatedLockstep, "busybox": TestTranslatedLockstepBusybox, "processes": TestTranslatedProcesses,
		"bounded": TestTranslationIsBounded, "together": TestMachinesTranslateTogether, "restored": TestRestoredMachineTranslatesAnew, "idle": TestIdleMachineTranslatesNothing,
	} {
		t.Run(name, func(t *testing.T) {
			nativeTest(t)
			test(t)
		})
	}
}

// TestNativeUnderSignals: while native code runs, Go stops the world, preempts and profiles, by signals that find code which is not Go's. The
// result is that of an interpreter, and it was native code that ran.
func TestNativeUnderSignals(t *testing.T) {
	interpreted := lockstepGuest(t, testProgram(t))
	nativeTest(t)
	translated := lockstepGuest(t, programThat(t, machine.ProgramConfig{Translation: machine.TranslateWaiting}))
	var profile bytes.Buffer
	if err := pprof.StartCPUProfile(&profile); err != nil {
		t.Fatal(err)
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				runtime.GC()
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	for _, w := range []*worker{interpreted, translated} {
		for range 40 {
			if _, stopped, err := w.Step(1_000_000); stopped || err != nil {
				t.Errorf("stopped %t, %v", stopped, err)
			}
		}
	}
	close(done)
	<-ended
	pprof.StopCPUProfile()
	if interpreted.hash() != translated.hash() {
		t.Errorf("after %d instructions the two machines differ", translated.Retired())
	}
	if s := translated.JITStats(); s.Native == 0 || s.Executed < translated.Retired()/4 {
		t.Errorf("%+v: no native code was executed", s)
	}
}
