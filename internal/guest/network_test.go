//go:build linux

package guest

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
)

// inCable runs test on a thread in a network namespace of its own. Its card guest0 is down, and connected to the card host0, which is up.
func inCable(t *testing.T, test func(t *testing.T)) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip (Debian: iproute2)")
	}
	var err error
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // for good: the thread, and its network, end with this goroutine
		err = unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = setIP("link add guest0 type veth peer name host0", "link set host0 up")
		}
		if err == nil {
			test(t)
		}
	})
	wg.Wait()
	if err != nil {
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

// ip runs the program of that name, which prints what the kernel has been given.
func ip(t *testing.T, line string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
	if err != nil {
		t.Errorf("ip %s: %v, %s", line, err, out)
	}
	return strings.Join(strings.Fields(string(out)), " ")
}

func TestSetAddress(t *testing.T) {
	inCable(t, func(t *testing.T) {
		n := &nic{params: guestrpc.NetworkParams{
			Device: "guest0", Address: netip.MustParsePrefix("192.168.127.3/24"), Gateway: netip.MustParseAddr("192.168.127.1"), MTU: 1400,
		}}
		if n.hasAddress() {
			t.Error("the card has its address before it was set")
		}
		for range 2 { // as often as the host likes
			if err := n.setAddress(); err != nil {
				t.Error(err)
				return
			}
		}
		for _, tt := range []struct{ command, want string }{
			{"-4 address show guest0", "inet 192.168.127.3/24 brd 192.168.127.255 scope global guest0"},
			{"link show guest0", "mtu 1400"},
			{"-4 route show default", "default via 192.168.127.1 dev guest0 proto static"},
			{"-4 route show 192.168.127.0/24", "dev guest0"},
		} {
			if got := ip(t, tt.command); !strings.Contains(got, tt.want) {
				t.Errorf("ip %s: %q, want %q in it", tt.command, got, tt.want)
			}
		}
		if !n.hasAddress() {
			t.Error("the card does not have its address after it was set")
		}
	})
}

// TestNoAddress: without IPv4 the card is up, for IPv6. A gateway outside of the subnet is refused by the kernel.
func TestNoAddress(t *testing.T) {
	inCable(t, func(t *testing.T) {
		n := &nic{params: guestrpc.NetworkParams{Device: "guest0"}}
		if err := n.setAddress(); err != nil || n.hasAddress() {
			t.Errorf("got %v, an address: %v", err, n.hasAddress())
		}
		if got := ip(t, "link show guest0"); !strings.Contains(got, ",UP") {
			t.Errorf("IPv6 needs the card to be on: %s", got)
		}
		n.params.Address, n.params.Gateway = netip.MustParsePrefix("192.168.127.3/24"), netip.MustParseAddr("10.0.0.1")
		err := n.setAddress()
		if !errors.Is(err, unix.ENETUNREACH) || !strings.HasPrefix(err.Error(), "set the default route to 10.0.0.1: ") {
			t.Errorf("got %v", err)
		}
	})
}

func TestNoCard(t *testing.T) {
	c := connect(t)
	info, err := c.Start(testContext(t), guestrpc.StartParams{Network: &guestrpc.NetworkParams{Device: "none4711"}})
	if want := "no IPv4 network in the VM: none4711: "; err != nil || !strings.HasPrefix(info.NetworkWarning, want) {
		t.Errorf("got %+v, %v", info, err)
	}
}
