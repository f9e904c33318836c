package vm_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/share/mount"
	"agentvm/nat"
	"agentvm/vm"
)

// TestHostMemory: one account has what connections, RPC and mounts take of the host's memory. A guest with a small one is refused
// further connections, with a warning before, and continues.
func TestHostMemory(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { _, _ = io.Copy(io.Discard, conn); conn.Close() })
		}
	})
	defer serving.Wait()
	defer listener.Close()
	port := netip.MustParseAddrPort(listener.Addr().String()).Port()

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("in the mount"), 0o644); err != nil {
		t.Fatal(err)
	}
	log := &lockedBuffer{}
	c := config(t)
	c.HostMemory, c.Logger = 16<<20, slog.New(slog.NewTextHandler(log, nil))
	c.Network.HostPorts = []uint16{port}
	c.Mounts = []mount.Spec{{HostPath: dir, GuestPath: "/m"}}
	v, err := vm.Start(limited(t), c)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	use := func() nat.LimitUse {
		for _, l := range must(v.NetworkStats(t.Context())).Limits {
			if l.Limit == nat.MemoryLimit {
				return l
			}
		}
		t.Fatal("host memory is no limit")
		return nat.LimitUse{}
	}
	if u := use(); u.Maximum != 16<<20 || u.Used >= u.Maximum/2 {
		t.Errorf("at the start %+v", u)
	}
	line := fmt.Sprintf(`mkfifo /tmp/silence; exec 3<>/tmp/silence
i=0
while [ $i -lt 115 ]; do nc 192.168.127.254 %d <&3 >/dev/null 2>&1 & i=$((i+1)); done
read end
kill $(jobs -p) 2>/dev/null
cat /m/file`, port)
	// The end of its input says when: the guest cannot ask for /limits when what is left does not suffice for one more connection.
	input, tell := io.Pipe()
	defer tell.Close()
	ctx := limited(t)
	var stdout, stderr bytes.Buffer
	p, err := v.Start(ctx, vm.Command{Line: line, Stdin: input, Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		t.Fatal(err)
	}
	for use().Refused == 0 && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	tell.Close()
	if _, err := p.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	u := use()
	if u.Refused == 0 || u.Used > u.Maximum || !strings.HasSuffix(stdout.String(), "in the mount") {
		t.Errorf("after many connections %+v; the guest says %s%s", u, stdout.String(), stderr.String())
	}
	if !strings.Contains(log.String(), `limit="host memory"`) {
		t.Errorf("there was no warning: %s", log)
	}
}
