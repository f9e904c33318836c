//go:build linux

package guest

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"agentvm/guest/dhcp"
	"agentvm/guest/netlink"
	"agentvm/rpc"
)

const (
	defaultDevice      = "eth0"
	defaultDHCPTimeout = 3 * time.Second
	maxDHCPTimeout     = time.Minute
	renewTimeout       = 10 * time.Second
)

// card is the VM's network card.
type card struct {
	name   string
	link   netlink.Link
	search []string // domains that the host names
	lease  dhcp.Lease
}

// connect begins to configure the network, while other things are started. The function it returns waits for the end, keeps what
// was configured, and says what could not be done. Without parameters nothing is done.
//
//	card up ─► IPv6: router solicitation, address by advertisement; nobody waits for it
//	   └─────► DHCP ─► address, MTU, default route ─► resolv.conf ─► renewed in the background
func (s *Supervisor) connect(p *rpc.NetworkParams) (wait func() (warning string)) {
	if p == nil {
		return func() string { return "" }
	}
	c := &card{name: cmp.Or(p.Device, defaultDevice), search: p.Search}
	done := make(chan error, 1)
	s.tasks.Go(func() { done <- c.configure(min(cmp.Or(p.Timeout, defaultDHCPTimeout), maxDHCPTimeout)) })
	return func() string {
		if err := <-done; err != nil {
			return fmt.Sprintf("no IPv4 network in the VM: %s: %v", c.name, err)
		}
		err := writeResolver("/", c.lease.DNS, c.domains(c.lease))
		s.keep(c)
		if err != nil {
			return fmt.Sprintf("no name resolution in the VM: %v", err)
		}
		return ""
	}
}

// keep has the lease renewed until another card takes its place, or the supervisor ends.
func (s *Supervisor) keep(c *card) {
	ctx, stop := context.WithCancel(context.Background())
	s.mu.Lock()
	before := s.disconnect
	s.disconnect = stop
	s.mu.Unlock()
	before()
	s.tasks.Go(func() {
		dhcp.Keep(ctx, c.lease, func(old dhcp.Lease, stage dhcp.Stage) (dhcp.Lease, error) {
			lease, err := c.extend(old, stage)
			if err == nil {
				c.updateResolver(old, lease)
			} else {
				s.note(slog.LevelWarn, fmt.Sprintf("network of the VM: %s: %v", c.name, err))
			}
			return lease, err
		})
	})
}

// configure brings the card up and gets its address.
func (c *card) configure(timeout time.Duration) error {
	router, err := netlink.DialRouter()
	if err != nil {
		return err
	}
	defer func() { _ = router.Close() }()
	if c.link, err = router.Link(c.name); err != nil {
		return err
	}
	c.prepareIPv6()
	if err := router.Up(c.link.Index); err != nil {
		return fmt.Errorf("switch on: %w", err)
	}
	if c.lease, err = c.ask(func(client *dhcp.Client) (dhcp.Lease, error) { return client.Acquire(timeout) }); err != nil {
		return err
	}
	return c.apply(router, dhcp.Lease{}, c.lease)
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
	return exchange(&dhcp.Client{Link: socket, MAC: c.link.MAC, Nonce: rand.Uint32})
}

// apply makes the kernel use a lease in the place of the one before.
func (c *card) apply(router netlink.Router, before, l dhcp.Lease) error {
	if l.MTU != 0 && l.MTU != c.link.MTU {
		if err := router.SetMTU(c.link.Index, l.MTU); err != nil {
			return fmt.Errorf("set the MTU to %d: %w", l.MTU, err)
		}
		c.link.MTU = l.MTU
	}
	// First, for an address that is added to one of the same subnet goes together with it. It may be gone already.
	if before.Address.IsValid() && before.Address != l.Address {
		_ = router.RemoveAddress(c.link.Index, before.Address)
	}
	if err := router.AddAddress(c.link.Index, l.Address, l.Broadcast); err != nil {
		return fmt.Errorf("set the address %v: %w", l.Address, err)
	}
	if len(l.Routers) > 0 {
		if err := router.SetDefaultRoute(c.link.Index, l.Routers[0]); err != nil {
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
	return append(c.search[:len(c.search):len(c.search)], l.Search...)
}
