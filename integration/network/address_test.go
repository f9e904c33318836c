package network

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"agentvm/images"
	"agentvm/vm"
)

// TestDHCP is row V7, with a client that is not ours.
func TestDHCP(t *testing.T) {
	g := boot(t, vm.Network{})
	g.want("ip -4 addr show eth0 | grep -o 'inet [^ ]*'", "inet 192.168.127.3/24")
	g.want("ip -4 route show default | cut -d' ' -f1-5", "default via 192.168.127.1 dev eth0")
	g.want("cat /sys/class/net/eth0/address", "02:00:00:00:00:01")
	g.want("ping -c 1 192.168.127.1 >/dev/null; ip neigh show 192.168.127.1 | grep -o '5a:.*dd'", "5a:94:ef:e4:0c:dd")
	g.want("grep ^nameserver /etc/resolv.conf", "nameserver 192.168.127.1")
	g.want(`cat >/tmp/lease <<'END'
#!/bin/sh
[ "$1" = bound ] && echo "$ip $mask $router $dns $broadcast $lease $serverid"
true
END
chmod +x /tmp/lease; udhcpc -i eth0 -n -q -f -s /tmp/lease 2>/dev/null`,
		"192.168.127.3 24 192.168.127.1 192.168.127.1 192.168.127.255 86400 192.168.127.1")
}

// TestSubnet is the same on another subnet, with another MTU.
func TestSubnet(t *testing.T) {
	web := serveHTTP(t, files)
	from := port(t, web.Listener.Addr())
	g := boot(t, vm.Network{HostPorts: []uint16{from}, Subnet: netip.MustParsePrefix("10.9.8.0/24"), MTU: 9000})
	g.want("ip -4 addr show eth0 | grep -o 'inet [^ ]*'", "inet 10.9.8.3/24")
	g.want("cat /sys/class/net/eth0/mtu", "9000")
	g.want(fmt.Sprintf("wget -qO- http://%s:%d/3000000 | sha256sum", host, from), sum(data(3000000))+"  -")
}

// TestIPv6 is row N19.
func TestIPv6(t *testing.T) {
	web := serveHTTP(t, files)
	from := port(t, web.Listener.Addr())
	g := boot(t, vm.Network{HostPorts: []uint16{from}})
	g.outer.serve("tcp", "[2001:db9::7]:80", web.Listener.Addr().String())
	g.want(`i=0; until ip -6 addr show eth0 | grep -q 'fd5a:94ef:e40c:'; do sleep 0.1; i=$((i+1)); [ $i -lt 100 ] || exit 1; done;
		ip -6 route | grep -c '^default via fe80:'`, "1")
	g.want(fmt.Sprintf("wget -qO- http://[fd5a:94ef:e40c::fe]:%d/70000 | sha256sum", from), sum(data(70000))+"  -")
	g.want("wget -qO- http://[2001:db9::7]/70000 | sha256sum", sum(data(70000))+"  -")
	for _, address := range []string{"::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1", "fd00::1", "fec0::1"} {
		g.fails(fmt.Sprintf("timeout 60 wget -qO- http://[%s]/", address), "")
	}
	if got := strings.Join(g.outer.dials(), " "); strings.Contains(got, "64:ff9b") || strings.Contains(got, "2002:") || strings.Contains(got, "fd00") {
		t.Errorf("dialled %s", got)
	}
}

// TestWithoutIPv6 has no address but the link's own.
func TestWithoutIPv6(t *testing.T) {
	g := boot(t, vm.Network{DisableIPv6: true})
	g.want("sleep 1; ip -6 addr show eth0 | grep -c 'scope global' || true", "0")
}

// TestNameServers sends queries to the gateway, to other servers and over TCP; one resolver answers them all.
func TestNameServers(t *testing.T) {
	g := boot(t, vm.Network{})
	g.outer.names.set("a.example. A", "a.example. 300 IN A 198.51.101.9")
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("many.example. 300 IN A 198.51.101.%d", i+1))
	}
	g.outer.names.set("many.example. A", strings.Join(many, "\n")) // does not fit a datagram: asked for again over TCP
	find := "| grep -o 198.51.101.9"
	g.want("nslookup -type=a a.example "+find, "198.51.101.9")
	g.want("nslookup -type=a a.example 198.51.101.53 "+find, "198.51.101.9") // whatever server a program asks
	g.want("nslookup -type=a many.example >/dev/null 2>&1; wget -qO- http://many.example/ 2>&1 | grep -c 'bad address' || true", "0")
	query := `\0\033\0\001\001\0\0\001\0\0\0\0\0\0\001a\007example\0\0\001\0\001`
	answer := `| od -An -tu1 | tr -s ' \n' ' ' | grep -o '198 51 101 9'`
	for _, server := range []string{"192.168.127.1", "198.51.101.53"} {
		g.want(fmt.Sprintf(`printf '%s' | nc %s 53 %s`, query, server, answer), "198 51 101 9")
	}
	if got := g.outer.dials(); len(got) > 0 {
		for _, d := range got {
			if strings.Contains(d, ":53") {
				t.Errorf("dialled %s", d)
			}
		}
	}
}

// TestPing is row V10: what does not answer the host does not answer the guest.
func TestPing(t *testing.T) {
	g := boot(t, vm.Network{})
	g.want("ping -c 2 -W 20 192.168.127.1 | grep -o '2 packets received'", "2 packets received")
	if g.image != images.BuiltinName { // whose ping wants root's rights wherever it runs
		if r, err := g.VM.Run(limited(t), vm.Command{Line: "ping -c 1 -W 20 192.168.127.1", User: "1234:567"}); err != nil || r.ExitCode != 0 {
			t.Errorf("as an ordinary user: %v\n%s%s", err, r.Stdout, r.Stderr)
		}
	}
	if r := g.run("ping -c 1 -W 2 198.51.101.99"); r.ExitCode == 0 {
		t.Errorf("an address that does not exist answers: %s", r.Stdout)
	}
	g.want("traceroute -n -m 1 -q 1 -w 20 198.51.101.99 | grep -o ' 192.168.127.1 '", "192.168.127.1")
}

// TestIPv6Lives is IPv6 for as long as it takes a guest to ask several times whether its router is still there: Linux does so
// five seconds after it has used a route, and again whenever half a minute has passed. The default route stays, and works.
func TestIPv6Lives(t *testing.T) {
	if testing.Short() {
		t.Skip("40 seconds")
	}
	web := serveHTTP(t, files)
	g := boot(t, vm.Network{})
	g.outer.serve("tcp", "[2001:db9::7]:80", web.Listener.Addr().String())
	g.want(`i=0; until ip -6 addr show eth0 | grep -q 'fd5a:94ef:e40c:'; do sleep 0.1; i=$((i+1)); [ $i -lt 100 ] || exit 1; done`, "")
	g.want(`i=0
while [ $i -lt 8 ]; do
	wget -qO /dev/null http://[2001:db9::7]/70000 || { echo "fetch $i failed"; exit 1; }
	sleep 5
	ip -6 route | grep -q '^default via fe80:' || { echo "no default route after fetch $i"; exit 1; }
	i=$((i+1))
done
wget -qO /dev/null http://[2001:db9::7]/70000 && echo lives`, "lives")
}
