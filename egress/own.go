package egress

import (
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Addresses of the host's own interfaces are not its loopback, but a packet from the host to one of them never leaves it: it reaches what
// listens on all interfaces, past any firewall in front of the host. Most of them are private and refused as such; a public one (a server's, or
// IPv6 at home) is refused here, in every mode but open.

// ownAge is how long the list is used: interfaces come and go with cables and networks.
const ownAge = 5 * time.Second

// ownAddrs remembers what the host's addresses are.
type ownAddrs struct {
	ask  func() ([]netip.Addr, error) // nil: there are none
	last atomic.Pointer[ownList]
}

type ownList struct {
	addrs []netip.Addr
	at    time.Time
}

// refresh asks the host again, if that was long ago. It is called before decisions, with no lock held. When the host does not
// say, the list stays as it was.
func (o *ownAddrs) refresh(now time.Time) error {
	last := o.last.Load()
	if o.ask == nil || last != nil && now.Sub(last.at).Abs() < ownAge {
		return nil
	}
	addrs, err := o.ask()
	next := &ownList{unmapped(addrs), now}
	if err != nil && last != nil {
		next.addrs = last.addrs
	}
	o.last.Store(next)
	return err
}

// find says which of an address' forms is the host's own.
func (o *ownAddrs) find(forms []netip.Addr) (netip.Addr, bool) {
	last := o.last.Load()
	if last == nil {
		return netip.Addr{}, false
	}
	i := slices.IndexFunc(forms, func(a netip.Addr) bool { return slices.Contains(last.addrs, a) })
	if i < 0 {
		return netip.Addr{}, false
	}
	return forms[i], true
}

// interfaceAddrs lists the addresses of the host's interfaces.
func interfaceAddrs() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, one := range list {
		if network, ok := one.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(network.IP); ok {
				addrs = append(addrs, a.Unmap())
			}
		}
	}
	return addrs, nil
}

// around are the gate's surroundings as they are now.
func (g *Gate) around() *surroundings {
	if err := g.own.refresh(g.now()); err != nil {
		g.log.Warn("the host's own addresses are not known", "error", err)
	}
	return &g.surroundings
}
