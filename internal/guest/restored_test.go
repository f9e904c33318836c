//go:build linux

package guest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"agentvm/images/storetest"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/platform"
	"agentvm/internal/test/qemutest"
)

// again begins a new session, as with a machine that has been restored, without ending the session before.
func (m *qemuMachine) again(t *testing.T, old *guestrpc.Client, cfg guestrpc.ClientConfig) *guestrpc.Client {
	t.Helper()
	stopReading(t, m, old)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cfg.Hold = 200 * time.Millisecond
	c, err := guestrpc.Dial(ctx, keptOpen{m.conn}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func script(text string) guestrpc.ExecParams {
	return guestrpc.ExecParams{Args: []string{"/bin/sh", "-c", text}}
}

// expect runs a script and compares its output.
func expect(t *testing.T, c *guestrpc.Client, name, text, want string) {
	t.Helper()
	if got := run(t, c, script(text)); got.Stdout != want {
		t.Errorf("%s: got %+v, want %q", name, got, want)
	}
}

// entropy returns enough bytes for Start, which need not be random in a test.
func entropy() []byte { return bytes.Repeat([]byte{7}, minEntropy) }

// TestMachineContinues tells a machine by Start that it was restored, which it cannot find out otherwise.
func TestMachineContinues(t *testing.T) { forEach(t, machineContinues) }

func machineContinues(t *testing.T, architecture platform.Architecture) {
	dir := t.TempDir()
	root := storetest.RawDisk(t, dir, storetest.FillFor(t, dir, architecture))
	share := t.TempDir()
	m := bootMachine(t, architecture, root, append(qemutest.Shares(t, machineMemory, share),
		"-netdev", "user,id=net", "-device", "virtio-net-device,netdev=net,mac=52:54:00:00:00:01")...)
	c := dial(t, m)
	network := qemuNetwork()
	_, err := c.Start(t.Context(), guestrpc.StartParams{
		Hostname: "first", Env: []string{"A=1", "B=1"}, Mounts: []guestrpc.Mount{{Tag: "share0", Target: "/mnt/a"}}, Network: network,
		UnixSockets: []guestrpc.UnixSocket{{Path: "/run/host/a", ID: "a"}}, Connect: hostSocket(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	const identity = "cat /etc/machine-id"
	id := run(t, c, script(identity)).Stdout
	if !regexp.MustCompile(`^[0-9a-f]{32}\n$`).MatchString(id) {
		t.Errorf("machine-id: %q", id)
	}
	expect(t, c, "hook", `mkdir -p /etc/agentvm/generation.d && cd /etc/agentvm/generation.d && printf '#!/bin/sh\necho "$@" >/tmp/hook\n' >a &&
		printf '#!/bin/sh\nexit 3\n' >b && chmod +x a b && echo x >c && echo ok`, "ok\n")
	if _, err := c.Exec(t.Context(), script("exec sleep 4711")); err != nil {
		t.Fatal(err)
	}

	t.Run("killed", func(t *testing.T) {
		c = m.again(t, c, guestrpc.ClientConfig{})
		info, err := c.Start(t.Context(), guestrpc.StartParams{
			Time: time.Unix(2e9, 0), Hostname: "second", Env: []string{"A=2"}, Mounts: []guestrpc.Mount{{Tag: "share0", Target: "/mnt/b"}}, Network: network,
			UnixSockets: []guestrpc.UnixSocket{{Path: "/run/host/b", ID: "b"}}, Connect: hostSocket(t),
			Restored: &guestrpc.Restored{
				Entropy: entropy(), Generation: 18446744073709551615, GenerationID: [16]byte{0xab, 15: 0xcd}, NewIdentity: true,
				MAC: net.HardwareAddr{0x52, 0x54, 0, 0, 0, 2},
			},
		})
		if err != nil || info.NetworkWarning+info.DiskWarning != "" {
			t.Fatalf("%+v, %v", info, err)
		}
		expect(t, c, "old programs", "grep -l 471[1] /proc/[0-9]*/cmdline 2>/dev/null", "")
		expect(t, c, "clock", "test $(date +%s) -lt 2000000100 && test $(date +%s) -ge 2000000000 && echo ok", "ok\n")
		expect(t, c, "name and environment", "hostname; echo $A$B", "second\n2\n")
		expect(t, c, "shares", "grep -o ' /mnt/. virtiofs' /proc/mounts", " /mnt/b virtiofs\n")
		expect(t, c, "sockets", "ls /run/host", "b\n")
		expect(t, c, "card", "cat /sys/class/net/eth0/address; ip -4 addr show eth0 | grep -o 'inet 10.0.2.1'", "52:54:00:00:00:02\ninet 10.0.2.1\n")
		expect(t, c, "generation", "cat /run/agentvm/generation; stat -c %a /run/agentvm/generation", "18446744073709551615\nab0000000000000000000000000000cd\n644\n")
		expect(t, c, "hooks", "for i in $(seq 1200); do test -s /tmp/hook && break; sleep 0.05; done; cat /tmp/hook", "18446744073709551615 ab0000000000000000000000000000cd\n")
		if got := run(t, c, script(identity)).Stdout; got == id || len(got) != 33 {
			t.Errorf("machine-id %q, was %q", got, id)
		}
	})

	t.Run("kept", func(t *testing.T) {
		stdin, end := io.Pipe()
		defer func() { _ = end.Close() }()
		p := script("cd /mnt/b; echo begun; cat >/tmp/input; echo ended >>/tmp/input; while :; do echo text; done; exec sleep 4712")
		p.Stdin = stdin
		if _, err := c.Exec(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		shell, err := c.OpenShell(t.Context(), guestrpc.ExecParams{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := shell.Run(t.Context(), guestrpc.Command{Line: "sleep 1; echo done >/tmp/shell"}); err != nil {
			t.Fatal(err)
		}
		expect(t, c, "begun", "for i in $(seq 1200); do test -e /tmp/input && break; sleep 0.05; done; echo", "\n")
		c = m.again(t, c, guestrpc.ClientConfig{KeepPrograms: true})
		info, err := c.Start(t.Context(), guestrpc.StartParams{
			Mounts: []guestrpc.Mount{{Tag: "share0", Target: "/mnt/c"}}, Network: network,
			Restored: &guestrpc.Restored{Entropy: entropy(), Generation: 2, KeepPrograms: true},
		})
		if err != nil || info.DiskWarning != "" { // though a program still uses the share of before
			t.Fatalf("%+v, %v", info, err)
		}
		expect(t, c, "share", "echo shared >/mnt/c/file; cat /mnt/c/file", "shared\n")
		expect(t, c, "input", "for i in $(seq 1200); do grep -s ended /tmp/input && break; sleep 0.05; done", "ended\n")
		expect(t, c, "shell", "for i in $(seq 1200); do grep -s done /tmp/shell && break; sleep 0.05; done", "done\n")
		expect(t, c, "program", "grep -l begu[n] /proc/[0-9]*/cmdline | wc -l", "1\n")
		expect(t, c, "shell's end", "for i in $(seq 1200); do grep -ls shell[.] /proc/[0-9]*/cmdline | grep -q . || break; sleep 0.05; done; ls /run/agentvm", "generation\n")
		expect(t, c, "same identity", "cat /sys/class/net/eth0/address", "52:54:00:00:00:02\n")
	})

	t.Run("connections", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		port := listener.Addr().(*net.TCPAddr).Port // QEMU's 10.0.2.2 is the host's loopback
		if _, err := c.Exec(t.Context(), script(fmt.Sprintf("sleep 4713 | nc 10.0.2.2 %d", port))); err != nil {
			t.Fatal(err)
		}
		peer, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = peer.Close() }()
		expect(t, c, "connected", "grep -c 0202000A /proc/net/tcp", "1\n")
		c = m.again(t, c, guestrpc.ClientConfig{KeepPrograms: true})
		if _, err := c.Start(t.Context(), guestrpc.StartParams{
			Network: network, Restored: &guestrpc.Restored{Entropy: entropy(), NewIdentity: true, KeepPrograms: true},
		}); err != nil {
			t.Fatal(err)
		}
		expect(t, c, "reset", "grep -c 0202000A /proc/net/tcp", "0\n")
	})

	t.Run("same session", func(t *testing.T) {
		expect(t, c, "the share's user ends", "kill -9 $(grep -l begu[n] /proc/[0-9]*/cmdline | cut -d/ -f3); while grep -ls begu[n] /proc/[0-9]*/cmdline | grep -q .; do sleep 0.05; done; echo ok", "ok\n")
		for i := range 2 {
			info, err := c.Start(t.Context(), guestrpc.StartParams{
				Env: []string{"A=3"}, Mounts: []guestrpc.Mount{{Tag: "share0", Target: "/mnt/b"}}, Network: network,
				Flags: guestrpc.NoNewPrivileges, Restored: &guestrpc.Restored{Entropy: entropy(), Generation: uint64(i)},
			})
			if err != nil || info.NetworkWarning != "" {
				t.Fatalf("%+v, %v", info, err)
			}
			expect(t, c, "all of it", "echo $A; grep -c /mnt /proc/mounts; cat /run/agentvm/generation | head -1; grep NoNew /proc/self/status | cut -f2",
				fmt.Sprintf("3\n1\n%d\n1\n", i))
		}
	})
	if _, err := c.Start(t.Context(), guestrpc.StartParams{Restored: &guestrpc.Restored{Entropy: []byte("few")}}); err == nil || !strings.Contains(err.Error(), "3 bytes of entropy") {
		t.Errorf("too little entropy: %v", err)
	}
	if err := c.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if console := m.off(t); console != "" {
		t.Errorf("the console is not quiet:\n%s", console)
	}
}

// TestDiskIsLeftClean writes to a disk below the overlay and shuts the machine down. Its journal is empty then.
func TestDiskIsLeftClean(t *testing.T) {
	qemutest.Need(t)
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Skip("needs mkfs.ext4 (Debian: e2fsprogs)")
	}
	disk := t.TempDir() + "/disk"
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(mkfs, "-q", "-F", disk, "32M").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := t.TempDir()
	root := storetest.RawDisk(t, dir, storetest.Fill(t, dir))
	m := bootMachine(t, platform.RISCV64, root, "-drive", "if=none,id=upper,format=raw,file="+disk, "-device", "virtio-blk-device,drive=upper")
	c := dial(t, m)
	defer func() { _ = c.Close() }()
	if info, err := c.Start(t.Context(), guestrpc.StartParams{}); err != nil || info.DiskWarning != "" {
		t.Fatalf("%+v, %v", info, err)
	}
	expect(t, c, "mounted and written", "grep ' ext4 ' /proc/mounts | grep -vc /var/lib/; for i in 1 2 3; do echo $i >/root/$i; done; (while :; do echo x; done >/root/busy) & sleep 0.2; ls /root/1", "0\n/root/1\n")
	during, err := readExtent(disk)
	if err != nil || !during.replay {
		t.Errorf("while it is mounted: %+v, %v", during, err)
	}
	if err := c.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	m.off(t)
	if after, err := readExtent(disk); err != nil || after.replay {
		t.Errorf("after the shutdown: %+v, %v", after, err)
	}
}
