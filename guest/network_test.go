//go:build linux

package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"agentvm/guest/dhcp"
	"agentvm/rpc"
)

// inCable runs test on a thread whose only network card, guest0, has a cable to host0, another thread's, where answer makes of
// each DHCP request the reply to send, if any. The card guest0 is off.
func inCable(t *testing.T, answer func(request *dhcpv4.DHCPv4) []byte, test func(t *testing.T)) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip (Debian: iproute2)")
	}
	host, laid := make(chan int), make(chan struct{})
	var guestErr, hostErr error
	var wg sync.WaitGroup
	served := make(chan net.PacketConn)
	wg.Go(func() {
		runtime.LockOSThread() // for good: the thread, and its network, end with this goroutine
		hostErr = unix.Unshare(unix.CLONE_NEWNET)
		host <- unix.Gettid()
		<-laid
		var conn net.PacketConn
		if hostErr == nil && guestErr == nil {
			conn, hostErr = listenDHCP()
		}
		served <- conn
		if conn != nil {
			serveDHCP(conn, answer)
		}
	})
	wg.Go(func() {
		runtime.LockOSThread()
		guestErr = unix.Unshare(unix.CLONE_NEWNET)
		if tid := <-host; guestErr == nil {
			guestErr = setIP("link add guest0 type veth peer name host0", fmt.Sprintf("link set host0 netns %d", tid))
		}
		close(laid)
		if conn := <-served; conn != nil {
			test(t)
			_ = conn.Close()
		}
	})
	wg.Wait()
	if err := errors.Join(guestErr, hostErr); err != nil {
		t.Skip("needs network namespaces: ", err)
	}
}

func setIP(lines ...string) error {
	for _, line := range lines {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %s", line, out)
		}
	}
	return nil
}

// listenDHCP opens the server's socket in the calling thread's network.
func listenDHCP() (net.PacketConn, error) {
	if err := setIP("address add 192.168.127.1/24 dev host0", "link set host0 up"); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "server")
	defer func() { _ = f.Close() }()
	err = errors.Join(unix.BindToDevice(fd, "host0"), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Port: 67}))
	if err != nil {
		return nil, err
	}
	return net.FilePacketConn(f)
}

// serveDHCP answers until conn is closed.
func serveDHCP(conn net.PacketConn, answer func(*dhcpv4.DHCPv4) []byte) {
	for b := make([]byte, 1500); ; {
		size, from, err := conn.ReadFrom(b)
		if err != nil {
			return
		}
		request, err := dhcpv4.FromBytes(b[:size])
		if err != nil {
			continue
		}
		if request.IsBroadcast() {
			from = &net.UDPAddr{IP: net.IPv4bcast, Port: 68}
		}
		if reply := answer(request); reply != nil {
			_, _ = conn.WriteTo(reply, from)
		}
	}
}

// grant answers as a server does. A client that has an address already gets another one, by another router.
func grant(request *dhcpv4.DHCPv4) []byte {
	kind, gateway := dhcpv4.MessageTypeOffer, net.IPv4(192, 168, 127, 1)
	if request.MessageType() == dhcpv4.MessageTypeRequest {
		kind = dhcpv4.MessageTypeAck
	}
	router, address := gateway, net.IPv4(192, 168, 127, 3)
	if !request.ClientIPAddr.IsUnspecified() {
		router, address = net.IPv4(192, 168, 127, 254), net.IPv4(192, 168, 127, 7)
	}
	reply, err := dhcpv4.NewReplyFromRequest(request,
		dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP(address), dhcpv4.WithRouter(router),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(gateway)), dhcpv4.WithLeaseTime(86400),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithDNS(gateway),
		dhcpv4.WithOption(dhcpv4.OptBroadcastAddress(net.IPv4(192, 168, 127, 255))),
		dhcpv4.WithGeneric(dhcpv4.OptionInterfaceMTU, []byte{0x05, 0x78}))
	if err != nil {
		return nil
	}
	return reply.ToBytes()
}

// ip runs the program of that name, which says what the kernel has been told.
func ip(t *testing.T, line string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
	if err != nil {
		t.Errorf("ip %s: %v, %s", line, err, out)
	}
	return strings.Join(strings.Fields(string(out)), " ")
}

func TestCardIsConfigured(t *testing.T) {
	inCable(t, grant, func(t *testing.T) {
		c := &card{name: "guest0", search: []string{"a.example"}}
		if err := c.configure(5 * time.Second); err != nil {
			t.Error(err)
			return
		}
		gateway := netip.MustParseAddr("192.168.127.1")
		want := dhcp.Lease{
			Address: netip.MustParsePrefix("192.168.127.3/24"), Broadcast: netip.MustParseAddr("192.168.127.255"), Server: gateway,
			Routers: []netip.Addr{gateway}, DNS: []netip.Addr{gateway}, MTU: 1400,
			Duration: 24 * time.Hour, Renew: 12 * time.Hour, Rebind: 21 * time.Hour,
		}
		if diff := cmp.Diff(want, c.lease, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Errorf("lease: -want +got:\n%s", diff)
		}
		for _, tt := range []struct{ command, want string }{
			{"-4 address show guest0", "inet 192.168.127.3/24 brd 192.168.127.255 scope global guest0"},
			{"link show guest0", "mtu 1400"},
			{"-4 route show default", "default via 192.168.127.1 dev guest0 proto dhcp"},
			{"-4 route show 192.168.127.0/24", "dev guest0"},
		} {
			if got := ip(t, tt.command); !strings.Contains(got, tt.want) {
				t.Errorf("ip %s: %q, want %q in it", tt.command, got, tt.want)
			}
		}
		testAnotherLease(t, c)
	})
}

// testAnotherLease extends the lease, first by its server, then by any, and gets another one.
func testAnotherLease(t *testing.T, c *card) {
	for _, stage := range []dhcp.Stage{dhcp.Renewing, dhcp.Rebinding} {
		lease, err := c.extend(c.lease, stage)
		if err != nil {
			t.Error(err)
			return
		}
		if got := ip(t, "-4 address show guest0"); !strings.Contains(got, "192.168.127.7/24") || strings.Contains(got, "192.168.127.3/24") {
			t.Errorf("addresses: %s", got)
		}
		if got := ip(t, "-4 route show default"); !strings.Contains(got, "via 192.168.127.254") || strings.Contains(got, "127.1 ") {
			t.Errorf("route: %s", got)
		}
		c.lease = lease
	}
}

// TestCardRetries loses the first message of each kind.
func TestCardRetries(t *testing.T) {
	seen := make(map[dhcpv4.MessageType]bool)
	lossy := func(request *dhcpv4.DHCPv4) []byte {
		if kind := request.MessageType(); !seen[kind] {
			seen[kind] = true
			return nil
		}
		return grant(request)
	}
	inCable(t, lossy, func(t *testing.T) {
		c := &card{name: "guest0"}
		if err := c.configure(5 * time.Second); err != nil || c.lease.Address.String() != "192.168.127.3/24" {
			t.Errorf("got %+v, %v", c.lease, err)
		}
	})
}

// TestNoServer: what configure says when nobody answers, and what Start reports without a card.
func TestNoServer(t *testing.T) {
	silent := func(*dhcpv4.DHCPv4) []byte { return nil }
	inCable(t, silent, func(t *testing.T) {
		begin := time.Now()
		err := (&card{name: "guest0"}).configure(300 * time.Millisecond)
		if err == nil || !strings.HasPrefix(err.Error(), "DHCP: no answer from a server") || time.Since(begin) < 300*time.Millisecond {
			t.Errorf("got %v after %v", err, time.Since(begin))
		}
		if got := ip(t, "link show guest0"); !strings.Contains(got, ",UP") {
			t.Errorf("IPv6 would need the card to be up: %s", got)
		}
	})
}

func TestNoCard(t *testing.T) {
	c := connect(t)
	info, err := c.Start(testContext(t), rpc.StartParams{Network: &rpc.NetworkParams{Device: "none4711"}})
	if want := "no IPv4 network in the VM: none4711: "; err != nil || !strings.HasPrefix(info.NetworkWarning, want) {
		t.Errorf("got %+v, %v", info, err)
	}
}

// TestRenewalIsReplaced: a card that has taken the place of another stays, also when the other's moment has come just then.
func TestRenewalIsReplaced(t *testing.T) {
	s := &Supervisor{disconnect: func() {}}
	old := &card{}
	ctx, cancel := context.WithCancel(t.Context())
	due := s.due(ctx, old)
	cut := false
	s.mu.Lock()
	cancel()
	s.disconnect = func() { cut = true } // the new one's
	s.mu.Unlock()
	due()
	s.tasks.Wait()
	if cut {
		t.Error("the card before has taken its place back")
	}
	s.keepSoon(old)
	s.mu.Lock()
	s.disconnect()
	s.mu.Unlock()
	if !cut {
		t.Error("what was before keepSoon goes on after its end")
	}
}
