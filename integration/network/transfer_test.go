package network

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"agentvm/images"
	"agentvm/vm"
)

const host = "host.agentvm.internal"

// TestTransfers moves files both ways and compares their sums.
func TestTransfers(t *testing.T) {
	web, sums := serveHTTP(t, files), serveSums(t)
	from, to := port(t, web.Listener.Addr()), port(t, sums)
	g := boot(t, vm.Network{HostPorts: []uint16{from, to}})
	for _, n := range []int{1, 1 << 10, 1 << 20, 64 << 20} {
		want := sum(data(n))
		g.want(fmt.Sprintf("wget -qO /tmp/file http://%s:%d/%d && sha256sum </tmp/file", host, from, n), want+"  -")
		g.want(fmt.Sprintf("nc %s %d </tmp/file", host, to), fmt.Sprint(n, " ", want))
	}
}

// TestSlowReader leaves a download waiting in the guest: nothing of it is lost, and nothing gives up.
func TestSlowReader(t *testing.T) {
	web := serveHTTP(t, files)
	from := port(t, web.Listener.Addr())
	g := boot(t, vm.Network{HostPorts: []uint16{from}})
	const n = 8 << 20
	g.want(fmt.Sprintf("wget -qO- http://%s:%d/%d | (sleep 6; sha256sum)", host, from, n), sum(data(n))+"  -")
}

// TestManyDownloadsAndLookups is row V11: names resolve after any number of connections have ended.
func TestManyDownloadsAndLookups(t *testing.T) {
	web := serveHTTP(t, files)
	from := port(t, web.Listener.Addr())
	g := boot(t, vm.Network{HostPorts: []uint16{from}})
	g.outer.names.set("look.example. A", "look.example. 0 IN A 198.51.101.7")
	g.want(fmt.Sprintf(`i=0; while [ $i -lt 50 ]; do
		wget -qO- http://%s:%d/1000 | wc -c; nslookup -type=a look.example | grep -c 198.51.101.7; i=$((i+1))
	done | sort | uniq -c | tr -s ' '`, host, from), "50 1\n 50 1000")
}

// TestHTTPS verifies a server's certificate inside the guest.
func TestHTTPS(t *testing.T) {
	web, authority := serveHTTPS(t, files)
	from := port(t, web.Listener.Addr())
	g := boot(t, vm.Network{HostPorts: []uint16{from}})
	g.alpineOnly()
	get := fmt.Sprintf("wget -qO- https://%s:%d/100000 | sha256sum", host, from)
	g.fails("set -o pipefail; "+get, "certificate")
	g.want(fmt.Sprintf("cat >>/etc/ssl/certs/ca-certificates.crt <<'END'\n%sEND\n%s", authority, get), sum(data(100000))+"  -")
}

// TestTwoConnections is FTP's way: the first connection says where the second one is to go.
func TestTwoConnections(t *testing.T) {
	content := data(300_000)
	var ports [2]uint16
	second := serveTCP(t, func(c *net.TCPConn) { _, _ = c.Write(content) })
	ports[1] = port(t, second)
	first := serveTCP(t, func(c *net.TCPConn) {
		var line [64]byte
		n, _ := c.Read(line[:])
		if strings.TrimSpace(string(line[:n])) == "PASV" {
			fmt.Fprintln(c, ports[1])
		}
		_, _ = io.Copy(io.Discard, c)
	})
	ports[0] = port(t, first)
	g := boot(t, vm.Network{HostPorts: ports[:]})
	g.want(fmt.Sprintf("p=$(echo PASV | nc %s %d) && nc %s $p </dev/null | sha256sum", host, ports[0], host), sum(content)+"  -")
}

// TestUDP sends datagrams to a server on the host.
func TestUDP(t *testing.T) {
	echo := port(t, serveUDPEcho(t))
	g := boot(t, vm.Network{HostPorts: []uint16{echo}})
	function := heard
	if g.image == images.BuiltinName {
		function = heardByTFTP
	}
	g.want(fmt.Sprintf("%sheard %s %d", function, host, echo), "HELLO")
}

// TestRefused connects to ports where no process listens, and to what is not there.
func TestRefused(t *testing.T) {
	unused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := port(t, unused.Addr())
	unused.Close()
	g := boot(t, vm.Network{HostPorts: []uint16{closed}})
	g.fails(fmt.Sprintf("timeout 60 wget -qO- http://%s:%d/", host, closed), "refused")
	g.fails(fmt.Sprintf("timeout 60 wget -qO- http://%s:%d/", host, closed^1), "refused") // not opened
	g.fails("timeout 60 wget -qO- http://nowhere.example/", "bad address")
}
