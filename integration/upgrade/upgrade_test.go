package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// oldProgram names the program of an earlier version.
const oldProgram = "AGENTVM_OLD_PROGRAM"

// program is an agentvm with the store of the test.
type program struct {
	t           *testing.T
	path, store string
	environment []string
}

const patience = 5 * time.Minute

func (p program) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, p.path, args...)
	c.Env = append(append(os.Environ(), "AGENTVM_STORE="+p.store), p.environment...)
	var out, complaints bytes.Buffer
	c.Stdout, c.Stderr, c.WaitDelay = &out, &complaints, time.Minute
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("agentvm %q: %w: %s", args, err, complaints.String())
	}
	return strings.TrimSpace(out.String()), nil
}

func (p program) must(args ...string) string {
	p.t.Helper()
	out, err := p.try(args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// says wants a command to print something.
func (p program) says(want string, args ...string) {
	p.t.Helper()
	if out, err := p.try(args...); err != nil || !strings.Contains(out, want) {
		p.t.Errorf("agentvm %q prints %q, %v; want %q", args, out, err, want)
	}
}

// orAdvised runs a command that may be refused, with advice what to do instead, which then has to work. It says which of them it was.
func (p program) orAdvised(advice, instead []string, args ...string) {
	p.t.Helper()
	_, err := p.try(args...)
	if err == nil {
		p.t.Logf("agentvm %q works", args)
		return
	}
	for _, part := range advice {
		if !strings.Contains(err.Error(), part) {
			p.t.Errorf("the error does not say %q: %v", part, err)
		}
	}
	p.t.Logf("%v", err)
	p.must(instead...)
}

// TestUpgrade has an earlier version make each kind of stored thing and this one list, use and remove it.
func TestUpgrade(t *testing.T) {
	old := os.Getenv(oldProgram)
	if old == "" {
		t.Skip("needs " + oldProgram + ", a program of an earlier version: make upgrade-test")
	}
	dir := t.TempDir()
	today := filepath.Join(dir, "agentvm")
	if out, err := exec.Command("go", "build", "-o", today, "agentvm/cmd/agentvm").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	state, exported := "file://"+filepath.Join(dir, "objects"), filepath.Join(dir, "exported.snap.zst")
	archive, source := filepath.Join(dir, "pulled.tar"), filepath.Join(dir, "source")
	before := program{t, old, filepath.Join(dir, "store"), []string{"AGENTVM_STATE_KEY=" + filepath.Join(dir, "key"), "DOCKER_CONFIG=" + dir}}
	now := before
	now.path = today
	if err := os.MkdirAll(source, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(before.store, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(source, "Dockerfile"), []byte("FROM busybox\nRUN echo built >/which\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := before.try("snapshot", "key")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ends := func() {
		for _, name := range []string{"stopped", "asleep", "running", "again", "imported", "fetched"} {
			_, _ = now.try("rm", "-f", name)
			_, _ = before.try("rm", "-f", name)
		}
	}
	t.Cleanup(ends)

	start := func(name string, flags ...string) {
		before.must(append([]string{"start", "-q", "--image", "busybox", "--memory", "128M", name}, flags...)...)
		before.must("exec", "-n", name, "echo "+name+" >/root/which; sync")
	}
	before.must("volume", "create", "shared")
	before.must("network", "create", "lan")
	start("running", "-v", "shared:/shared", "--network", "lan")
	before.must("exec", "-n", "running", "echo shared >/shared/which; sync")
	job := before.must("exec", "-d", "-n", "running", "echo from the job")
	before.must("job", "wait", "running", job)
	before.must("commit", "-q", "running", "committed")
	before.must("build", "-q", "-t", "built", source)
	before.must("commit", "-q", "running", "pulled")
	before.must("image", "save", "-o", "oci-archive:"+archive, "pulled")
	before.must("image", "rm", "pulled")
	before.must("image", "pull", "oci-archive:"+archive)
	start("stopped")
	before.must("snapshot", "create", "stopped", "saved")
	before.must("snapshot", "export", "saved", exported)
	before.must("snapshot", "create", "--state", state, "stopped", "remote")
	before.must("stop", "stopped")
	start("asleep", "--hibernate-after", "1s")
	process := filepath.Join(before.store, "vms", "asleep", "process.json") // ps would keep it awake
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(process); errors.Is(err, fs.ErrNotExist) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the earlier version does not hibernate its VM")
		}
	}
	before.says("hibernated", "ps", "-a", "--json")

	for _, name := range []string{"stopped", "asleep", "running"} {
		now.says(name, "ps", "-a")
	}
	for list, name := range map[string]string{"image": "built", "snapshot": "saved", "volume": "shared", "network": "lan"} {
		now.says(name, list, "ls")
	}
	now.says("remote", "snapshot", "ls", "--state", state)

	now.must("start", "-q", "stopped")
	now.says("stopped", "exec", "-n", "stopped", "cat /root/which")
	now.orAdvised([]string{"--cold"}, []string{"start", "-q", "--cold", "asleep"}, "start", "-q", "asleep")
	now.says("asleep", "exec", "-n", "asleep", "cat /root/which")

	pid := regexp.MustCompile(`"pid": *([0-9]+)`).FindStringSubmatch(before.must("ps", "--json"))
	if pid == nil {
		t.Error("ps --json of the earlier version has no pid")
	}
	now.orAdvised([]string{"pid"}, []string{"restart", "running"}, "exec", "-n", "running", "true")
	now.says("running", "exec", "-n", "running", "cat /root/which")
	now.says("shared", "exec", "-n", "running", "cat /shared/which")
	now.says("from the job", "job", "logs", "running", job)

	for _, from := range []struct{ name, snapshot string }{{"again", "saved"}, {"imported", "copy"}} {
		if from.snapshot == "copy" {
			now.must("snapshot", "import", exported, "copy")
		}
		now.orAdvised([]string{"--files-only"}, []string{"snapshot", "restore", "--files-only", from.snapshot, from.name}, "snapshot", "restore", from.snapshot, from.name)
		now.says("stopped", "exec", "-n", from.name, "cat /root/which")
	}
	now.must("snapshot", "pull", "--state", state, "remote")
	now.orAdvised([]string{"snapshot pull", "--files-only"}, []string{"snapshot", "restore", "--files-only", "remote", "fetched"}, "snapshot", "restore", "--state", state, "remote", "fetched")
	now.says("stopped", "exec", "-n", "fetched", "cat /root/which")
	now.must("snapshot", "rm", "--state", state, "remote")
	for image, want := range map[string]string{"built": "cat /which", "committed": "cat /root/which", "pulled": "cat /root/which"} {
		content := map[string]string{"built": "built"}[image]
		if content == "" {
			content = "running"
		}
		now.says(content, "exec", "--image", image, want)
		now.must("image", "rm", image)
	}

	ends()
	now.must("snapshot", "rm", "saved", "copy", "remote")
	now.must("volume", "rm", "shared")
	now.must("network", "rm", "lan")
	now.must("ps", "-a")
	for _, folder := range []string{"vms", "snapshots", "forks", "volumes", "networks"} {
		left, _ := filepath.Glob(filepath.Join(now.store, folder, "[^.l]*")) // "lock" stays
		if len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}
