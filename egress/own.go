package egress

import (
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// Addresses of the host's own interfaces are not its loopback, but a packet from the host to one of them never leaves it: it reaches what
// listens on all interfaces, past any firewall in front of the host. Most of them are private and refused as such; a public one (a server's, or
// IPv6 at home) is refused here, in every mode but open.
//
// The other addresses in the networks of those interfaces are refused too: they are next to the host, on its side of any firewall,
// whether they are private or public.

// ownAge is how long the list is used: interfaces appear and disappear while the VM runs.
const ownAge = 5 * time.Second

// ownAddrs remembers the host's addresses.
type ownAddrs struct {
	list func() ([]netip.Prefix, error) // nil: there are none
	last atomic.Pointer[ownList]
}

type ownList struct {
	addrs []netip.Prefix // not masked: the address is the host's, the prefix the network that it is in
	at    time.Time
}

// refresh reads the list again when it is older than ownAge. It is called before decisions, with no lock held. When reading fails,
// the old list stays.
func (o *ownAddrs) refresh(now time.Time) error {
	last := o.last.Load()
	if o.list == nil || last != nil && now.Sub(last.at).Abs() < ownAge {
		return nil
	}
	addrs, err := o.list()
	next := &ownList{addrs, now}
	if err != nil && last != nil {
		next.addrs = last.addrs
	}
	o.last.Store(next)
	return err
}

// find says which of an address' forms is the host's own, or else in one of its networks.
func (o *ownAddrs) find(forms []netip.Addr) (form netip.Addr, network netip.Prefix, found bool) {
	last := o.last.Load()
	if last == nil {
		return form, network, false
	}
	for _, own := range last.addrs {
		for _, a := range forms {
			switch {
			case a == own.Addr():
				return a, netip.Prefix{}, true
			case !found && isOnLink(own) && own.Contains(a):
				form, network, found = a, own.Masked(), true
			}
		}
	}
	return form, network, found
}

// isOnLink says whether the other addresses of an interface's network are its neighbours. A network that spans half of all
// addresses is a mistake in the configuration.
func isOnLink(p netip.Prefix) bool {
	if p.Addr().Is4() {
		return p.Bits() >= 8
	}
	return p.Bits() >= 32
}

// interfaceAddrs lists the addresses of the host's interfaces, each with the network that it is in.
func interfaceAddrs() ([]netip.Prefix, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var addrs []netip.Prefix
	for _, one := range list {
		if network, ok := one.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(network.IP); ok {
				a = a.Unmap()
				bits, size := network.Mask.Size()
				if bits -= size - a.BitLen(); bits < 0 || size == 0 {
					bits = a.BitLen()
				}
				addrs = append(addrs, netip.PrefixFrom(a, bits))
			}
		}
	}
	return addrs, nil
}

// currentEnvironment returns the gate's environment with a list of the host's addresses that is at most ownAge old.
func (g *Gate) currentEnvironment() *environment {
	if err := g.own.refresh(g.now()); err != nil {
		g.log.Warn("the host's own addresses are not known", "error", err)
	}
	return &g.environment
}
