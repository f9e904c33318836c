package standalone

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tetratelabs/wazero/experimental/sock"

	"agentvm/egress"
	"agentvm/internal/host/platform"
	"agentvm/internal/network/reach"
	"agentvm/internal/network/router"
	"agentvm/vm"
)

// largeData is served at /data; what is sent to /sum comes back as its checksum.
func serveLargeData(t *testing.T) (data []byte, port uint16) {
	t.Helper()
	data = make([]byte, 4<<20)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(data)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/data", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
	mux.HandleFunc("/sum", func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%x", sha256.Sum256(text))
	})
	mux.HandleFunc("/never", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return data, uint16(listener.Addr().(*net.TCPAddr).Port)
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// TestExportedNetwork: RunModule gives an exported module a network, with the policy of VMs.
func TestExportedNetwork(t *testing.T) { onBoth(t, exportedNetwork) }

func exportedNetwork(t *testing.T, of platform.Architecture) {
	path, store := filepath.Join(t.TempDir(), "busybox.wasm"), t.TempDir()
	if err := os.WriteFile(path, export(t, of, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	data, port := serveLargeData(t)
	host := fmt.Sprintf("http://host.agentvm.internal:%d", port)
	open := vm.Network{HostPorts: []uint16{port}}
	tests := []struct {
		name    string
		network vm.Network
		line    string
		timeout time.Duration
		want    string
		code    int
	}{
		{name: "lease", network: open, line: "ip addr show eth0; ip route; cat /etc/resolv.conf; exit 3",
			want: "02:00:00:00:00:01 * 192.168.127.3/24 * default via 192.168.127.1 * nameserver 192.168.127.1", code: 3},
		{name: "to the guest", network: open, line: "wget -qO- " + host + "/data | sha256sum", want: sumOf(data)},
		{name: "from the guest", network: open, want: sumOf(bytes.Repeat([]byte("x"), 100_000)),
			line: "head -c 100000 /dev/zero | tr '\\0' x >/tmp/f; wget -qO- --post-file /tmp/f " + host + "/sum"},
		{name: "an answer that does not come", network: open, line: "wget -qO- " + host + "/never", timeout: time.Second, code: 137},
		{name: "refused by policy", line: "wget -T 20 -qO- " + host + "/data", code: 1},
		{name: "no network", network: vm.Network{Disabled: true}, line: "ip addr show eth0; wget -T 1 -qO- http://192.168.127.1/", want: "<BROADCAST,MULTICAST> mtu", code: 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := vm.Config{Image: path, StoreDir: store, Network: test.network}
			denied := uint64(0)
			c.Network.Audit = func(e egress.Event) {
				if e.Verdict == egress.VerdictDeny {
					denied++
				}
			}
			r, err := vm.RunModule(t.Context(), c, vm.Command{Line: test.line, Timeout: test.timeout})
			if err != nil {
				t.Fatal(err)
			}
			rest, found := string(r.Stdout), true
			for _, want := range strings.Split(test.want, " * ") {
				_, after, ok := strings.Cut(rest, want)
				rest, found = after, found && ok
			}
			if !found || r.ExitCode != test.code || r.TimedOut != (test.timeout > 0) {
				t.Errorf("%.600q, code %d, timed out %v, want %q, %d", r.Stdout, r.ExitCode, r.TimedOut, test.want, test.code)
			}
			if want := strings.HasPrefix(test.name, "refused"); (denied > 0) != want {
				t.Errorf("%d requests were denied", denied)
			}
		})
	}
}

// TestExportedNetworkElsewhere: another runtime listens, as container2wasm's have it, and the network that connects speaks QEMU's framing.
func TestExportedNetworkElsewhere(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a guest")
	}
	f := newForeign(t, export(t, platform.Default, nil))
	data, port := serveLargeData(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().(*net.TCPAddr)
	_ = free.Close()
	link := dialLate(at.String())
	network, err := router.Open(router.Config{
		Network: router.Network{HostPorts: []uint16{port}}, Link: link, PlainFrames: true, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9},
		Ports: reach.NewPorts(reach.Access{}, nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	f.listen = sock.NewConfig().WithTCPListener("127.0.0.1", at.Port)
	out, errs, code := f.run(t, strings.NewReader("input"), [2]string{}, "-net", "socket", "-mac", "02:00:00:00:00:09", "sh", "-c",
		fmt.Sprintf("wget -qO- http://host.agentvm.internal:%d/data | sha256sum; cat /sys/class/net/eth0/address -; exit 4", port))
	if want := sumOf(data) + "  -\n02:00:00:00:00:09\ninput"; out != want || code != 4 {
		t.Errorf("%q, %q, code %d, want %q, 4", out, errs, code, want)
	}
}

// lateConn is a connection that is made when there is a listener.
type lateConn struct {
	ready chan struct{}
	conn  net.Conn
	stop  context.CancelFunc
}

func dialLate(address string) *lateConn {
	ctx, stop := context.WithCancel(context.Background())
	l := &lateConn{ready: make(chan struct{}), stop: stop}
	go func() {
		defer close(l.ready)
		for l.conn == nil && ctx.Err() == nil {
			l.conn, _ = new(net.Dialer).DialContext(ctx, "tcp", address)
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return l
}

func (l *lateConn) Read(p []byte) (int, error) {
	if <-l.ready; l.conn == nil {
		return 0, io.EOF
	}
	return l.conn.Read(p)
}

func (l *lateConn) Write(p []byte) (int, error) {
	if <-l.ready; l.conn == nil {
		return 0, errors.New("closed")
	}
	return l.conn.Write(p)
}

func (l *lateConn) Close() error {
	l.stop()
	if <-l.ready; l.conn == nil {
		return nil
	}
	return l.conn.Close()
}
