package vm_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/machine"
	"agentvm/internal/share/mount"
	"agentvm/vm"
)

// mounted adds a host directory at /mnt/host.
func mounted(dir string, readOnly bool) func(*vm.Config) {
	return func(c *vm.Config) {
		c.Mounts = append(c.Mounts, mount.Spec{HostPath: dir, GuestPath: mount.DefaultGuestPath, ReadOnly: readOnly})
	}
}

func TestMounts(t *testing.T) {
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	write(t, secret, "secret")
	host := t.TempDir()
	write(t, filepath.Join(host, "file"), "from the host\n")
	for name, target := range map[string]string{"absolute": secret, "relative": "../" + filepath.Base(outside) + "/secret"} {
		if err := os.Symlink(target, filepath.Join(host, name)); err != nil {
			t.Fatal(err)
		}
	}
	fixed := t.TempDir()
	write(t, filepath.Join(fixed, "file"), "fixed\n")
	v := ownVM(t, func(c *vm.Config) {
		mounted(host, false)(c)
		c.Mounts = append(c.Mounts, mount.Spec{HostPath: fixed, GuestPath: "/srv/fixed", ReadOnly: true})
	})
	wantOutput(t, v, "cat /mnt/host/file /srv/fixed/file", "from the host\nfixed\n")
	wantOutput(t, v, "mkdir /mnt/host/d && echo from the guest >/mnt/host/d/new && mv /mnt/host/d/new /mnt/host/new", "")
	if text, err := os.ReadFile(filepath.Join(host, "new")); string(text) != "from the guest\n" {
		t.Errorf("the guest's file: %q, %v", text, err)
	}
	refused := []struct{ name, line, want string }{
		{"absolute link out", "cat /mnt/host/absolute", "No such file"},
		{"relative link out", "cat /mnt/host/relative", "No such file"},
		{"parent", "cat /mnt/host/../" + filepath.Base(outside) + "/secret", "No such file"},
		{"write to read-only", "echo x >/srv/fixed/file", "Read-only"},
		{"new file in read-only", "touch /srv/fixed/new", "Read-only"},
		{"removal from read-only", "rm /srv/fixed/file", "Read-only"},
		{"read-only made writable", "mount -o remount,rw /srv/fixed && echo x >/srv/fixed/file", ""},
	}
	for _, test := range refused {
		r := mustRun(t, v, vm.Command{Line: test.line})
		if r.ExitCode == 0 || !strings.Contains(string(r.Stderr), test.want) || strings.Contains(string(r.Stdout), "secret") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", test.name, r.ExitCode, r.Stdout, r.Stderr)
		}
	}
	if text, err := os.ReadFile(filepath.Join(fixed, "file")); string(text) != "fixed\n" {
		t.Errorf("the read-only file is %q now, %v", text, err)
	}
}

// TestMountSpecialFiles has programs of the guest meet at a FIFO and a socket in a mount. A FIFO of the host leads to no program of the host.
func TestMountSpecialFiles(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the host's system makes no FIFOs and sockets for a guest")
	}
	needAlpine(t) // for nc
	host := t.TempDir()
	dir, err := os.MkdirTemp("", "s") // t.TempDir's names are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, "answered\n")
			conn.Close()
		}
	}()
	v := ownVM(t, func(c *vm.Config) {
		mounted(host, false)(c)
		c.UnixSockets = []vm.UnixSocket{{Host: listener.Addr().String(), Guest: "/mnt/host/socket", Mode: 0o600}}
	})
	wantOutput(t, v, "cd /mnt/host && stat -c %F socket && nc local:/mnt/host/socket", "socket\nanswered\n")
	wantOutput(t, v, "cd /mnt/host && mkfifo fifo && stat -c %F fifo && { echo through >fifo & cat fifo; wait; }", "fifo\nthrough\n")
	for name, want := range map[string]os.FileMode{"fifo": os.ModeNamedPipe, "socket": os.ModeSocket} {
		if info, err := os.Lstat(filepath.Join(host, name)); err != nil || info.Mode().Type() != want {
			t.Errorf("on the host %s is %v, %v", name, info, err)
		}
	}
	reader, err := os.OpenFile(filepath.Join(host, "fifo"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	wantOutput(t, v, "cd /mnt/host && { echo for the guest >fifo & cat fifo; wait; }", "for the guest\n")
	if n, err := reader.Read(make([]byte, 64)); n > 0 || err != nil && err != io.EOF {
		t.Errorf("the host's reader got %d bytes, %v", n, err)
	}
	if r := mustRun(t, v, vm.Command{Line: "mknod /mnt/host/null c 1 3"}); r.ExitCode == 0 {
		t.Error("the guest made a device")
	}
}

// TestMountCoherence has the host change what the guest has read: the next open sees it, whatever the guest's kernel keeps in memory.
func TestMountCoherence(t *testing.T) {
	host := t.TempDir()
	file := filepath.Join(host, "file")
	v := ownVM(t, mounted(host, false))
	wantOutput(t, v, "cat /mnt/host/file 2>/dev/null || echo none", "none\n")
	for i := range 30 { // with the same size, larger and smaller ones, and as another file
		text := strings.Repeat(fmt.Sprintln(i), 1+i*7919%2000)
		if i%3 == 2 {
			write(t, file+".new", text)
			if err := os.Rename(file+".new", file); err != nil {
				t.Fatal(err)
			}
		} else {
			write(t, file, text)
		}
		wantOutput(t, v, "cat /mnt/host/file | sha256sum", fmt.Sprintf("%x  -\n", sha256.Sum256([]byte(text))))
	}
	write(t, file, "short\n")
	wantOutput(t, v, "cat /mnt/host/file; echo from the guest >>/mnt/host/file; cat /mnt/host/file", "short\nshort\nfrom the guest\n")
	size := func() string { return string(mustRun(t, v, vm.Command{Line: "stat -c %s /mnt/host/file"}).Stdout) }
	size()
	changed := time.Now()
	write(t, file, "1234567")
	for size() != "7\n" {
		if time.Since(changed) > 10*time.Second { // it takes one, on a host that is not busy
			t.Fatal("stat does not see what the host has changed")
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, v, "cat /mnt/host/file 2>/dev/null || echo none", "none\n")

	// A listing has what is there at opendir, also when the guest has kept one.
	if err := os.Mkdir(filepath.Join(host, "listed"), 0o755); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for i := range 25 {
		for _, name := range []string{fmt.Sprintf("old%03d", i), fmt.Sprintf("new%03d", i)} {
			write(t, filepath.Join(host, "listed", name), "")
			names[name] = true
		}
		if gone := fmt.Sprintf("old%03d", i/2); i%2 == 1 {
			if err := os.Remove(filepath.Join(host, "listed", gone)); err != nil {
				t.Fatal(err)
			}
			delete(names, gone)
		}
		text := strings.Join(slices.Sorted(maps.Keys(names)), "\n") + "\n"
		wantOutput(t, v, "ls /mnt/host/listed; ls /mnt/host/listed; sleep 0.05; ls /mnt/host/listed; ls /mnt/host/listed", strings.Repeat(text, 4))
		wantOutput(t, v, "cd /mnt/host/listed; touch mine; ls | grep -c mine; rm mine; ls", "1\n"+text)
	}

	// What the guest has mapped and the host has cut off is an error of the program that uses it.
	wantOutput(t, v, "cp /bin/busybox /mnt/host/busybox && /mnt/host/busybox sleep 0; echo $?", "0\n")
	if err := os.Truncate(filepath.Join(host, "busybox"), 4096); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, v, "/mnt/host/busybox sleep 0 >/dev/null 2>&1; test $? -gt 0 && echo ended", "ended\n")
}

// TestMountSizeDuringEvents: the next open has the size of what the host has written, also while the host still changes the file's mode, of which
// the guest's kernel hears when it likes.
func TestMountSizeDuringEvents(t *testing.T) {
	host := t.TempDir()
	file := filepath.Join(host, "file")
	write(t, file, "")
	v := ownVM(t, mounted(host, false))
	end := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() {
		for mode := os.FileMode(0o600); ; mode ^= 0o044 {
			select {
			case <-end:
				return
			default:
			}
			_ = os.Chmod(file, mode)
		}
	})
	defer changing.Wait()
	defer close(end)
	for i := range 60 {
		text := strings.Repeat(fmt.Sprintln(i), 1+i*7919%2000)
		write(t, file, text)
		wantOutput(t, v, "cat /mnt/host/file | sha256sum", fmt.Sprintf("%x  -\n", sha256.Sum256([]byte(text)))) // BusyBox's cat is sendfile(2)
	}
}

// TestMountLarge moves more than a request holds, and more entries than one lists.
func TestMountLarge(t *testing.T) {
	host := t.TempDir()
	content := make([]byte, 5<<20+12345)
	for i := range content {
		content[i] = byte(i * i >> 7)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	write(t, filepath.Join(host, "in"), string(content))
	if err := os.Mkdir(filepath.Join(host, "many"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		write(t, filepath.Join(host, "many", fmt.Sprintf("a file with a long name, number %d", i)), "")
	}
	v := ownVM(t, mounted(host, false))
	wantOutput(t, v, "for i in 1 2; do sha256sum </mnt/host/in; done; dd if=/mnt/host/in of=/mnt/host/out bs=1M 2>/dev/null; sha256sum </mnt/host/out",
		strings.Repeat(sum+"  -\n", 3))
	if got, err := os.ReadFile(filepath.Join(host, "out")); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	wantOutput(t, v, "ls /mnt/host/many | wc -l; ls -l /mnt/host/many | grep -c 'number'; rm -r /mnt/host/many; ls /mnt/host", "3000\n3000\nin\nout\n")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestMountEvents has programs of the guest watch a mount with inotify while the host changes it. Of its own changes the guest learns once, and
// stat sees the host's before what it had was no longer valid.
func TestMountEvents(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the host's system does not report changes")
	}
	needAlpine(t) // for inotifyd
	host := t.TempDir()
	for _, name := range []string{"changed", "removed", "moved", "sub/inner"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(host, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(host, name), "before\n")
	}
	v := ownVM(t, mounted(host, false))
	wantOutput(t, v, "cd /mnt/host && ls -lR >/dev/null && { inotifyd - /mnt/host:cnmydw /mnt/host/sub:cnmydw >/tmp/events 2>&1 & } && stat -c %s changed", "7\n")
	waitFor(t, v, "[ $(cat /proc/$(pidof inotifyd)/fdinfo/* | grep -c ^inotify) = 2 ]") // watches
	path := func(name string) string { return filepath.Join(host, name) }
	write(t, path("made"), "x")
	write(t, path("changed"), "longer than before\n")
	write(t, path("sub/inner"), "longer than before\n")
	for _, do := range []func() error{
		func() error { return os.Remove(path("removed")) },
		func() error { return os.Rename(path("moved"), path("sub/moved")) },
		func() error { return os.Mkdir(path("sub/dir"), 0o755) },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	wantOutput(t, v, "cd /mnt/host && echo >own && rm own && mkdir sub/own; for i in $(seq 100); do grep -q sub.own /tmp/events && grep -q sub.dir /tmp/events && break; sleep 0.5; done; sleep 0.5; stat -c %s changed", "19\n")
	events := string(mustRun(t, v, vm.Command{Line: "cat /tmp/events"}).Stdout)
	for _, want := range []string{
		"n\t/mnt/host\tmade", "w\t/mnt/host\tmade", "c\t/mnt/host\tchanged", "c\t/mnt/host/sub\tinner", "d\t/mnt/host\tremoved", "m\t/mnt/host\tmoved",
		"y\t/mnt/host/sub\tmoved", "n\t/mnt/host/sub\tdir", "n\t/mnt/host\town", "d\t/mnt/host\town", "n\t/mnt/host/sub\town",
	} {
		// The host's system may have said more than once that a file was written; of its own changes the guest hears once.
		if n := strings.Count(events, want+"\n"); n == 0 || n > 1 && strings.HasSuffix(want, "own") {
			t.Errorf("%q is %d times in the events:\n%s", want, n, events)
		}
	}
	wantOutput(t, v, "killall inotifyd; for i in $(seq 100); do umount /mnt/host 2>/dev/null && echo unmounted && break; sleep 0.1; done", "unmounted\n")
}

// TestMountMany mounts as many directories as a VM can have.
func TestMountMany(t *testing.T) {
	const count = machine.MaxShares
	var want, line strings.Builder
	v := ownVM(t, func(c *vm.Config) {
		for i := range count {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "file"), fmt.Sprintln(i))
			guest := fmt.Sprintf("/mnt/%d", i)
			c.Mounts = append(c.Mounts, mount.Spec{HostPath: dir, GuestPath: guest})
			fmt.Fprintf(&line, "cat %s/file && dd if=/dev/zero of=%s/large bs=1M count=3 2>/dev/null & ", guest, guest)
			fmt.Fprintln(&want, i)
		}
	})
	got := strings.Fields(string(mustRun(t, v, vm.Command{Line: line.String() + "wait; stat -c %s /mnt/*/large | uniq -c"}).Stdout))
	slices.Sort(got)
	expected := append(strings.Fields(want.String()), fmt.Sprint(count), fmt.Sprint(3<<20))
	slices.Sort(expected)
	if !slices.Equal(got, expected) {
		t.Errorf("%q, want %q", got, expected)
	}
}
