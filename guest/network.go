//go:build linux

package guest

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"agentvm/guest/dhcp"
	"agentvm/rpc"
)

const (
	defaultDevice      = "eth0"
	defaultDHCPTimeout = 3 * time.Second
	maxDHCPTimeout     = time.Minute
	renewTimeout       = 10 * time.Second
	renewPause         = 2 * time.Second
)

// connect begins to configure the network, while other things are started. The function it returns waits for the end, keeps what
// was configured, and says what could not be done. Without parameters nothing is done.
//
//	card up ─► IPv6: router solicitation, address by advertisement; nobody waits for it
//	   └─────► DHCP ─► address, MTU, default route ─► resolv.conf ─► renewed in the background
//
// A restored machine whose card has its address has nothing of this to do.
func (s *Supervisor) connect(p *rpc.NetworkParams, r *rpc.Restored) (wait func() (warning string)) {
	if p == nil {
		return func() string { return "" }
	}
	name := cmp.Or(p.Device, defaultDevice)
	if r != nil && s.card != nil && s.card.name == name && s.card.configured() {
		warning := s.resume(s.card, p.Search, r)
		return func() string { return warning }
	}
	c := &card{name: name, search: p.Search}
	s.card = nil
	done := make(chan error, 1)
	s.tasks.Go(func() {
		err := c.rename(r)
		if err == nil {
			err = c.configure(min(cmp.Or(p.Timeout, defaultDHCPTimeout), maxDHCPTimeout))
		}
		done <- err
	})
	return func() string {
		if err := <-done; err != nil {
			return fmt.Sprintf("no IPv4 network in the VM: %s: %v", c.name, err)
		}
		s.card = c
		s.keep(c, false)
		return c.resolve()
	}
}

// resume makes the card of a restored machine go on: under another MAC, with a new lease soon, when the machine is another one.
func (s *Supervisor) resume(c *card, search []string, r *rpc.Restored) (warning string) {
	if err := c.rename(r); err != nil {
		warning = fmt.Sprintf("the VM's network card %s keeps its MAC: %v", c.name, err)
	}
	if r.NewIdentity {
		s.keepSoon(c)
	}
	if c.setSearch(search) {
		warning = cmp.Or(warning, c.resolve())
	}
	return warning
}

// keepSoon has a new lease asked for, after the moment in which a machine that has just been restored has better things to do. Until
// then nothing changes, not even a goroutine.
func (s *Supervisor) keepSoon(c *card) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.disconnect
	ctx, cancel := context.WithCancel(context.Background())
	soon := time.AfterFunc(renewPause, s.due(ctx, c))
	s.disconnect = func() { soon.Stop(); cancel(); before() }
}

// due is what happens when the moment has come, unless what ctx stands for has ended meanwhile: the timer may have gone off by then.
func (s *Supervisor) due(ctx context.Context, c *card) func() {
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if ctx.Err() == nil {
			s.keepLocked(c, true)
		}
	}
}

// keep has the lease renewed until another card takes its place, or the supervisor ends; with anew it is asked for first.
func (s *Supervisor) keep(c *card, anew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keepLocked(c, anew)
}

// keepLocked needs s.mu.
func (s *Supervisor) keepLocked(c *card, anew bool) {
	if s.closed {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	s.disconnect()
	s.disconnect = stop
	s.tasks.Go(func() {
		lease := c.current()
		if anew {
			if next, err := s.extend(c, lease, dhcp.Expired); err == nil {
				lease = next
			}
		}
		dhcp.Keep(ctx, lease, func(old dhcp.Lease, stage dhcp.Stage) (dhcp.Lease, error) { return s.extend(c, old, stage) })
	})
}

// extend gets the next lease, and tells the host when there is none.
func (s *Supervisor) extend(c *card, old dhcp.Lease, stage dhcp.Stage) (dhcp.Lease, error) {
	lease, err := c.extend(old, stage)
	if err != nil {
		s.note(slog.LevelWarn, fmt.Sprintf("network of the VM: %s: %v", c.name, err))
		return lease, err
	}
	c.updateResolver(old, lease)
	return lease, nil
}
