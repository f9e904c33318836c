package netstack

import "gvisor.dev/gvisor/pkg/tcpip/header"

// Unreachable is why a packet did not get where the guest sent it. A Linux guest's connect fails with the errno.
type Unreachable uint8

// Reasons, as ICMP (RFC 792, RFC 1812 section 5.2.7.1) and ICMPv6 (RFC 4443, section 3.1) know them.
const (
	UnreachableNet        Unreachable = iota // ENETUNREACH
	UnreachableHost                          // EHOSTUNREACH
	UnreachablePort                          // ECONNREFUSED
	UnreachableProhibited                    // EHOSTUNREACH with IPv4, EACCES with IPv6
)

func (u Unreachable) code4() header.ICMPv4Code {
	switch u {
	case UnreachableHost:
		return header.ICMPv4HostUnreachable
	case UnreachablePort:
		return header.ICMPv4PortUnreachable
	case UnreachableProhibited:
		return header.ICMPv4AdminProhibited
	default:
		return header.ICMPv4NetUnreachable
	}
}

func (u Unreachable) code6() header.ICMPv6Code {
	switch u {
	case UnreachableHost:
		return header.ICMPv6AddressUnreachable
	case UnreachablePort:
		return header.ICMPv6PortUnreachable
	case UnreachableProhibited:
		return header.ICMPv6Prohibited
	default:
		return header.ICMPv6NetworkUnreachable
	}
}

// sendUnreachable tells the sender of the quoted packet why it did not get there.
func (n *Network) sendUnreachable(kind Unreachable, quote []byte) {
	n.sendError(icmpError{
		type4: header.ICMPv4DstUnreachable, code4: kind.code4(), type6: header.ICMPv6DstUnreachable, code6: kind.code6(),
	}, quote)
}
