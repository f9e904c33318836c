package vm_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/share/mount"
	"agentvm/vm"
)

// add adds a mount of a new directory with a file, and returns the directory.
func add(t *testing.T, v *vm.VM, guest, content string, change func(*vm.Mount)) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), content)
	m := vm.Mount{HostPath: dir, GuestPath: guest}
	if change != nil {
		change(&m)
	}
	if err := v.AddMount(limited(t), m); err != nil {
		t.Fatal(err)
	}
	return dir
}

// wantError fails unless err says so.
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestAddMount(t *testing.T) {
	first := t.TempDir()
	v := ownVM(t, mounted(first, false))
	mustRun(t, v, vm.Command{Line: "mkdir -p /srv/full && echo hidden >/srv/full/old && ln -s /srv /link"})
	dir := add(t, v, "/srv/full", "from the host\n", nil)
	wantOutput(t, v, "ls /srv/full; cat /srv/full/file; echo from the guest >/srv/full/new", "file\nfrom the host\n")
	if text, err := os.ReadFile(filepath.Join(dir, "new")); string(text) != "from the guest\n" {
		t.Errorf("the guest's file: %q, %v", text, err)
	}
	add(t, v, "/srv/made/here", "", func(m *vm.Mount) { m.ReadOnly = true })
	if r := mustRun(t, v, vm.Command{Line: "touch /srv/made/here/new"}); r.ExitCode == 0 || !strings.Contains(string(r.Stderr), "Read-only") {
		t.Errorf("a write to a read-only mount: exit %d, %s", r.ExitCode, r.Stderr)
	}
	list, err := v.Mounts(limited(t))
	if err != nil || len(list) != 3 || list[0].Added || !list[1].Added || list[1].Mount.HostPath != dir || list[1].Mount.Identity.IsZero() || !list[2].Mount.ReadOnly {
		t.Errorf("Mounts: %+v, %v", list, err)
	}
	// Large files, many at once, and what the host changes.
	wantOutput(t, v, "dd if=/dev/urandom of=/srv/full/large bs=1M count=8 2>/dev/null && for i in 1 2 3 4; do md5sum </srv/full/large & done | uniq | wc -l; wait", "1\n")
	write(t, filepath.Join(dir, "file"), "changed\n")
	wantOutput(t, v, "cat /srv/full/file", "changed\n")

	for _, test := range []struct{ name, guest, want string }{
		{"a mount of the start", "/mnt/host", "already"},
		{"an added mount", "/srv/full", "already"},
		{"a mount of the guest", "/tmp", "something is mounted at /tmp"},
		{"a file", "/etc/passwd", "not a directory"},
		{"a link", "/link", "symbolic link"},
	} {
		err := v.AddMount(limited(t), vm.Mount{HostPath: t.TempDir(), GuestPath: test.guest})
		t.Run(test.name, func(t *testing.T) { wantError(t, err, test.want) })
	}
	wantError(t, v.AddMount(limited(t), vm.Mount{HostPath: filepath.Join(dir, "missing"), GuestPath: "/m"}), "does not exist")
	wantError(t, v.AddMount(limited(t), vm.Mount{HostPath: dir, GuestPath: "/m", ReadOnly: true, CopyOnWrite: true}), "both")

	if err := v.RemoveMount(limited(t), "/srv/full", false); err != nil {
		t.Error(err)
	}
	wantOutput(t, v, "cat /srv/full/old", "hidden\n")
	wantError(t, v.RemoveMount(limited(t), "/srv/full", false), "nothing of the host is mounted there")
	if err := v.RemoveMount(limited(t), "/mnt/host", true); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("removal of a mount of the start: %v", err)
	}
	mustRun(t, v, vm.Command{Line: "umount /srv/made/here"})
	if err := v.RemoveMount(limited(t), "/srv/made/here/", false); err != nil {
		t.Errorf("removal of what a program has unmounted: %v", err)
	}
	add(t, v, "/srv/full", "again\n", nil)
	wantOutput(t, v, "cat /srv/full/file", "again\n")
}

// TestAddManyMounts fills a VM with mounts, and has each device used again and again.
func TestAddManyMounts(t *testing.T) {
	v := ownVM(t, nil)
	for round := range 3 {
		for i := range vm.MinMountDevices {
			add(t, v, fmt.Sprintf("/m/%d", i), fmt.Sprintf("%d.%d\n", round, i), nil)
		}
		wantOutput(t, v, "cat /m/*/file", strings.ReplaceAll("R.0\nR.1\nR.2\nR.3\nR.4\nR.5\nR.6\nR.7\n", "R", fmt.Sprint(round)))
		wantError(t, v.AddMount(limited(t), vm.Mount{HostPath: t.TempDir(), GuestPath: "/m/more"}), "at most 8 mounts can be added")
		for i := range vm.MinMountDevices {
			if err := v.RemoveMount(limited(t), fmt.Sprintf("/m/%d", i), false); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestRemoveBusyMount: what programs use stays, unless it is forced; then they get errors, and others the device.
func TestRemoveBusyMount(t *testing.T) {
	v := ownVM(t, nil)
	add(t, v, "/busy", "one\n", nil)
	p, err := v.Start(limited(t), vm.Command{Line: "cd /busy && echo ready >/tmp/ready && while :; do sleep 0.1; cat /busy/file 2>/dev/null; done"})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, v, "test -s /tmp/ready")
	err = v.RemoveMount(limited(t), "/busy", false)
	if !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "sh, process ") {
		t.Errorf("removal of a mount in use: %v", err)
	}
	wantOutput(t, v, "cat /busy/file", "one\n")
	if err := v.RemoveMount(limited(t), "/busy", true); err != nil {
		t.Error(err)
	}
	wantOutput(t, v, "ls /busy; for p in /proc/[0-9]*; do cat $p/cwd/file 2>/dev/null; done; true", "") // also for the program
	for i := range vm.MinMountDevices - 1 {                                                             // the device of the programs is not taken
		add(t, v, fmt.Sprintf("/m/%d", i), "x\n", nil)
	}
	wantError(t, v.AddMount(limited(t), vm.Mount{HostPath: t.TempDir(), GuestPath: "/m/more"}), "1 were removed, and programs in the VM still use them")
	if err := p.Kill(limited(t)); err != nil {
		t.Error(err)
	}
	if _, err := p.Wait(limited(t)); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := v.AddMount(limited(t), vm.Mount{HostPath: t.TempDir(), GuestPath: "/m/more"})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	wantOutput(t, v, "touch /m/more/new && cat /m/*/file | uniq -c | awk '{print $1}'", "7\n")
}

// TestAddedMountServer: a server that ends, hangs or lies costs its own mount only, and not the VM's end.
func TestAddedMountServer(t *testing.T) {
	v, dir := ownVM(t, nil), t.TempDir()
	begin := func(guest string, limit time.Duration, serve func(net.Conn)) error {
		device, conn := net.Pipe()
		go serve(conn)
		ctx, cancel := context.WithTimeout(limited(t), limit)
		defer cancel()
		return v.AttachMount(ctx, vm.Mount{HostPath: dir, GuestPath: guest}, device)
	}
	t.Run("ends", func(t *testing.T) {
		write(t, filepath.Join(dir, "file"), "content\n")
		server, err := mount.NewServer(mount.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if err := begin("/ends", time.Minute, func(c net.Conn) { _ = server.Serve(context.Background(), c) }); err != nil {
			t.Fatal(err)
		}
		wantOutput(t, v, "cat /ends/file", "content\n")
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		for _, line := range []string{"cat /ends/other", "ls /ends"} {
			if r := mustRun(t, v, vm.Command{Line: line}); r.ExitCode == 0 || !regexp.MustCompile("I(nput|)/(output|O) error").Match(r.Stderr) {
				t.Errorf("%q: exit %d, %s", line, r.ExitCode, r.Stderr)
			}
		}
		if list, err := v.Mounts(limited(t)); err != nil || len(list) != 1 || list[0].Err == nil {
			t.Errorf("Mounts: %+v, %v", list, err)
		}
		wantError(t, v.AddMount(limited(t), vm.Mount{HostPath: dir, GuestPath: "/ends"}), "already")
		if err := v.RemoveMount(limited(t), "/ends", false); err != nil {
			t.Error(err)
		}
		if err := v.AddMount(limited(t), vm.Mount{HostPath: dir, GuestPath: "/ends"}); err != nil {
			t.Error(err)
		}
		wantOutput(t, v, "cat /ends/file", "content\n")
	})
	t.Run("hangs", func(t *testing.T) {
		if err := begin("/hangs", 2*time.Second, func(net.Conn) {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a server that does not answer: %v", err)
		}
	})
	t.Run("lies", func(t *testing.T) {
		_ = begin("/lies", 2*time.Second, func(c net.Conn) { _, _ = c.Write(make([]byte, 1<<10)) })
		_ = v.RemoveMount(limited(t), "/lies", true)
	})
	t.Run("hangs at the end", func(t *testing.T) {
		server, err := mount.NewServer(mount.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		stuck := &stuckConn{free: make(chan struct{})}
		if err := begin("/stuck", time.Minute, func(c net.Conn) { stuck.Conn = c; _ = server.Serve(context.Background(), stuck) }); err != nil {
			t.Fatal(err)
		}
		defer func() { close(stuck.free); _ = server.Close() }()
		wantOutput(t, v, "ls /stuck", "")
		stuck.stop.Store(true)
		if _, err := v.Start(limited(t), vm.Command{Line: "for i in 1 2 3; do ls /stuck/$i & done; wait"}); err != nil {
			t.Fatal(err)
		}
		wantOutput(t, v, "cat /ends/file", "content\n")
		stopped := make(chan error, 1)
		go func() { stopped <- v.Close() }()
		select {
		case err := <-stopped:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("the VM does not end")
		}
	})
}

// stuckConn is a server's connection that reads no more once it is stopped.
type stuckConn struct {
	net.Conn
	stop atomic.Bool
	free chan struct{}
}

func (c *stuckConn) Read(b []byte) (int, error) {
	if c.stop.Load() {
		<-c.free
	}
	return c.Conn.Read(b)
}

// Added mounts are not in forks and restored VMs, whose programs cannot reach the directories, also when programs that use them are kept.
func TestAddedMountsOfForks(t *testing.T) {
	v := ownVM(t, nil)
	add(t, v, "/added", "host\n", nil)
	p, err := v.Start(limited(t), vm.Command{Line: "cd /added && echo ready >/tmp/ready && sleep 1000"})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, v, "test -s /tmp/ready")
	path := save(t, v, vm.SnapshotOptions{})
	copies := map[string]*vm.VM{
		"fork":                 fork(t, v, 1, vm.ForkOptions{})[0],
		"fork that keeps":      fork(t, v, 1, vm.ForkOptions{KeepPrograms: true})[0],
		"restored":             restore(t, path, nil, vm.RestoreOptions{}),
		"restored that keeps":  restore(t, path, nil, vm.RestoreOptions{KeepPrograms: true}),
		"restored of no trust": restore(t, path, nil, vm.RestoreOptions{KeepPrograms: true, SameIdentity: true}),
		"fork of a fork, kept": fork(t, fork(t, v, 1, vm.ForkOptions{KeepPrograms: true})[0], 1, vm.ForkOptions{KeepPrograms: true})[0],
	}
	if err := p.Kill(limited(t)); err != nil {
		t.Error(err)
	}
	wantOutput(t, v, "cat /added/file", "host\n")
	for name, c := range copies {
		t.Run(name, func(t *testing.T) {
			wantOutput(t, c, "ls /added; cat /added/file 2>/dev/null; true", "")
			if list, err := c.Mounts(limited(t)); err != nil || len(list) > 0 {
				t.Errorf("Mounts: %+v, %v", list, err)
			}
			add(t, c, "/added", "of the copy\n", nil)
			wantOutput(t, c, "cat /added/file", "of the copy\n")
			if err := c.RemoveMount(limited(t), "/added", false); err != nil {
				t.Error(err)
			}
		})
	}
}

// A copy-on-write mount can be added: what the guest changes can be applied, and is there again when it is added again.
func TestAddCopyOnWrite(t *testing.T) {
	v := ownVM(t, nil)
	dir := add(t, v, "/src", "host\n", func(m *vm.Mount) { m.CopyOnWrite = true })
	wantOutput(t, v, "cat /src/file; echo changed >/src/file; echo new >/src/new", "host\n")
	if err := v.RemoveMount(limited(t), "/src", false); err != nil {
		t.Fatal(err)
	}
	if err := v.AddMount(limited(t), vm.Mount{HostPath: dir, GuestPath: "/src", CopyOnWrite: true}); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, v, "cat /src/file", "changed\n")
	list, err := v.Changes().List(limited(t))
	if err != nil || len(list) != 2 {
		t.Fatalf("changes: %+v, %v", list, err)
	}
	if _, err := v.Changes().Apply(limited(t), vm.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "new")); string(text) != "new\n" {
		t.Errorf("the host's file: %q, %v", text, err)
	}
}

// An added mount is compared with the VM's other paths of the host as those of a start are.
func TestAddMountHostPaths(t *testing.T) {
	v := ownVM(t, nil)
	c := config(t)
	if err := v.AddMount(limited(t), vm.Mount{HostPath: c.StoreDir, GuestPath: "/store"}); err == nil || !strings.Contains(err.Error(), "store") {
		t.Errorf("a mount of the store: %v", err)
	}
	dir := add(t, v, "/parent", "x\n", nil)
	other := t.TempDir()
	if err := os.Symlink(other, filepath.Join(dir, "link")); err != nil {
		t.Skip(err)
	}
	err := v.AddMount(limited(t), vm.Mount{HostPath: filepath.Join(dir, "link"), GuestPath: "/link"})
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a path through a link in a directory that the guest can change: %v", err)
	}
}
