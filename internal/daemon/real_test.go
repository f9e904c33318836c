package daemon

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/egress"
	"agentvm/images"
	"agentvm/images/imagestest"
	"agentvm/images/storetest"
	"agentvm/internal/daemon/daemonrpc"
	"agentvm/vm"
)

// realConfig boots Alpine where its files are available, otherwise BusyBox.
func realConfig(t testing.TB) Config {
	t.Helper()
	if testing.Short() {
		t.Skip("boots machines")
	}
	dir := t.TempDir()
	return Config{Config: vm.Config{Image: storetest.Fill(t, dir).Name, Memory: 128 << 20, StoreDir: dir}, DiskSize: 1 << 30}
}

// showLog prints a daemon's log at the end of a test that has failed.
func showLog(t testing.TB, p paths) {
	t.Cleanup(func() {
		if log, _ := os.ReadFile(p.log()); t.Failed() {
			t.Logf("log:\n%s", log)
		}
	})
}

// shell runs shell source as a job and returns its output.
func shell(t testing.TB, c *Client, o daemonrpc.JobOptions, line string) (string, ExitInfo) {
	t.Helper()
	var out bytes.Buffer
	s := Streams{Stdout: &out, Stderr: &out}
	if o.Input {
		s.Stdin = strings.NewReader("from here")
	}
	exit, err := Follow(t.Context(), start(t, c, o, "/bin/sh", "-c", line), s, 0)
	if err != nil {
		t.Errorf("%s: %v", line, err)
	}
	return out.String(), exit
}

// TestRealVM is a named VM's life: started, used by two clients, killed, started again with its files, stopped, removed.
func TestRealVM(t *testing.T) {
	config := realConfig(t)
	s := testStore(t, roleReal)
	c, err := s.Start(t.Context(), "dev", config, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	p, _ := s.paths("dev")
	showLog(t, p)
	if out, o := shell(t, c, daemonrpc.JobOptions{}, "echo $((6*7)); hostname; exit 3"); out != "42\ndev\n" || o.Exit.Code != 3 {
		t.Errorf("%q, %+v", out, o)
	}
	if out, _ := shell(t, c, daemonrpc.JobOptions{Input: true}, "cat; echo kept >/root/kept; sync"); out != "from here" {
		t.Errorf("%q", out)
	}
	if _, o := shell(t, c, daemonrpc.JobOptions{Timeout: 100 * time.Millisecond}, "sleep 100"); !o.TimedOut {
		t.Errorf("%+v", o)
	}
	durable := start(t, c, daemonrpc.JobOptions{Durable: true}, "/bin/sh", "-c", "echo begun; sleep 1000")
	if o, err := durable.Output(t.Context(), 0, 100, time.Minute); err != nil || string(o.Chunks[0].Data) != "begun\n" {
		t.Errorf("%+v, %v", o, err)
	}
	if p, err := c.Policy(t.Context()); err != nil || p.Mode != egress.Public {
		t.Errorf("%+v, %v", p, err)
	}
	if files, err := c.Files(t.Context()); err != nil {
		t.Error(err)
	} else {
		if info, err := files.Stat(t.Context(), "/root/kept"); err != nil || info.Size != 5 {
			t.Errorf("%+v, %v", info, err)
		}
		_ = files.Close()
	}
	if p, err := os.FindProcess(c.Pid()); err != nil || p.Kill() != nil {
		t.Fatal(err)
	}
	<-c.Done()
	if err := awaitGone(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Status(t.Context(), "dev"); err != nil || st.State != Crashed {
		t.Errorf("%+v, %v", st, err)
	}
	if config.Image == imagestest.Alpine {
		config.Image = images.AlpineName // a newer release, which is not to be had here: the files belong to the one that was
	}
	again, err := s.Start(t.Context(), "dev", config, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	if out, _ := shell(t, again, daemonrpc.JobOptions{}, "cat /root/kept"); out != "kept\n" {
		t.Errorf("after the crash: %q", out)
	}
	var old bytes.Buffer
	if j, err := again.Job(t.Context(), durable.ID()); err != nil {
		t.Error(err)
	} else if _, err := Follow(t.Context(), j, Streams{Stdout: &old}, 0); err == nil || old.String() != "begun\n" {
		t.Errorf("a job of the daemon that was killed: %q, %v", old.String(), err)
	}
	if err := errors.Join(again.Stop(t.Context(), 10*time.Second), s.Remove(t.Context(), "dev")); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Dir, "*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
