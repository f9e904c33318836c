package daemon

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/vm"
)

// openMountChannel connects as the server of a mount.
func (d *inside) openMountChannel(t *testing.T) net.Conn {
	t.Helper()
	st, err := d.paths().readState("dev")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := openChannel(t.Context(), d.paths(), st, Mount)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn
}

// wantEnd waits for the end of a connection.
func wantEnd(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection does not end: %v", err)
	}
}

func key(letter string) string { return strings.Repeat(letter, offerKey) }

// offer offers a mount, and fails when it is refused.
func (d *inside) offer(t *testing.T, o mountOffer) net.Conn {
	t.Helper()
	conn := d.openMountChannel(t)
	var w welcome
	if err := errors.Join(writeMessage(conn, o), readMessage(conn, &w)); err != nil || w.Error != "" {
		t.Fatalf("an offer: %+v, %v", w, err)
	}
	return conn
}

// TestOfferedMount: the daemon passes a server's connection to the VM when a client asks for it, and no other time.
func TestOfferedMount(t *testing.T) {
	d, c := startUsed(t, Config{HibernateAfter: Duration(time.Millisecond)})
	o := mountOffer{Key: key("a"), Mount: "/host:/guest:ro"}
	o.Identity.Path, o.Identity.Real = "/host", "/host"
	conn := d.offer(t, o)
	if mounts, err := c.Mounts(t.Context()); err != nil || len(mounts) > 0 {
		t.Errorf("mounts that were only offered: %+v, %v", mounts, err)
	}
	if err := c.Client.Change(t.Context(), daemonrpc.Change{AddMount: key("b")}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a mount that was not offered: %v", err)
	}
	if err := c.Client.Change(t.Context(), daemonrpc.Change{AddMount: o.Key}); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Change(t.Context(), daemonrpc.Change{AddMount: o.Key}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("the same mount again: %v", err)
	}
	want := vm.Mount{HostPath: "/host", GuestPath: "/guest", ReadOnly: true}
	mounts, err := c.Mounts(t.Context())
	if err != nil || len(mounts) != 1 || mounts[0].Mount.String() != want.String() || mounts[0].Identity != o.Identity || !mounts[0].Added {
		t.Errorf("mounts: %+v, %v", mounts, err)
	}
	if _, err := conn.Write([]byte("FUSE")); err != nil {
		t.Error(err)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(d.vm.served[0], b); err != nil || string(b) != "FUSE" {
		t.Errorf("the VM has %q of the connection, %v", b, err)
	}
	if info, err := c.Info(t.Context()); err != nil || info.Clients != 1 {
		t.Errorf("a server counts as a client: %+v, %v", info, err)
	}
	// A VM with an added mount is not hibernated, one without is.
	if err := mayLeave(t.Context(), d.vm, nil); err == nil || !strings.Contains(err.Error(), "/guest") {
		t.Errorf("hibernation: %v", err)
	}
	if err := c.RemoveMount(t.Context(), "/guest", false); err != nil {
		t.Error(err)
	}
	wantEnd(t, conn)
	if err := mayLeave(t.Context(), d.vm, nil); err != nil {
		t.Errorf("hibernation: %v", err)
	}
	var kinds []string
	text, err := os.ReadFile(d.paths().events())
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "mount-") {
			kinds = append(kinds, line)
		}
	}
	if err != nil || len(kinds) != 2 || !strings.Contains(kinds[0], "/host:/guest:ro") || !strings.Contains(kinds[1], `"mount-removed","message":"/guest"`) {
		t.Errorf("events: %q, %v", kinds, err)
	}
}

// TestHostileOffers: what is not an offer ends its connection, and nothing else.
func TestHostileOffers(t *testing.T) {
	d, c := startUsed(t, Config{})
	large := binary.BigEndian.AppendUint32(nil, 1<<31)
	for _, test := range []struct {
		name string
		send func(net.Conn) error
		want string // the answer's error; none: there is no answer
	}{
		{"nothing", func(net.Conn) error { return nil }, ""},
		{"half a message", func(c net.Conn) error { _, err := c.Write([]byte{0, 0, 0, 100, '{'}); return err }, ""},
		{"a large message", func(c net.Conn) error { _, err := c.Write(large); return err }, "no length"},
		{"no JSON", func(c net.Conn) error { _, err := c.Write([]byte{0, 0, 0, 1, 'x'}); return err }, "invalid character"},
		{"no key", func(c net.Conn) error { return writeMessage(c, mountOffer{Mount: "/a:/b"}) }, "a key of 0 bytes"},
		{"no mount", func(c net.Conn) error { return writeMessage(c, mountOffer{Key: key("a")}) }, "empty"},
		{"the root", func(c net.Conn) error { return writeMessage(c, mountOffer{Key: key("a"), Mount: "/a:/"}) }, "root"},
		{"a path out", func(c net.Conn) error { return writeMessage(c, mountOffer{Key: key("a"), Mount: "/a:/b/../../c"}) }, ".."},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn := d.openMountChannel(t)
			if err := test.send(conn); err != nil {
				t.Fatal(err)
			}
			var w welcome
			err := readMessage(conn, &w)
			if err == nil && (test.want == "" || !strings.Contains(w.Error, test.want)) || err != nil && test.want != "" {
				t.Errorf("the answer: %+v, %v; want %q", w, err, test.want)
			}
			wantEnd(t, conn)
		})
	}
	first := d.offer(t, mountOffer{Key: key("0"), Mount: "/a:/b"})
	for i := 1; i < maxOffers; i++ {
		d.offer(t, mountOffer{Key: key(string(rune('0' + i))), Mount: "/a:/b"})
	}
	for letter, want := range map[string]string{"0": "already", "x": "offered already"} {
		conn := d.openMountChannel(t)
		var w welcome
		if err := errors.Join(writeMessage(conn, mountOffer{Key: key(letter), Mount: "/a:/b"}), readMessage(conn, &w)); err != nil || !strings.Contains(w.Error, want) {
			t.Errorf("an offer too many: %+v, %v", w, err)
		}
		wantEnd(t, conn)
	}
	if _, err := c.Info(t.Context()); err != nil {
		t.Errorf("the daemon: %v", err)
	}
	if err := c.Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}
	wantEnd(t, first)
}

// TestAddedMount: the server of an added mount is a process that reaches one directory. It ends with the mount, with the VM and with a killed
// daemon; when it is killed itself, programs get errors, and the mount can be removed and added again.
func TestAddedMount(t *testing.T) {
	config := realConfig(t)
	room := t.TempDir()
	for _, dir := range []string{"given", "one", "two"} {
		if err := os.Mkdir(filepath.Join(room, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(room, dir, "file"), []byte(dir+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config.Mounts = []vm.Mount{{HostPath: filepath.Join(room, "given"), GuestPath: "/given"}}
	config.NetworkLog = filepath.Join(room, "two", "network.log")
	s := testStore(t, roleReal)
	c, err := s.Start(t.Context(), "dev", config, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := s.paths("dev")
	showLog(t, p)
	defer func() {
		_, _ = s.Stop(t.Context(), "dev", 0)
		_ = c.Close()
	}()
	run := func(line, want string) {
		t.Helper()
		if out, o := shell(t, c, daemonrpc.JobOptions{}, line); out != want {
			t.Errorf("%s: %q, %+v; want %q", line, out, o, want)
		}
	}
	refused := func(m vm.Mount, want string) {
		t.Helper()
		if err := c.AddMount(t.Context(), m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("mount %s: %v, want %q", m, err, want)
		}
	}
	one := vm.Mount{HostPath: filepath.Join(room, "one"), GuestPath: "/one"}
	if err := c.AddMount(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	run("cat /one/file; mkdir /one/d && echo new >/one/d/new && cat /one/d/new; rm -r /one/d", "one\nnew\n")
	refused(vm.Mount{HostPath: filepath.Join(room, "none"), GuestPath: "/x"}, "the host directory does not exist")
	refused(vm.Mount{HostPath: filepath.Join(room, "one"), GuestPath: "/given"}, "already")
	refused(vm.Mount{HostPath: filepath.Join(room, "two"), GuestPath: "/two"}, "where the machine could change it") // its network.log
	refused(vm.Mount{HostPath: config.StoreDir, GuestPath: "/two"}, "what machines boot")
	if err := c.AddMount(t.Context(), vm.Mount{HostPath: filepath.Join(room, "two"), GuestPath: "/two", ReadOnly: true}); err != nil {
		t.Error(err)
	}
	run("cat /two/file; touch /two/x 2>/dev/null || echo refused", "two\nrefused\n")
	if info, err := c.Info(t.Context()); err != nil || len(info.Mounts) != 3 {
		t.Errorf("info: %+v, %v", info, err)
	}

	first := mountServers(t, s.Dir)
	if len(first) != 2 {
		t.Fatalf("servers: %v", first)
	}
	wantConfined(t, first[0])
	for _, pid := range first {
		kill(t, pid)
	}
	run("cat /one/file 2>/dev/null || echo error; ls /one 2>/dev/null || echo error", "error\nerror\n")
	if mounts, err := c.Mounts(t.Context()); err != nil || len(mounts) != 3 || mounts[1].Error == "" {
		t.Errorf("mounts: %+v, %v", mounts, err)
	}
	for _, guest := range []string{"/one", "/two"} {
		if err := c.RemoveMount(t.Context(), guest, false); err != nil {
			t.Error(err)
		}
	}
	if err := c.AddMount(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	run("cat /one/file", "one\n")
	if err := c.RemoveMount(t.Context(), "/one", false); err != nil {
		t.Error(err)
	}
	await(t, "the end of the server", func() bool { return len(mountServers(t, s.Dir)) == 0 })

	if err := c.AddMount(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	kill(t, c.Pid())
	await(t, "the end of the server of a killed daemon", func() bool { return len(mountServers(t, s.Dir)) == 0 })
	_ = c.Close()
	if c, err = s.Start(t.Context(), "dev", config, nil); err != nil {
		t.Fatal(err)
	}
	run("cat /one/file 2>/dev/null; cat /given/file", "given\n") // the next start does not have it
	if err := c.AddMount(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}
	await(t, "the end of the server of a VM that was stopped", func() bool { return len(mountServers(t, s.Dir)) == 0 })
}

func kill(t *testing.T, pid int) {
	t.Helper()
	process, err := os.FindProcess(pid)
	if err == nil {
		err = process.Kill()
	}
	if err != nil {
		t.Error(err)
	}
}
