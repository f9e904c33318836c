//go:build unix

package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// agentvm runs it without a terminal and returns what it prints.
func agentvm(t *testing.T, args ...string) string {
	t.Helper()
	store, mirror, _ := testStore(t)
	command := exec.Command("agentvm", args...)
	command.Env = append(os.Environ(), "AGENTVM_STORE="+store, "AGENTVM_ALPINE_MIRROR="+mirror)
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("agentvm %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestTerminalsOfANamedVM is one VM and several terminals.
func TestTerminalsOfANamedVM(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a VM")
	}
	const name = "terminals"
	t.Cleanup(func() { agentvm(t, "rm", "-f", name) })
	agentvm(t, "start", "-q", "--image", "busybox", "--memory", "128M", name)

	t.Run("command", func(t *testing.T) {
		s := onTerminal(t, "exec", "-n", name, `stty size; until stty size | grep '45 123'; do sleep 0.1; done; read x; echo "got $x"; exit 7`)
		s.await("40 100\r\n")
		if err := pty.Setsize(s.file, &pty.Winsize{Cols: 123, Rows: 45}); err != nil {
			t.Fatal(err)
		}
		s.await("45 123")
		s.enter("typed\r")
		s.await("got typed")
		s.wantExit(7)
	})
	t.Run("attach", func(t *testing.T) {
		s := onTerminal(t, "attach", name)
		s.await("# ")
		s.enter("echo sleeps-$((1+1)); sleep 1000\r")
		s.await("sleeps-2")
		time.Sleep(300 * time.Millisecond)
		s.enter("\x03echo still-$((1+1))\r")
		s.await("still-2")
		s.enter("exit 3\r")
		s.wantExit(3)
	})
	t.Run("leaving leaves it running", func(t *testing.T) {
		s := onTerminal(t, "shell", "-n", name)
		s.await("# ")
		s.enter("trap '' INT HUP; echo hanging; while :; do sleep 1; done\r")
		s.await("\nhanging")
		s.enter("\r~.")
		s.wantExit(130)
		if got := agentvm(t, "exec", "-n", name, "echo", "lives"); got != "lives" {
			t.Errorf("the VM says %q", got)
		}
	})
	t.Run("a shell that lasts", func(t *testing.T) {
		s := onTerminal(t, "attach", "-e", "x=before", name)
		s.await("# ")
		s.enter("y=kept; printf '\\033[31mred\\033[m\\033[6n\\n'; echo past-$x\r")
		s.await("past-before")
		s.enter("\x10") // goes with the next key
		time.Sleep(100 * time.Millisecond)
		s.enter("\x11")
		s.await("agentvm attach " + name + " comes back")
		s.wantExit(0)

		s = onTerminal(t, "attach", name)
		s.await("past-before")
		if text := s.shown(); !strings.Contains(text, "\x1b[31mred\x1b[m") || strings.Contains(text, "\x1b[6n") {
			t.Errorf("what is shown of before: %q", text)
		}
		s.enter("echo y-$y; stty size\r")
		s.await("y-kept")
		s.await("40 100")
		second := onTerminal(t, "attach", name)
		second.await("y-kept")
		second.enter("echo both-$((1+1))\r")
		for _, one := range []*screen{s, second} {
			one.await("both-2")
		}
		if err := pty.Setsize(second.file, &pty.Winsize{Cols: 90, Rows: 20}); err != nil {
			t.Fatal(err)
		}
		second.enter("until stty size | grep '^20 90'; do sleep 0.1; done; echo s''ized\r") // what is typed is shown, too
		s.await("sized")
		second.enter("\r~.")
		second.wantExit(0)

		_ = s.process.Process.Signal(syscall.SIGHUP) // its terminal is closed
		s.wantExit(129)
		s = onTerminal(t, "attach", name)
		s.await("sized")
		other := onTerminal(t, "attach", "--session", "other", name)
		other.await("# ")
		other.enter("echo y-is-${y:-unset}; exit 4\r")
		other.await("y-is-unset")
		other.wantExit(4)
		s.enter("exit 5\r")
		s.wantExit(5)
	})
	t.Run("job", func(t *testing.T) {
		id := agentvm(t, "exec", "-dt", "-n", name, "echo begun; read x; stty size; sleep 1000")
		s := onTerminal(t, "job", "attach", name, id)
		s.await("begun")
		s.enter("\r")
		s.await("40 100")
		s.enter("\r~.")
		s.wantExit(130)
		if got := agentvm(t, "job", "ls", name); !strings.Contains(got, id+"  running") {
			t.Errorf("after leaving: %s", got)
		}
		s = onTerminal(t, "job", "attach", name, id)
		s.await("begun")
		s.enter("\x03")
		s.wantExit(130)
		if got := agentvm(t, "job", "ls", name); !strings.Contains(got, id+"  ended") {
			t.Errorf("after Ctrl-C: %s", got)
		}
	})
	t.Run("signals without a terminal", func(t *testing.T) {
		s := onTerminal(t, "exec", "-t=false", "-n", name, "trap 'exit 8' USR1; echo ready; while :; do sleep 0.05; done")
		s.await("ready")
		if err := s.process.Process.Signal(syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		s.wantExit(8)
	})
	t.Run("second interrupt", func(t *testing.T) {
		s := onTerminal(t, "exec", "-n", name, "trap '' INT; stty -isig; echo ready; while :; do sleep 1; done")
		s.await("ready")
		s.enter("\x03")
		time.Sleep(200 * time.Millisecond)
		s.enter("\x03")
		s.wantExit(130)
	})
	t.Run("stop", func(t *testing.T) {
		s := onTerminal(t, "attach", name)
		s.await("# ")
		agentvm(t, "stop", name)
		s.await("agentvm: " + name + " ")
		s.await("which has ended the command")
		s.wantExit(129)
	})
}
