package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentvm/internal/daemon/confine"
	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/host/private"
	"agentvm/vm"
)

// TestConfinedDaemon: all threads of a daemon are confined, it reaches only its own files, and every feature still works, also when the
// guest's code is translated, and after a stop. The tests of package confine try what a confined process cannot do.
func TestConfinedDaemon(t *testing.T) {
	config := realConfig(t)
	room := t.TempDir()
	for _, dir := range []string{"rw", "ro", "elsewhere"} {
		if err := os.Mkdir(filepath.Join(room, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(room, "ro", "f"), []byte("read\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	host, err := net.Listen("unix", filepath.Join(room, "host.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	go func() {
		for {
			c, err := host.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	config.Mounts = []vm.Mount{{HostPath: filepath.Join(room, "rw"), GuestPath: "/rw"}, {HostPath: filepath.Join(room, "ro"), GuestPath: "/ro", ReadOnly: true}}
	config.CaptureFile, config.NetworkLog = filepath.Join(room, "frames.pcap"), filepath.Join(room, "events.log")
	config.UnixSockets = []vm.UnixSocket{{Host: host.Addr().String(), Guest: "/run/host.sock"}}
	config.Metrics = "127.0.0.1:0"

	s := testStore(t, roleReal)
	c, err := s.Start(t.Context(), "dev", config, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = c.Stop(t.Context(), 0)
		_ = c.Close()
	}()
	p, _ := s.paths("dev")
	showLog(t, p)
	layers, err := c.Confinement(t.Context())
	if err != nil || !slices.Equal(layers, confine.Available()) {
		t.Fatalf("in force: %+v, %v; available are %+v", layers, err, confine.Available())
	}
	force := func(layer string) bool {
		return slices.ContainsFunc(layers, func(l confine.Layer) bool { return l.Name == layer && l.InForce })
	}
	if force("seccomp") {
		wantThreads(t, c.Pid())
	}
	use := func() {
		t.Helper()
		for line, want := range map[string]string{
			"cat /ro/f": "read\n",
			"mkdir -p /rw/a /rw/b && echo x >/rw/a/x && echo y >/rw/a/x && mv /rw/a/x /rw/b && cat /rw/b/x && rm -r /rw/a /rw/b": "y\n",
			"mkfifo /rw/f && { echo through >/rw/f & cat /rw/f; rm /rw/f; }":                                                     "through\n",
			"ln -s no /rw/l && touch -h -d @7 /rw/l && stat -c %Y /rw/l && rm /rw/l":                                             "7\n",
			"touch -d @7 /rw/t && chmod 0 /rw/t && chmod 640 /rw/t && stat -c '%Y %a' /rw/t && rm /rw/t":                         "7 640\n",
			"test -S /run/host.sock && echo there":                                                                               "there\n",
			"i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; echo $i":                                                          "30000\n",
			"echo kept >>/root/kept; sync; tail -n 1 /root/kept":                                                                 "kept\n",
			"ping -c 1 -W 5 192.168.127.1 >/dev/null && echo pong":                                                               "pong\n",
		} {
			if out, o := shell(t, c, daemonrpc.JobOptions{}, line); out != want {
				t.Errorf("%s: %q, %+v", line, out, o)
			}
		}
		var out bytes.Buffer
		job := start(t, c, daemonrpc.JobOptions{Durable: true}, "/bin/echo", "durable")
		if _, err := Follow(t.Context(), job, Streams{Stdout: &out}, 0); err != nil || out.String() != "durable\n" {
			t.Errorf("durable job: %q, %v", out.String(), err)
		}
		if b, err := c.Preview(t.Context()); err != nil {
			t.Errorf("previews: %+v, %v", b, err)
		}
		if b, err := c.Forward(t.Context(), "0:80"); err != nil {
			t.Errorf("a forward: %s, %v", b, err)
		}
		if files, err := c.Files(t.Context()); err != nil {
			t.Error(err)
		} else {
			if info, err := files.Stat(t.Context(), "/root/kept"); err != nil {
				t.Errorf("%+v, %v", info, err)
			}
			_ = files.Close()
		}
	}
	use()
	for _, folder := range []string{"snapshots", "forks"} {
		if _, err := c.Snapshot(t.Context(), daemonrpc.SnapshotRequest{Path: filepath.Join(config.StoreDir, folder, "saved.snap"), Layered: folder == "forks"}); err != nil {
			t.Errorf("%s: %v", folder, err)
		}
	}
	if force("Landlock") {
		elsewhere := filepath.Join(room, "elsewhere", "saved.snap")
		if _, err := c.Snapshot(t.Context(), daemonrpc.SnapshotRequest{Path: elsewhere}); !errors.Is(err, fs.ErrPermission) && (err == nil || !strings.Contains(err.Error(), "confined")) {
			t.Errorf("a snapshot where the daemon may not write: %v", err)
		}
	}
	for _, file := range []string{"frames.pcap", "events.log"} {
		if info, err := os.Stat(filepath.Join(room, file)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
	if err := errors.Join(c.Stop(t.Context(), 10*time.Second), c.Close(), awaitGone(t.Context(), p)); err != nil {
		t.Fatal(err)
	}
	if c, err = s.Start(t.Context(), "dev", config, nil); err != nil {
		t.Fatal(err)
	}
	use()
	fork, err := s.Restore(t.Context(), "copy", config, Restoration{Snapshot: filepath.Join(config.StoreDir, "snapshots", "saved.snap")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if force("seccomp") {
		wantThreads(t, fork.Pid())
	}
	if out, _ := shell(t, fork, daemonrpc.JobOptions{}, "cat /root/kept"); out != "kept\n" {
		t.Errorf("in the restored VM: %q", out)
	}
	if err := errors.Join(fork.Stop(t.Context(), 0), fork.Close()); err != nil {
		t.Error(err)
	}
}

// wantThreads requires all threads of a process to be confined.
func wantThreads(t *testing.T, pid int) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads %q, %v", threads, err)
	}
	for _, thread := range threads {
		status, err := os.ReadFile(thread)
		if err != nil { // it has ended
			continue
		}
		for _, want := range []string{"\nNoNewPrivs:\t1\n", "\nSeccomp:\t2\n"} {
			if !strings.Contains(string(status), want) {
				t.Errorf("%s lacks %q:\n%s", thread, want, status)
			}
		}
	}
}

// TestCompiledCodeIsOutOfReach: the next process executes compiled code before it confines itself, so that a confined one may neither write nor
// sign it.
func TestCompiledCodeIsOutOfReach(t *testing.T) {
	store, home := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	if _, err := private.CodeKey(store); err != nil {
		t.Fatal(err)
	}
	folder, err := private.UserFolder()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := filepath.Glob(filepath.Join(folder, "*.key"))
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys %q, %v", keys, err)
	}
	d := &daemon{store: Store{Dir: filepath.Join(store, "vms")}, paths: paths{dir: filepath.Join(store, "vms", "dev")}, logger: slog.New(slog.DiscardHandler)}
	d.config.StoreDir = store
	for name, r := range map[string]confine.Rules{"a daemon": d.confineRules(), "agentvm exec": VMRules(store, vm.Config{})} {
		for _, path := range slices.Concat(r.Read, r.Write, r.Sockets, r.ReadMounts, r.WriteMounts) {
			for _, code := range []string{keys[0], filepath.Join(store, "compiled"), filepath.Join(store, "compiled-modules")} {
				if path != "" && (strings.HasPrefix(code+"/", path+"/") || strings.HasPrefix(path+"/", code+"/")) {
					t.Errorf("%s reaches %s by the rule for %s", name, code, path)
				}
			}
		}
	}
}
