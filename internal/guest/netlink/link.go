//go:build linux

package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Link is a network interface.
type Link struct {
	Index int32
	MTU   int
	MAC   [6]byte // zero when the interface is no Ethernet
}

// Router is a Conn that configures interfaces (rtnetlink(7)).
type Router struct{ *Conn }

// DialRouter opens a Router.
func DialRouter() (Router, error) {
	c, err := Dial(unix.NETLINK_ROUTE)
	return Router{c}, err
}

// Link finds an interface by name.
func (r Router) Link(name string) (l Link, err error) {
	body := AppendAttribute(linkHeader(0, 0, 0), unix.IFLA_IFNAME, append([]byte(name), 0))
	err = r.Get(unix.RTM_GETLINK, 0, body, func(m Message) error {
		l, err = parseLink(m.Body)
		return err
	})
	if err == nil && l.Index == 0 {
		err = errors.New("the kernel tells no number")
	}
	if err != nil {
		return Link{}, fmt.Errorf("network interface %s: %w", name, err)
	}
	return l, nil
}

func parseLink(body []byte) (l Link, err error) {
	if len(body) < unix.SizeofIfInfomsg {
		return l, errShort
	}
	l.Index = int32(binary.NativeEndian.Uint32(body[4:]))
	attributes := body[unix.SizeofIfInfomsg:]
	if mtu := Attribute(attributes, unix.IFLA_MTU); len(mtu) == 4 {
		l.MTU = int(binary.NativeEndian.Uint32(mtu))
	}
	if mac := Attribute(attributes, unix.IFLA_ADDRESS); len(mac) == len(l.MAC) {
		copy(l.MAC[:], mac)
	}
	return l, nil
}

// linkHeader is a struct ifinfomsg: family, pad, type, index, flags, which flags to change.
func linkHeader(index int32, flags, change uint32) []byte {
	b := make([]byte, 4, 64)
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	b = binary.NativeEndian.AppendUint32(b, flags)
	return binary.NativeEndian.AppendUint32(b, change)
}

// Up switches an interface on.
func (r Router) Up(index int32) error {
	return r.Do(unix.RTM_NEWLINK, 0, linkHeader(index, unix.IFF_UP, unix.IFF_UP))
}

// SetMTU sets how many bytes a packet may have.
func (r Router) SetMTU(index int32, mtu int) error {
	value := binary.NativeEndian.AppendUint32(nil, uint32(mtu))
	return r.Do(unix.RTM_NEWLINK, 0, AppendAttribute(linkHeader(index, 0, 0), unix.IFLA_MTU, value))
}

// AddAddress gives an interface an IPv4 address, which also makes the route to its subnet. An address that is there already is
// replaced. Its broadcast address is the subnet's last.
func (r Router) AddAddress(index int32, address netip.Prefix) error {
	// A struct ifaddrmsg: family, prefix length, flags, scope, index.
	b := []byte{unix.AF_INET, byte(address.Bits()), 0, unix.RT_SCOPE_UNIVERSE}
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	b = AppendAttribute(b, unix.IFA_LOCAL, address.Addr().AsSlice())
	b = AppendAttribute(b, unix.IFA_ADDRESS, address.Addr().AsSlice())
	subnet := address.Addr().As4()
	broadcast := binary.BigEndian.Uint32(subnet[:]) | ^uint32(0)>>address.Bits()
	b = AppendAttribute(b, unix.IFA_BROADCAST, binary.BigEndian.AppendUint32(nil, broadcast))
	return r.Do(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, b)
}

// SetDefaultRoute sends everything that has no other route to gateway, an IPv4 address in the interface's subnet.
func (r Router) SetDefaultRoute(index int32, gateway netip.Addr) error {
	// A struct rtmsg: family, lengths of destination and source, type of service, table, origin, scope, type, flags.
	b := []byte{
		unix.AF_INET, 0, 0, 0,
		unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST,
		0, 0, 0, 0,
	}
	b = AppendAttribute(b, unix.RTA_GATEWAY, gateway.AsSlice())
	b = AppendAttribute(b, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(index)))
	return r.Do(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, b)
}
