//go:build linux

package guest

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/guest/netlink"
)

const defaultDevice = "eth0"

// nic is the VM's network card with the parameters that the host last sent. Only Start uses it.
type nic struct {
	params guestrpc.NetworkParams // Device is never empty; the zero value before the first Start
}

// configure sets what p has, and returns what failed, or nothing. Without p it does not change the card.
//
//	MAC of a restored VM ─► card up ─► MTU, IPv4 address, default route ─► resolv.conf
//	                           └─► IPv6: router solicitation, address by advertisement; configure does not wait for it
//
// A restored VM whose card has its address already skips what is set. With newRoot, resolv.conf has to be written again, because the
// root directory is another one than before.
func (n *nic) configure(p *guestrpc.NetworkParams, r *guestrpc.Restored, newRoot bool) (warning string) {
	if p == nil {
		return ""
	}
	before := n.params
	n.params = *p
	n.params.Device = cmp.Or(p.Device, defaultDevice)
	if err := n.changeMAC(r); err != nil {
		warning = fmt.Sprintf("the VM's network card %s keeps its MAC: %v", n.params.Device, err)
	}
	kept := r != nil && before.Device == n.params.Device && before.MTU == n.params.MTU && before.Gateway == n.params.Gateway && n.hasAddress()
	if !kept {
		if err := n.setAddress(); err != nil {
			n.params = guestrpc.NetworkParams{}
			return fmt.Sprintf("no IPv4 network in the VM: %s: %v", cmp.Or(p.Device, defaultDevice), err)
		}
	}
	if !kept || newRoot || !slices.Equal(before.DNS, p.DNS) || !slices.Equal(before.Search, p.Search) {
		if err := writeResolver("/", p.DNS, p.Search); err != nil {
			warning = cmp.Or(warning, fmt.Sprintf("no name resolution in the VM: %v", err))
		}
	}
	return warning
}

// hasAddress reports whether the card has the address that the host wants.
func (n *nic) hasAddress() bool {
	request := interfaceRequest{name: interfaceName(n.params.Device)}
	if !n.params.Address.IsValid() || request.do(unix.SIOCGIFADDR) != nil {
		return false
	}
	// A struct sockaddr_in: family, port, address.
	return netip.AddrFrom4([4]byte(request.value[4:8])) == n.params.Address.Addr()
}

// changeMAC gives the card the MAC that a restored VM is to have, if any.
func (n *nic) changeMAC(r *guestrpc.Restored) error {
	if r == nil || !r.NewIdentity || len(r.MAC) != 6 {
		return nil
	}
	request := interfaceRequest{name: interfaceName(n.params.Device)}
	request.value[0] = unix.ARPHRD_ETHER // a struct sockaddr: family, little endian as all our processors, and data
	copy(request.value[2:], r.MAC)
	if err := request.do(unix.SIOCSIFHWADDR); err != nil {
		return fmt.Errorf("set the MAC to %v: %w", r.MAC, err)
	}
	return nil
}

// setAddress brings the card up and gives it its MTU, address and default route.
func (n *nic) setAddress() error {
	router, err := netlink.DialRouter()
	if err != nil {
		return err
	}
	defer func() { _ = router.Close() }()
	link, err := router.Link(n.params.Device)
	if err != nil {
		return err
	}
	// Duplicate address detection delays the router solicitation, and with it the IPv6 address, by a second: there is one
	// guest on this link. A kernel without IPv6 has no such setting, and needs none.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+n.params.Device+"/accept_dad", []byte("0\n"), 0)
	if mtu := n.params.MTU; mtu != 0 && mtu != link.MTU {
		if err := router.SetMTU(link.Index, mtu); err != nil {
			return fmt.Errorf("set the MTU to %d: %w", mtu, err)
		}
	}
	if err := router.Up(link.Index); err != nil {
		return fmt.Errorf("switch on: %w", err)
	}
	if address := n.params.Address; address.IsValid() {
		if err := router.AddAddress(link.Index, address); err != nil {
			return fmt.Errorf("set the address %v: %w", address, err)
		}
	}
	if gateway := n.params.Gateway; gateway.IsValid() {
		if err := router.SetDefaultRoute(link.Index, gateway); err != nil {
			return fmt.Errorf("set the default route to %v: %w", gateway, err)
		}
	}
	return nil
}

// interfaceRequest is a struct ifreq (netdevice(7)).
type interfaceRequest struct {
	name  [unix.IFNAMSIZ]byte
	value [24]byte
}

// interfaceName returns the name with zeros behind it, cut where it is too long.
func interfaceName(name string) (b [unix.IFNAMSIZ]byte) {
	copy(b[:len(b)-1], name)
	return b
}

// do makes the ioctl, for which any socket serves.
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
