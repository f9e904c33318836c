//go:build linux

package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/images"
	"agentvm/images/storetest"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/guest/supervisor"
	"agentvm/internal/host/platform"
	"agentvm/internal/machine/initramfs"
	"agentvm/internal/machine/kernel"
	"agentvm/internal/test/qemutest"
)

// forEach runs a test for each architecture.
func forEach(t *testing.T, test func(t *testing.T, architecture platform.Architecture)) {
	t.Helper()
	for _, architecture := range platform.Supported() {
		t.Run(string(architecture), func(t *testing.T) { test(t, architecture) })
	}
}

// qemuMachine is QEMU with our kernel, our supervisor and a root disk.
type qemuMachine struct {
	dir     string
	console bytes.Buffer // complete when ended is closed
	ended   chan struct{}
	conn    net.Conn // control port
}

// machineMemory is in MiB.
const machineMemory = 256

// bootMachine starts a machine; it is off when the test ends. Without a root there is no disk.
func bootMachine(t *testing.T, architecture platform.Architecture, root string, arguments ...string) *qemuMachine {
	t.Helper()
	command := qemutest.Machine(t, architecture)
	m := &qemuMachine{dir: t.TempDir(), ended: make(chan struct{})}
	listener, err := net.Listen("unix", m.path("control"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	image, err := kernel.Image(architecture)
	if err != nil {
		t.Fatal(err)
	}
	m.write(t, "kernel", image)
	m.write(t, "initramfs", firstRoot(t, architecture))
	command = append(command, "-m", fmt.Sprint(machineMemory), "-nodefaults", "-display", "none", "-monitor", "none", "-no-reboot",
		"-global", "virtio-mmio.force-legacy=false", "-kernel", m.path("kernel"), "-initrd", m.path("initramfs"),
		"-append", "console=hvc0 quiet reboot=panic_warm fb_tunnels=none dummy.numdummies=0 ifb.numifbs=0", "-device", "virtio-rng-device", "-device", "virtio-serial-device",
		"-chardev", "stdio,id=console", "-device", "virtconsole,chardev=console",
		"-chardev", "socket,id=control,path="+m.path("control"),
		"-device", "virtserialport,chardev=control,name=agentvm.control",
	)
	if root != "" {
		command = append(command, "-drive", "if=none,id=root,format=raw,readonly=on,file="+root, "-device", "virtio-blk-device,drive=root")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute) // TestMachine takes one, and several on a busy host
	qemu := exec.CommandContext(ctx, command[0], append(command[1:], arguments...)...)
	qemu.Stdout, qemu.Stderr, qemu.WaitDelay = &m.console, &m.console, time.Second
	if err := qemu.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = qemu.Wait(); close(m.ended); _ = listener.Close() }()
	t.Cleanup(func() {
		cancel()
		<-m.ended
		if t.Failed() {
			t.Logf("console:\n%s", m.console.String())
		}
	})
	if m.conn, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.conn.Close() })
	return m
}

func (m *qemuMachine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *qemuMachine) write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(m.path(name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// off waits until the machine has powered itself off, and returns its console.
func (m *qemuMachine) off(t *testing.T) string {
	t.Helper()
	select {
	case <-m.ended:
	case <-time.After(5 * time.Minute):
		t.Error("the machine has not switched itself off")
		return ""
	}
	return m.console.String()
}

func firstRoot(t testing.TB, architecture platform.Architecture) []byte {
	t.Helper()
	program, err := supervisor.Binary(architecture)
	if err != nil {
		t.Fatal(err)
	}
	return initramfs.Of(program)
}

func dial(t *testing.T, m *qemuMachine) *guestrpc.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c, err := guestrpc.Dial(ctx, keptOpen{m.conn}, guestrpc.ClientConfig{Hold: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// qemuNetwork has the parameters of a guest on QEMU's user network (qemu(1), -netdev user).
func qemuNetwork() *guestrpc.NetworkParams {
	return &guestrpc.NetworkParams{
		Address: netip.MustParsePrefix("10.0.2.15/24"), Gateway: netip.MustParseAddr("10.0.2.2"), DNS: []netip.Addr{netip.MustParseAddr("10.0.2.3")},
		Search: []string{"a.example"},
	}
}

// TestMachine runs everything that needs a real kernel below PID 1.
func TestMachine(t *testing.T) { forEach(t, testMachine) }

func testMachine(t *testing.T, architecture platform.Architecture) {
	store := t.TempDir()
	image := storetest.FillFor(t, store, architecture)
	alpine := image.Name != images.BuiltinName
	share, readOnly, copied := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.WriteFile(share+"/greeting", []byte("hello from the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	bulk := t.TempDir() + "/bulk"
	m := bootMachine(t, architecture, storetest.RawDisk(t, store, image), append(append(bulkArguments(bulk), qemutest.Shares(t, machineMemory, share, readOnly, copied)...),
		"-netdev", "user,id=net", "-device", "virtio-net-device,netdev=net")...)
	c := dial(t, m)
	t.Cleanup(func() { _ = c.Close() }) // of whichever is the last one
	started := time.Now()
	info, err := c.Start(t.Context(), guestrpc.StartParams{
		Time: started, Hostname: "box", Env: []string{"BASE=1"},
		Mounts: []guestrpc.Mount{
			{Tag: "share0", Target: "/mnt/host"}, {Tag: "share1", Target: "/mnt/fixed", ReadOnly: true}, {Tag: "share2", Target: "/mnt/copied", ReadOnly: true, CopyOnWrite: true},
		},
		Network:     qemuNetwork(),
		UnixSockets: []guestrpc.UnixSocket{{Path: "/run/host/s", ID: "backwards", Mode: 0o600}, {Path: "/run/host/denied", ID: "other"}},
		Connect:     hostSocket(t), CACertificate: []byte("-----BEGIN CERTIFICATE-----\nours\n-----END CERTIFICATE-----\n"),
	})
	if err != nil || info.Release != kernel.Version || info.NetworkWarning != "" {
		t.Fatalf("Start: %+v, %v", info, err)
	}
	sh := func(script string) guestrpc.ExecParams {
		return guestrpc.ExecParams{Args: []string{"/bin/sh", "-c", script}}
	}
	for _, tt := range []struct {
		name string
		give guestrpc.ExecParams
		want result
	}{
		{"true", guestrpc.ExecParams{Args: []string{"/bin/true"}}, result{}},
		{"streams", sh("echo o; echo e >&2; exit 4"), result{Stdout: "o\n", Stderr: "e\n", Code: 4}},
		{"signal", sh("kill -9 $$"), result{Code: 137, Signal: 9}},
		{"not found", guestrpc.ExecParams{Args: []string{"no-such"}}, result{Code: 127, Stderr: "agentvm: command not found: \"no-such\"\n"}},
		{"host name", sh("hostname"), result{Stdout: "box\n"}},
		{"environment", sh("echo $BASE $HOME $PATH"), result{Stdout: "1 /root " + defaultPath + "\n"}},
		{"init", sh("cat /proc/1/comm; echo $PPID"), result{Stdout: "init\n1\n"}},
		{"reserved signals", sh("kill -32 1; kill -34 1; sleep 0.1; cat /proc/1/comm"), result{Stdout: "init\n"}},
		{"mounts", sh("for d in /dev/pts /dev/shm /run /tmp /sys/fs/cgroup /proc; do grep -q \" $d \" /proc/mounts || echo $d; done"), result{}},
		{"writable", sh("echo x >/root/f && cat /root/f"), result{Stdout: "x\n"}},
		{"loopback", sh("ping -c 1 -w 20 127.0.0.1 >/dev/null && echo up"), result{Stdout: "up\n"}},
		{"share", sh("cat /mnt/host/greeting; echo back >/mnt/host/answer"), result{Stdout: "hello from the host\n"}},
		{"read-only share", sh("touch /mnt/fixed/x 2>/dev/null || echo refused"), result{Stdout: "refused\n"}},
		{"quiet when idle", sh("cat /proc/sys/vm/compaction_proactiveness"), result{Stdout: "0\n"}},
		{"many watches", sh("cat /proc/sys/fs/inotify/max_user_watches /proc/sys/fs/inotify/max_user_instances"), result{Stdout: "524288\n1024\n"}},
		{"echo requests of every group", sh("tr '\t' ' ' </proc/sys/net/ipv4/ping_group_range"), result{Stdout: "0 2147483647\n"}},
		{"huge pages on request", sh("cat /sys/kernel/mm/transparent_hugepage/enabled; test $(cat /proc/sys/vm/min_free_kbytes) -lt 8192 && echo small"), result{Stdout: "always [madvise] never\nsmall\n"}},
		{"own cgroup", sh("grep -c '^0::/exec/' /proc/self/cgroup"), result{Stdout: "1\n"}},
		{"no zombies", sh("for i in 1 2 3; do sh -c 'sleep 0 & exec true'; done; for i in $(seq 100); do ps -o stat= 2>/dev/null | grep -q ^Z || break; sleep 0.1; done; ps -o stat= 2>/dev/null | grep -c ^Z"), result{Stdout: "0\n", Code: 1}},
		{"devices", sh("test -c /dev/null && test -e /dev/fd/1 && test -w /dev/fuse && test -w /dev/net/tun && echo all"), result{Stdout: "all\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, run(t, c, tt.give)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if b, err := os.ReadFile(share + "/answer"); string(b) != "back\n" {
		t.Errorf("written through the share: %q, %v", b, err)
	}
	t.Run("user", func(t *testing.T) {
		if !alpine {
			t.Skip("the built-in root has no such user")
		}
		got := run(t, c, guestrpc.ExecParams{Args: []string{"/bin/sh", "-c", "id -un; id -gn; echo $HOME"}, User: "games", Dir: "/"})
		if diff := cmp.Diff(result{Stdout: "games\ngames\n/usr/games\n"}, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
	t.Run("clock", func(t *testing.T) { testClock(t, c) })
	t.Run("kill", func(t *testing.T) { testKillAll(t, c) })
	t.Run("concurrent", func(t *testing.T) { testEight(t, c) })
	t.Run("round trip", func(t *testing.T) { testMegabyte(t, c) })
	t.Run("shell", func(t *testing.T) { testShell(t, c, "/bin/sh") })
	t.Run("terminal", func(t *testing.T) {
		got := run(t, c, guestrpc.ExecParams{Args: []string{"/bin/sh", "-c", "tty; stty size"}, Terminal: &guestrpc.Size{Columns: 90, Rows: 30}})
		if want := "/dev/pts/0\r\n30 90\r\n"; got.Stdout != want {
			t.Errorf("got %q, want %q", got.Stdout, want)
		}
	})
	t.Run("network", func(t *testing.T) { testNetwork(t, c) })
	t.Run("sockets", func(t *testing.T) { testSockets(t, c, alpine) })
	t.Run("files", func(t *testing.T) { testFiles(t, c, bulk) })
	t.Run("layer begins by the host's clock", func(t *testing.T) {
		l, err := dialFiles(t, bulk).Layer(t.Context(), "/mnt/copied")
		if err != nil || !l.State().Began.Equal(started) {
			t.Errorf("%+v, %v; started at %v", l.State(), err, started)
		}
		_ = l.Close()
	})
	t.Run("local connections", func(t *testing.T) { testLocalTCP(t, c, alpine) })
	t.Run("sockets of the host", func(t *testing.T) { testHostSocket(t, c, alpine) })
	t.Run("certificate", func(t *testing.T) {
		if got := run(t, c, guestrpc.ExecParams{Args: []string{"grep", "-c", "ours", "/etc/ssl/certs/ca-certificates.crt"}}); got.Stdout != "1\n" {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("denials", func(t *testing.T) { testDenials(t, c) })
	t.Run("stats", func(t *testing.T) {
		s, err := c.Stats(t.Context())
		if err != nil || s.MemoryTotal < 200<<20 || s.MemoryAvailable > s.MemoryTotal || s.Processes < 1 || s.System == 0 {
			t.Errorf("got %+v, %v", s, err)
		}
	})
	t.Run("garbage", func(t *testing.T) { c = testReconnect(t, m, c) })
	if err := c.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if console := m.off(t); console != "" {
		t.Errorf("the console is not quiet:\n%s", console)
	}
}

func testClock(t *testing.T, c *guestrpc.Client) {
	begin := time.Now()
	want := begin.Add(1000 * time.Hour)
	if err := c.SyncClock(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	got, err := strconv.ParseInt(strings.TrimSpace(run(t, c, guestrpc.ExecParams{Args: []string{"date", "+%s"}}).Stdout), 10, 64)
	if err != nil || time.Unix(got, 0).Sub(want).Abs() > 10*time.Second+time.Since(begin) {
		t.Errorf("the guest's clock says %v (%v), want %v", time.Unix(got, 0), err, want)
	}
}

// testNetwork checks the card's parameters, and the IPv6 address by router advertisement.
func testNetwork(t *testing.T, c *guestrpc.Client) {
	for _, tt := range []struct{ name, script, want string }{
		{"address", "ip -4 addr show eth0 | grep -o 'inet [0-9./]*'", "inet 10.0.2.15/24\n"},
		{"default route", "ip route | grep -o 'default via [0-9.]* dev eth0'", "default via 10.0.2.2 dev eth0\n"},
		{
			"resolv.conf", "cat /etc/resolv.conf; stat -c '%a %F' /etc/resolv.conf; ls -A /etc | grep -c agentvm",
			"# written by agentvm when the VM's network starts\nsearch a.example\nnameserver 10.0.2.3\n644 regular file\n0\n",
		},
		{
			"IPv6 by advertisement", "for i in $(seq 50); do ip -6 addr show eth0 | grep -v tentative | grep -o 'inet6 fec0:' && break; sleep 0.1; done",
			"inet6 fec0:\n",
		},
		{"IPv6 route", "ip -6 route | grep -o 'default via fe80::2 dev eth0'", "default via fe80::2 dev eth0\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := run(t, c, guestrpc.ExecParams{Args: []string{"/bin/sh", "-c", tt.script}}); got.Stdout != tt.want {
				t.Errorf("got %+v, want %q", got, tt.want)
			}
		})
	}
}

// testSockets finds a program in the guest by its socket.
func testSockets(t *testing.T, c *guestrpc.Client, alpine bool) {
	server := []string{"nc", "-l", "-p", "4711", "-s", "127.0.0.1"}
	if !alpine { // whose nc does not listen
		server = []string{"httpd", "-f", "-p", "127.0.0.1:4711"}
	}
	p, err := c.Exec(t.Context(), guestrpc.ExecParams{Args: server, User: "1000"})
	if err != nil {
		t.Fatal(err)
	}
	want := guestrpc.Socket{
		Family: 4, Network: "tcp", Local: netip.MustParseAddrPort("127.0.0.1:4711"), Remote: netip.MustParseAddrPort("0.0.0.0:0"),
		State: guestrpc.SocketListen, UID: 1000, Process: server[0],
	}
	var got guestrpc.Socket
	for begin := time.Now(); got.PID == 0 && time.Since(begin) < 5*time.Minute; time.Sleep(10 * time.Millisecond) {
		if got, _, err = c.FindSocket(t.Context(), guestrpc.SocketQuery{Network: "tcp", Local: want.Local}); err != nil {
			t.Fatal(err)
		}
	}
	if want.PID = got.PID; got.PID < 2 || got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	list, err := c.Sockets(t.Context())
	if err != nil || !slices.Contains(list, want) {
		t.Errorf("%+v, %v does not have %+v", list, err, want)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	_, _ = p.Wait(t.Context())
}

func testDenials(t *testing.T, c *guestrpc.Client) {
	if err := c.ReportDenials(t.Context(), []string{`{"a":1}`, "text"}); err != nil {
		t.Fatal(err)
	}
	got := run(t, c, guestrpc.ExecParams{Args: []string{"/bin/sh", "-c", "cat /run/agentvm/denials"}, User: "1000"})
	if got.Stdout != "{\"a\":1}\ntext\n" {
		t.Errorf("got %+v", got)
	}
}

// testKillAll kills a program whose child has made a session of its own.
func testKillAll(t *testing.T, c *guestrpc.Client) {
	p, err := c.Exec(t.Context(), guestrpc.ExecParams{Args: []string{"/bin/sh", "-c", "setsid sleep 4711 & sleep 4711"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(t.Context()); err != nil || status.Signal != 9 {
		t.Errorf("got %+v, %v", status, err)
	}
	got := run(t, c, guestrpc.ExecParams{Args: []string{"/bin/sh", "-c", "grep -l 471[1] /proc/[0-9]*/cmdline 2>/dev/null"}})
	if got.Stdout != "" {
		t.Errorf("still there: %s", got.Stdout)
	}
}

func testEight(t *testing.T, c *guestrpc.Client) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			got := run(t, c, guestrpc.ExecParams{Args: []string{"/bin/sh", "-c", fmt.Sprintf("sleep 0.3; echo %d", i)}})
			if want := fmt.Sprintf("%d\n", i); got.Stdout != want {
				t.Errorf("got %+v, want %q", got, want)
			}
		})
	}
	wg.Wait()
}

func testMegabyte(t *testing.T, c *guestrpc.Client) {
	data := make([]byte, 0, 1<<20)
	for i := uint64(0); len(data) < cap(data); i++ {
		data = binary.LittleEndian.AppendUint64(data, i*0x9e3779b97f4a7c15)
	}
	got := run(t, c, guestrpc.ExecParams{Args: []string{"cat"}, Stdin: bytes.NewReader(data)})
	if sha256.Sum256([]byte(got.Stdout)) != sha256.Sum256(data) {
		t.Errorf("got %d bytes, want %d, or other ones", len(got.Stdout), len(data))
	}
}

// keptOpen is the control port without its Close: a client that ends does not close the machine's port.
type keptOpen struct{ net.Conn }

func (c keptOpen) Close() error { return c.SetReadDeadline(time.Now()) }

// testReconnect sends garbage in the middle of a session and says hello again.
func testReconnect(t *testing.T, m *qemuMachine, old *guestrpc.Client) *guestrpc.Client {
	garbage := bytes.Repeat([]byte{0, 0, 0, 0, 255, 255, 3, 0, 'x'}, 999)
	if _, err := m.conn.Write(garbage); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	// The old client reads from the same connection; it has to stop before the new one starts.
	stopReading(t, m, old)
	c, err := guestrpc.Dial(ctx, m.conn, guestrpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, c, guestrpc.ExecParams{Args: []string{"echo", "again"}}); got.Stdout != "again\n" {
		t.Errorf("got %+v", got)
	}
	return c
}

func stopReading(t *testing.T, m *qemuMachine, old *guestrpc.Client) {
	t.Helper()
	if err := m.conn.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	<-old.Done()
	if err := m.conn.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
}

func TestMachineWithoutRoot(t *testing.T) {
	forEach(t, func(t *testing.T, architecture platform.Architecture) {
		console := bootMachine(t, architecture, "").off(t)
		if want := "agentvm-guest: fatal: root image: stat /dev/vda: no such file or directory"; !strings.Contains(console, want) {
			t.Errorf("console:\n%s\nwant %q", console, want)
		}
	})
}

func TestMachineWithBadRoot(t *testing.T) {
	qemutest.Need(t)
	disk := t.TempDir() + "/disk"
	if err := os.WriteFile(disk, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	console := bootMachine(t, platform.RISCV64, disk).off(t)
	want := "agentvm-guest: fatal: root image: mount /dev/vda as EROFS: " + syscall.EINVAL.Error()
	if !strings.Contains(console, want) {
		t.Errorf("console:\n%s\nwant %q", console, want)
	}
}
