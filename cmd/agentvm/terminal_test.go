//go:build unix

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
)

// screen is a terminal with agentvm running in it.
type screen struct {
	t       *testing.T
	file    *os.File
	process *exec.Cmd
	before  *term.State
	ended   chan struct{} // reading from the terminal
	exited  chan error    // what Wait of the process returned

	mu   sync.Mutex
	text bytes.Buffer
}

// onTerminal starts agentvm as a user at a terminal of 100 columns and 40 rows would.
func onTerminal(t *testing.T, args ...string) *screen {
	t.Helper()
	if testing.Short() {
		t.Skip("boots VMs")
	}
	store, mirror, _ := testStore(t)
	s := &screen{t: t, process: exec.Command("agentvm", args...), ended: make(chan struct{}), exited: make(chan error, 1)}
	s.process.Env = append(os.Environ(), "AGENTVM_STORE="+store, "AGENTVM_ALPINE_MIRROR="+mirror)
	s.start(&pty.Winsize{Cols: 100, Rows: 40})
	go func() { s.exited <- s.process.Wait() }()
	t.Cleanup(func() {
		_ = s.process.Process.Kill()
		s.file.Close()
		<-s.ended
	})
	go s.read()
	return s
}

// start makes the terminal, looks at its state, which is still unchanged, and starts the process at its other end.
func (s *screen) start(size *pty.Winsize) {
	s.t.Helper()
	file, tty, err := pty.Open()
	if err != nil {
		s.t.Fatal(err)
	}
	defer tty.Close()
	s.file = file
	s.before, err = term.GetState(int(file.Fd()))
	if err := errors.Join(err, pty.Setsize(file, size)); err != nil {
		s.t.Fatal(err)
	}
	s.process.Stdin, s.process.Stdout, s.process.Stderr = tty, tty, tty
	s.process.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) read() {
	defer close(s.ended)
	b := make([]byte, 4096)
	for {
		n, err := s.file.Read(b)
		s.mu.Lock()
		s.text.Write(b[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *screen) shown() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await waits until text is on the screen.
func (s *screen) await(text string) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if strings.Contains(s.shown(), text) {
			return
		}
	}
	s.t.Fatalf("no %q on the screen:\n%s", text, s.shown())
}

func (s *screen) enter(keys string) {
	s.t.Helper()
	if _, err := s.file.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// wantExit waits for the end and checks the exit code and that the terminal is as before.
func (s *screen) wantExit(code int) {
	s.t.Helper()
	select {
	case err := <-s.exited:
		var exit *exec.ExitError
		got := 0
		if errors.As(err, &exit) {
			got = exit.ExitCode()
		}
		if got != code {
			s.t.Errorf("exit code %d, want %d; screen:\n%s", got, code, s.shown())
		}
		after, err := term.GetState(int(s.file.Fd()))
		if err != nil || !reflect.DeepEqual(after, s.before) {
			s.t.Errorf("the terminal was %+v and is left as %+v, %v", s.before, after, err)
		}
	case <-time.After(time.Minute):
		s.t.Fatalf("agentvm does not end; screen:\n%s", s.shown())
	}
}

// endedBySignal waits for the end and says whether it was this signal's doing, for which the process had no handler.
func (s *screen) endedBySignal(signal syscall.Signal) bool {
	s.t.Helper()
	select {
	case err := <-s.exited:
		s.exited <- err // for wantExit
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return false
		}
		status, ok := exit.Sys().(syscall.WaitStatus)
		return ok && status.Signaled() && status.Signal() == signal
	case <-time.After(time.Minute):
		s.t.Fatalf("agentvm does not end; screen:\n%s", s.shown())
		return false
	}
}

// A signal that comes just before read waits leaves it waiting, so it waits a second at a time.
func TestTerminalOfACommand(t *testing.T) {
	s := onTerminal(t, "exec", `test -t 0 && test -t 1 && test -t 2 && stty size; trap 'stty size' WINCH; echo ready; while ! read -t 1 x; do :; done; echo "got $x"; exit 7`)
	s.await("40 100\r\n")
	s.await("ready")
	if err := pty.Setsize(s.file, &pty.Winsize{Cols: 123, Rows: 45}); err != nil {
		t.Fatal(err)
	}
	s.await("45 123")
	s.enter("typed\r")
	s.await("got typed")
	s.wantExit(7)
}

func TestNoTerminalWithoutOne(t *testing.T) {
	s := onTerminal(t, "exec", "-t=false", "test -t 0 || test -t 1 || echo pipes")
	s.await("pipes\r\n")
	s.wantExit(0)
}

func TestInteractiveShell(t *testing.T) {
	s := onTerminal(t)
	s.await("# ")
	s.enter("echo $((6*7))-done\r")
	s.await("42-done")
	s.enter("echo sleeps-$((1+1)); sleep 1000\r")
	s.await("sleeps-2")
	time.Sleep(300 * time.Millisecond)
	s.enter("\x03\x03") // in a shell, two in a row are everyday
	s.enter("echo still-$((1+1))\r")
	s.await("still-2")
	s.enter("exit 3\r")
	s.wantExit(3)
}

func TestLeavingAVMThatHangs(t *testing.T) {
	const hang = `trap '' INT; stty -isig; echo ready; while :; do sleep 1; done`
	t.Run("two interrupts", func(t *testing.T) {
		s := onTerminal(t, "exec", hang)
		s.await("ready")
		s.enter("\x03")
		time.Sleep(200 * time.Millisecond)
		s.enter("\x03")
		s.wantExit(130)
	})
	t.Run("escape", func(t *testing.T) {
		s := onTerminal(t, "shell")
		s.await("# ")
		s.enter(hang + "\r")
		s.await("\nready")
		s.enter("\r~.")
		s.wantExit(130)
	})
	t.Run("escape at the prompt", func(t *testing.T) {
		s := onTerminal(t, "shell")
		s.await("\x1b[6n") // BusyBox asks where the cursor is
		s.enter("\x1b[1;12R\x1b[I")
		s.await("# ")
		s.enter("~")
		s.enter("\x1b]11;rgb:0000/0000/0000\x1b\\.")
		s.wantExit(130)
	})
}

func TestInterruptsWithoutATerminal(t *testing.T) {
	tests := []struct {
		name, line string
		signals    []syscall.Signal
		want       int
	}{
		{"one ends the command", "echo ready; sleep 100", []syscall.Signal{syscall.SIGINT}, 130},
		{"one is handled", "trap 'exit 9' INT; echo ready; while :; do sleep 0.05; done", []syscall.Signal{syscall.SIGINT}, 9},
		{"two stop the VM", "trap '' INT; echo ready; while :; do sleep 1; done", []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, 130},
		{"another signal", "trap 'exit 8' USR1; echo ready; while :; do sleep 0.05; done", []syscall.Signal{syscall.SIGUSR1}, 8},
		{"termination", "echo ready; sleep 100", []syscall.Signal{syscall.SIGTERM}, 143},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := onTerminal(t, "exec", "-t=false", test.line)
			s.await("ready")
			for _, signal := range test.signals {
				if err := s.process.Process.Signal(signal); err != nil {
					t.Fatal(err)
				}
				time.Sleep(300 * time.Millisecond)
			}
			s.wantExit(test.want)
		})
	}
}

// TestInterruptWhileBooting has a signal come at several moments of a start. The earliest may end a process that has not
// begun to heed signals, on a busy host also one after another that has.
func TestInterruptWhileBooting(t *testing.T) {
	heeded := false
	for _, after := range []time.Duration{20, 40, 80, 150, 300, 600, 1200, 2400} {
		s := onTerminal(t, "exec", "-t=false", "echo too late; sleep 100")
		time.Sleep(after * time.Millisecond)
		if err := s.process.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if (!heeded || after < 300) && s.endedBySignal(syscall.SIGINT) {
			continue
		}
		heeded = true
		s.wantExit(130)
		if strings.Contains(s.shown(), "too late") {
			break // later ones come later still
		}
	}
	if !heeded {
		t.Error("a signal is not heeded after more than two seconds")
	}
}
