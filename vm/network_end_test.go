package vm_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentvm/egress"
	"agentvm/vm"
)

// A VM that is switched off, or stopped in order, takes its connections along, and no event comes afterwards.
func TestNetworkEndsWithTheVM(t *testing.T) {
	for name, end := range map[string]func(*vm.VM) error{
		"close": (*vm.VM).Close,
		"stop":  func(v *vm.VM) error { return v.Stop(limited(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var running atomic.Int32
			w.serve(publicServer, func(rw http.ResponseWriter, r *http.Request) {
				running.Add(1)
				defer running.Add(-1)
				for r.Context().Err() == nil {
					if _, err := rw.Write(make([]byte, 64<<10)); err != nil {
						return
					}
				}
			})
			v := ownVM(t, w.network(nil))
			p, err := v.Start(limited(t), vm.Command{
				Line: "wget -qO /dev/null http://203.0.112.10/ & wget -qO /dev/null http://203.0.112.10/ & while :; do nc -w 1 10.0.0.1 1 </dev/null; done", Stdout: io.Discard, Stderr: io.Discard,
			})
			if err != nil {
				t.Fatal(err)
			}
			w.event(t, "a denial", func(e egress.Event) bool { return e.Verdict == egress.VerdictDeny })
			w.event(t, "a connection", func(e egress.Event) bool { return e.Verdict == egress.VerdictAllow && e.Kind == egress.KindTCP })
			if err := end(v); err != nil {
				t.Error(err)
			}
			_, _ = p.Wait(limited(t)) // by a signal, or with the VM
			w.mu.Lock()
			told := len(w.events)
			w.mu.Unlock()
			w.event(t, "the connection's end", func(e egress.Event) bool { return e.Verdict == egress.VerdictClose && e.Kind == egress.KindTCP })
			for deadline := time.Now().Add(20 * time.Second); running.Load() > 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the server still has a connection")
				}
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.events) != told {
				t.Errorf("%d events came after the VM's end", len(w.events)-told)
			}
		})
	}
}

func TestNetworkOfAnotherShape(t *testing.T) {
	w := newWorld(t)
	data := strings.Repeat("0123456789abcdef", 40_000)
	sum := sha256.Sum256([]byte(data))
	var received atomic.Pointer[string]
	port := w.serve("", func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			hash := sha256.New()
			_, _ = io.Copy(hash, r.Body)
			text := hex.EncodeToString(hash.Sum(nil))
			received.Store(&text)
		}
		_, _ = io.WriteString(rw, data)
	})
	tests := []struct {
		name, subnet  string
		mtu           int
		noIPv6        bool
		guest, server string
	}{
		{"large frames", "", 65520, false, "192.168.127.3/24", "host.agentvm.internal"},
		{"the smallest subnet and frames", "10.20.30.40/29", 576, true, "10.20.30.43/29", "10.20.30.46"},
		{"a large subnet", "172.20.0.0/14", 9000, false, "172.20.0.3/14", "172.23.255.254"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			v := ownVM(t, w.network(func(n *vm.Network) {
				n.HostPorts, n.MTU, n.DisableIPv6 = []uint16{port}, test.mtu, test.noIPv6
				if test.subnet != "" {
					n.Subnet = netip.MustParsePrefix(test.subnet)
				}
			}))
			contains(t, v, "ip addr show eth0", test.guest, fmt.Sprintf("mtu %d", test.mtu))
			url := fmt.Sprintf("http://%s:%d/", test.server, port)
			contains(t, v, "wget -qO /tmp/data "+url+" && sha256sum /tmp/data", hex.EncodeToString(sum[:]))
			contains(t, v, "wget -qO /dev/null --post-file=/tmp/data "+url)
			if got := received.Swap(nil); got == nil || *got != hex.EncodeToString(sum[:]) {
				t.Errorf("the server received another file: %v", got)
			}
			if r := mustRun(t, v, vm.Command{Line: "ip -6 addr show eth0"}); test.noIPv6 && strings.Contains(string(r.Stdout), "global") {
				t.Errorf("IPv6: %s", r.Stdout)
			}
		})
	}
}
