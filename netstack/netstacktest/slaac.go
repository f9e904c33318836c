package netstacktest

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Advertised is what the guest has learned from router advertisements.
type Advertised struct {
	Addresses []netip.Prefix // made by SLAAC
	Routers   []netip.Addr
	Prefixes  []netip.Prefix // on link
	DNS       []netip.Addr
	DNSFor    time.Duration // lifetime of DNS
}

// routerEvents learns from router advertisements, as Linux does for eth0. gVisor calls it with locks held, so that
// routes are set by apply.
type routerEvents struct {
	mu      sync.Mutex
	known   Advertised
	changed chan struct{} // closed and made anew at each change
	work    chan func(*stack.Stack)
	over    chan struct{}
	once    sync.Once
}

var _ ipv6.NDPDispatcher = (*routerEvents)(nil)

func newRouterEvents() *routerEvents {
	return &routerEvents{changed: make(chan struct{}), work: make(chan func(*stack.Stack), 64), over: make(chan struct{})}
}

func (r *routerEvents) apply(s *stack.Stack) {
	for {
		select {
		case f := <-r.work:
			f(s)
		case <-r.over:
			return
		}
	}
}

func (r *routerEvents) end() { r.once.Do(func() { close(r.over) }) }

// note changes what is known and queues work for the stack, if any.
func (r *routerEvents) note(change func(*Advertised), work func(*stack.Stack)) {
	told := func(s *stack.Stack) {
		if work != nil {
			work(s)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		change(&r.known)
		close(r.changed)
		r.changed = make(chan struct{})
	}
	select {
	case r.work <- told:
	default: // a flood of advertisements: the test's own fault
	}
}

// Advertised waits until what the guest has learned satisfies enough.
func (g *Guest) Advertised(ctx context.Context, enough func(Advertised) bool) (Advertised, error) {
	for {
		g.router.mu.Lock()
		known, changed := g.router.known, g.router.changed
		g.router.mu.Unlock()
		if enough(known) {
			return known, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return known, ctx.Err()
		}
	}
}

// Address6 waits for the guest's first address by SLAAC, and for a router.
func (g *Guest) Address6(ctx context.Context) (netip.Addr, error) {
	known, err := g.Advertised(ctx, func(a Advertised) bool { return len(a.Addresses) > 0 && len(a.Routers) > 0 })
	if err != nil {
		return netip.Addr{}, err
	}
	return known.Addresses[0].Addr(), nil
}

func (r *routerEvents) OnOffLinkRouteUpdated(_ tcpip.NICID, to tcpip.Subnet, via tcpip.Address, _ header.NDPRoutePreference) {
	r.note(func(a *Advertised) { a.Routers = append(a.Routers, addr(via)) }, func(s *stack.Stack) {
		s.AddRoute(tcpip.Route{Destination: to, Gateway: via, NIC: nicID})
	})
}

func (r *routerEvents) OnOffLinkRouteInvalidated(_ tcpip.NICID, to tcpip.Subnet, via tcpip.Address) {
	r.note(func(a *Advertised) { a.Routers = nil }, func(s *stack.Stack) {
		s.RemoveRoutes(func(route tcpip.Route) bool { return route.Destination == to && route.Gateway == via })
	})
}

func (r *routerEvents) OnOnLinkPrefixDiscovered(_ tcpip.NICID, p tcpip.Subnet) {
	r.note(func(a *Advertised) { a.Prefixes = append(a.Prefixes, netip.PrefixFrom(addr(p.ID()), p.Prefix())) },
		func(s *stack.Stack) { s.AddRoute(tcpip.Route{Destination: p, NIC: nicID}) })
}

func (r *routerEvents) OnOnLinkPrefixInvalidated(tcpip.NICID, tcpip.Subnet) {
	r.note(func(a *Advertised) { a.Prefixes = nil }, nil)
}

func (r *routerEvents) OnAutoGenAddress(_ tcpip.NICID, p tcpip.AddressWithPrefix) stack.AddressDispatcher {
	if a := addr(p.Address); !a.IsLinkLocalUnicast() {
		r.note(func(k *Advertised) { k.Addresses = append(k.Addresses, netip.PrefixFrom(a, p.PrefixLen)) }, nil)
	}
	return nil
}

func (r *routerEvents) OnAutoGenAddressInvalidated(tcpip.NICID, tcpip.AddressWithPrefix) {
	r.note(func(a *Advertised) { a.Addresses = nil }, nil)
}

func (r *routerEvents) OnRecursiveDNSServerOption(_ tcpip.NICID, servers []tcpip.Address, lifetime time.Duration) {
	var dns []netip.Addr
	for _, s := range servers {
		dns = append(dns, addr(s))
	}
	r.note(func(a *Advertised) { a.DNS, a.DNSFor = dns, lifetime }, nil)
}

func (r *routerEvents) OnAutoGenAddressDeprecated(tcpip.NICID, tcpip.AddressWithPrefix) {}
func (r *routerEvents) OnDNSSearchListOption(tcpip.NICID, []string, time.Duration)      {}
func (r *routerEvents) OnDHCPv6Configuration(tcpip.NICID, ipv6.DHCPv6ConfigurationFromNDPRA) {
}
func (r *routerEvents) OnDuplicateAddressDetectionResult(tcpip.NICID, tcpip.Address, stack.DADResult) {
}

func addr(a tcpip.Address) netip.Addr {
	n, _ := netip.AddrFromSlice(a.AsSlice())
	return n
}
