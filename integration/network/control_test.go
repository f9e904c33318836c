package network

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"agentvm/egress"
	"agentvm/vm"
)

// TestControlEndpoints: what the host listens at for its own user (the doors of daemons, metrics, previews, a name server) is on
// its loopback. A guest comes to none of it, in whatever form it writes the address and in no mode, and what answers to it at the gateway is
// its own page, which only tells.
func TestControlEndpoints(t *testing.T) {
	for _, mode := range []egress.Mode{egress.Public, egress.Open} {
		t.Run(string(mode), func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var came atomic.Int32
			var accepting sync.WaitGroup
			accepting.Go(func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					came.Add(1)
					fmt.Fprintf(conn, "HTTP/1.0 200 OK\r\n\r\nsecret\n")
					conn.Close()
				}
			})
			defer accepting.Wait()
			defer listener.Close()
			port := netip.MustParseAddrPort(listener.Addr().String()).Port()
			g := boot(t, vm.Network{Policy: egress.Policy{Mode: mode}})
			g.outer.names.set("rebound.example. A", "rebound.example. 1 IN A 127.0.0.1")
			hosts := []string{
				"127.0.0.1", "127.0.0.2", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "localhost",
				"192.168.127.1", "192.168.127.2", "192.168.127.254", "192.168.127.255", "agentvm.internal", "host.agentvm.internal", "rebound.example",
				"[::1]", "[::]", "[::ffff:127.0.0.1]", "[fd5a:94ef:e40c::1]", "[fd5a:94ef:e40c::fe]", "[64:ff9b::7f00:1]", "[2002:7f00:1::1]",
			}
			var line strings.Builder
			for _, host := range hosts {
				fmt.Fprintf(&line, "timeout 20 wget -T 10 -qO- http://%s:%d/ 2>/dev/null && echo reached %s\n", host, port, host)
			}
			line.WriteString("true")
			g.want(line.String(), "")
			if n := came.Load(); n != 0 {
				t.Errorf("the guest has connected %d times", n)
			}
			for _, d := range g.outer.dials() {
				if strings.HasSuffix(d, fmt.Sprint(":", port)) {
					t.Errorf("dialled %s", d)
				}
			}
			// The page tells of this VM, and does nothing.
			for _, path := range []string{
				"/metrics", "/debug/pprof/", "/debug/vars", "/policy/../metrics", "//metrics", "/stop", "/exec", "/p/" + strings.Repeat("0", 63) + "/", "/%2e%2e/", "/limits/x",
			} {
				g.want(fmt.Sprintf("wget -qO- 'http://agentvm.internal%s' 2>/dev/null || echo nothing", path), "nothing")
			}
			for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "CONNECT", "TRACE"} {
				g.want(fmt.Sprintf(`printf '%s /policy HTTP/1.0\r\nHost: agentvm.internal\r\n\r\n' | nc 192.168.127.1 80 | head -n 1 | grep -c ' 40[05]'`, method), "1")
			}
		})
	}
}
