//go:build linux

package guest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentvm/guest/dhcp"
	"agentvm/guest/netlink"
	"agentvm/rpc"
)

// card is the VM's network card.
type card struct {
	name string

	mu     sync.Mutex
	link   netlink.Link
	search []string // domains that the host names
	lease  dhcp.Lease
}

func (c *card) device() netlink.Link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link
}

func (c *card) current() dhcp.Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lease
}

// setSearch says whether the domains are others than before.
func (c *card) setSearch(search []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := !slices.Equal(c.search, search)
	c.search = search
	return changed
}

// resolve writes resolv.conf and says what could not be done.
func (c *card) resolve() (warning string) {
	lease := c.current()
	if err := writeResolver("/", lease.DNS, c.domains(lease)); err != nil {
		return fmt.Sprintf("no name resolution in the VM: %v", err)
	}
	return ""
}

// configured says whether the card has the address of its lease.
func (c *card) configured() bool {
	lease := c.current()
	request := interfaceRequest{name: interfaceName(c.name)}
	if !lease.Address.IsValid() || request.do(unix.SIOCGIFADDR) != nil {
		return false
	}
	// A struct sockaddr_in: family, port, address.
	return netip.AddrFrom4([4]byte(request.value[4:8])) == lease.Address.Addr()
}

// rename gives the card the MAC that a restored machine is to have, if any.
func (c *card) rename(r *rpc.Restored) error {
	if r == nil || !r.NewIdentity || len(r.MAC) != 6 {
		return nil
	}
	request := interfaceRequest{name: interfaceName(c.name)}
	request.value[0] = unix.ARPHRD_ETHER // a struct sockaddr: family, in the order of bytes of all machines that we run on, and data
	copy(request.value[2:], r.MAC)
	if err := request.do(unix.SIOCSIFHWADDR); err != nil {
		return fmt.Errorf("set the MAC to %v: %w", r.MAC, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	copy(c.link.MAC[:], r.MAC)
	return nil
}

// interfaceRequest is a struct ifreq (netdevice(7)).
type interfaceRequest struct {
	name  [unix.IFNAMSIZ]byte
	value [24]byte
}

// interfaceName cuts what is too long for a name.
func interfaceName(name string) (b [unix.IFNAMSIZ]byte) {
	copy(b[:len(b)-1], name)
	return b
}

// do asks the kernel through any socket.
func (r *interfaceRequest) do(command uintptr) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = syscall.Close(fd) }()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), command, uintptr(unsafe.Pointer(r))); errno != 0 {
		return errno
	}
	return nil
}

// configure brings the card up and gets its address.
func (c *card) configure(timeout time.Duration) error {
	router, err := netlink.DialRouter()
	if err != nil {
		return err
	}
	defer func() { _ = router.Close() }()
	link, err := router.Link(c.name)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.link = link
	c.mu.Unlock()
	c.prepareIPv6()
	if err := router.Up(link.Index); err != nil {
		return fmt.Errorf("switch on: %w", err)
	}
	lease, err := c.ask(func(client *dhcp.Client) (dhcp.Lease, error) { return client.Acquire(timeout) })
	if err != nil {
		return err
	}
	return c.apply(router, dhcp.Lease{}, lease)
}

// prepareIPv6 turns off the search for other owners of the card's addresses (duplicate address detection), which delays the
// router solicitation, and with it the address, by a second: there is one guest on this link. A kernel without IPv6 has no such
// setting, and needs none.
func (c *card) prepareIPv6() {
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+c.name+"/accept_dad", []byte("0\n"), 0)
}

// ask opens a socket for one exchange: between exchanges the port is free for others.
func (c *card) ask(exchange func(*dhcp.Client) (dhcp.Lease, error)) (dhcp.Lease, error) {
	socket, err := dhcp.Open(c.name)
	if err != nil {
		return dhcp.Lease{}, err
	}
	defer func() { _ = socket.Close() }()
	return exchange(&dhcp.Client{Link: socket, MAC: c.device().MAC, Nonce: rand.Uint32})
}

// apply makes the kernel use a lease in the place of the one before.
func (c *card) apply(router netlink.Router, before, l dhcp.Lease) error {
	link := c.device()
	if l.MTU != 0 && l.MTU != link.MTU {
		if err := router.SetMTU(link.Index, l.MTU); err != nil {
			return fmt.Errorf("set the MTU to %d: %w", l.MTU, err)
		}
		link.MTU = l.MTU
	}
	// First, for an address that is added to one of the same subnet goes together with it. It may be gone already.
	if before.Address.IsValid() && before.Address != l.Address {
		_ = router.RemoveAddress(link.Index, before.Address)
	}
	if err := router.AddAddress(link.Index, l.Address, l.Broadcast); err != nil {
		return fmt.Errorf("set the address %v: %w", l.Address, err)
	}
	c.mu.Lock()
	c.link.MTU, c.lease = link.MTU, l
	c.mu.Unlock()
	if len(l.Routers) > 0 {
		if err := router.SetDefaultRoute(link.Index, l.Routers[0]); err != nil {
			return fmt.Errorf("set the default route to %v: %w", l.Routers[0], err)
		}
	}
	return nil
}

// extend gets the next lease and uses it.
func (c *card) extend(old dhcp.Lease, stage dhcp.Stage) (dhcp.Lease, error) {
	l, err := c.ask(func(client *dhcp.Client) (dhcp.Lease, error) {
		if stage == dhcp.Expired {
			return client.Acquire(renewTimeout)
		}
		return client.Extend(old, stage == dhcp.Rebinding, renewTimeout)
	})
	if err != nil {
		return l, err
	}
	router, err := netlink.DialRouter()
	if err != nil {
		return l, err
	}
	defer func() { _ = router.Close() }()
	return l, c.apply(router, old, l)
}

// updateResolver leaves a file alone that would not change: it may be the user's by now.
func (c *card) updateResolver(before, l dhcp.Lease) {
	if !slices.Equal(before.DNS, l.DNS) || !slices.Equal(before.Search, l.Search) {
		_ = writeResolver("/", l.DNS, c.domains(l))
	}
}

// domains are those to search, the host's first.
func (c *card) domains(l dhcp.Lease) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append(c.search[:len(c.search):len(c.search)], l.Search...)
}
