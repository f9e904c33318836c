//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// pane is a terminal of tmux, 80 by 24.
type pane struct {
	t    *testing.T
	tmux func(args ...string) (string, error)
}

func newPane(t *testing.T, env []string, command string) *pane {
	t.Helper()
	path, err := exec.LookPath("tmux")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("tmux is missing: apt-get install tmux")
		}
		t.Skip("there is no tmux")
	}
	socket := filepath.Join(t.TempDir(), "socket")
	p := &pane{t, func(args ...string) (string, error) {
		command := exec.Command(path, append([]string{"-u", "-S", socket, "-f", os.DevNull}, args...)...)
		command.Env = env
		out, err := command.CombinedOutput()
		return string(out), err
	}}
	if out, err := p.tmux("new-session", "-d", "-x", "80", "-y", "24", command); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _, _ = p.tmux("kill-server") })
	return p
}

func (p *pane) press(keys ...string) {
	p.t.Helper()
	if out, err := p.tmux(append([]string{"send-keys"}, keys...)...); err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
}

// await waits until the terminal shows a text.
func (p *pane) await(want string) (shown string) {
	p.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		shown, err := p.tmux("capture-pane", "-p", "-e")
		if strings.Contains(shown, want) {
			return shown
		}
		if err != nil || time.Now().After(deadline) {
			p.t.Fatalf("no %q, %v:\n%s", want, err, shown)
		}
	}
}

// TestTop uses the monitor as its user does: sees what a VM was denied, allows it, opens a shell, leaves.
func TestTop(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a VM")
	}
	const name = "watched"
	store, mirror, _ := testStore(t)
	t.Cleanup(func() { agentvm(t, "rm", "-f", name) })
	agentvm(t, "start", "-q", "--image", "busybox", "--memory", "128M", "--allow", "allowed.example:443", name)
	if got := agentvm(t, "top", "--once"); !strings.Contains(got, "  "+name) || !strings.Contains(got, "running") {
		t.Errorf("top --once: %s", got)
	}
	env := append(os.Environ(), "AGENTVM_STORE="+store, "AGENTVM_ALPINE_MIRROR="+mirror, "NO_COLOR=1", "LC_ALL=C.UTF-8")
	project := t.TempDir()
	if err := os.WriteFile(filepath.Join(project, "agentvm.toml"), []byte("[network] # ours\nallow = [\"allowed.example:443\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPane(t, env, "cd "+project+" && agentvm top; echo left $?; sleep 60")
	p.await(name)
	agentvm(t, "exec", "-n", name, "nslookup denied.example >/dev/null 2>&1; true")
	shown := p.await("denied.example")
	if found := regexp.MustCompile(`\x1b\[[0-9;]*\b(3[0-7]|4[0-7])m`).FindString(shown); found != "" {
		t.Errorf("with NO_COLOR there is the colour %q:\n%s", found, shown)
	}
	p.press("a")
	p.await("is allowed until it stops")
	if got := agentvm(t, "net", "explain", "-n", name, "denied.example:80"); !strings.Contains(got, "denied.example") || strings.Contains(got, "not in the allowlist") {
		t.Errorf("after a: %s", got)
	}
	p.press("A")
	p.await("added denied.example to ")
	if text, err := os.ReadFile(filepath.Join(project, "agentvm.toml")); err != nil || !strings.Contains(string(text), `"allowed.example:443", "denied.example"`) || !strings.Contains(string(text), "# ours") {
		t.Errorf("after A: %s, %v", text, err)
	}
	p.press("s")
	p.await(name + ":/#")
	p.press("echo in-$((40+2))", "Enter")
	p.await("in-42")
	p.press("exit", "Enter")
	p.await("the shell in " + name + " has ended")
	p.press("q")
	p.await("left 0")
}

// TestTopNeedsATerminal has scripts call it.
func TestTopNeedsATerminal(t *testing.T) {
	store, _, _ := testStore(t)
	command := exec.Command("agentvm", "top")
	command.Env = append(os.Environ(), "AGENTVM_STORE="+store)
	out, err := command.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "agentvm top --once") {
		t.Errorf("%v: %s", err, out)
	}
}
