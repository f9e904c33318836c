package daemon

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"agentvm/egress"
	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/errno"
	"agentvm/nat"
)

// What changes while a VM runs also changes in its kept configuration, so that a guest that restarts itself, and a later start, have it, too:
// otherwise a guest could undo a new deny rule by a reboot.

// settings is the configuration as it is now.
func (d *daemon) settings() Config {
	d.configMu.Lock()
	defer d.configMu.Unlock()
	return d.config
}

// amend changes the configuration, here and in its file. change must not change what slices of the old one lead to.
func (d *daemon) amend(change func(*Config)) error {
	d.amending.Lock()
	defer d.amending.Unlock()
	c := d.settings()
	if c.ChangedFrom == nil {
		c.ChangedFrom = &Changeable{c.Network.Policy, c.Network.Forwards, c.IdleTimeout, c.HibernateAfter, c.MaxLifetime, c.Restart}
	}
	change(&c)
	err := writeConfig(d.paths.config(), c)
	d.configMu.Lock() // also when it is not kept: the VM has changed already
	d.config = c
	d.configMu.Unlock()
	if err != nil {
		return fmt.Errorf("the VM has changed, but its next start will not have it: %w", err)
	}
	return nil
}

// SetPolicy replaces the network policy of a version; "" is any.
func (h handler) SetPolicy(ctx context.Context, p egress.Policy, version string) (cut int, err error) {
	v, err := h.d.running()
	if err != nil {
		return 0, err
	}
	h.d.policing.Lock()
	defer h.d.policing.Unlock()
	if cut, err = v.ReplacePolicy(ctx, version, p); err != nil {
		return 0, err
	}
	h.d.event(Event{Kind: EventPolicy, Message: p.String(), Cut: cut})
	return cut, h.d.amend(func(c *Config) { c.Network.Policy = p })
}

// Forward opens one more port.
func (h handler) Forward(ctx context.Context, forward string) (string, error) {
	v, err := h.d.running()
	if err != nil {
		return "", err
	}
	f, err := nat.ParseForward(forward)
	if err != nil {
		return "", err
	}
	at, err := v.Forward(context.WithoutCancel(ctx), f) // it outlives the client
	if err != nil {
		return "", err
	}
	h.d.event(Event{Kind: EventPortOpened, Message: fmt.Sprintf("%s -> %s/%s", at, f.Target(), at.Network())})
	return at.String(), h.d.amend(func(c *Config) { c.Network.Forwards = append(slices.Clone(c.Network.Forwards), f) })
}

// Change changes settings.
func (h handler) Change(ctx context.Context, c daemonrpc.Change) error {
	if c.CloseForward != "" {
		if err := h.closeForward(ctx, c.CloseForward); err != nil {
			return err
		}
	}
	if c.AddMount != "" {
		if err := h.addMount(ctx, c.AddMount); err != nil {
			return err
		}
	}
	if c.RemoveMount != nil {
		if err := h.removeMount(ctx, *c.RemoveMount); err != nil {
			return err
		}
	}
	for _, limit := range []struct {
		to *Duration
		is string
	}{{(*Duration)(c.IdleTimeout), "idle time-out"}, {(*Duration)(c.MaxLifetime), "maximum lifetime"}} {
		if limit.to != nil && *limit.to < 0 {
			return invalid("%s: want a positive time, or 0 for none", limit.is)
		}
	}
	if c.Restart != nil && !validRestart(RestartPolicy(*c.Restart)) {
		return invalid("restart %.40q: want always, on-failure or never", *c.Restart)
	}
	if c.HibernateAfter != nil {
		changed := h.d.settings()
		changed.HibernateAfter = Duration(*c.HibernateAfter)
		if err := changed.checkHibernation(); err != nil {
			return invalid("%v", err)
		}
	}
	if c.IdleTimeout == nil && c.HibernateAfter == nil && c.MaxLifetime == nil && c.Restart == nil {
		return nil
	}
	return h.d.amend(func(config *Config) {
		if c.IdleTimeout != nil {
			config.IdleTimeout = Duration(*c.IdleTimeout)
		}
		if c.HibernateAfter != nil {
			config.HibernateAfter = Duration(*c.HibernateAfter)
		}
		if c.MaxLifetime != nil {
			config.MaxLifetime = Duration(*c.MaxLifetime)
		}
		if c.Restart != nil {
			config.Restart = RestartPolicy(*c.Restart)
		}
	})
}

func invalid(format string, args ...any) error {
	return &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: fmt.Sprintf(format, args...)}
}

// closeForward closes a port that listens at ADDRESS:PORT/PROTOCOL, and forgets it for later starts.
func (h handler) closeForward(ctx context.Context, text string) error {
	v, err := h.d.running()
	if err != nil {
		return err
	}
	address, protocol, _ := strings.Cut(text, "/")
	listen, err := netip.ParseAddrPort(address)
	if err != nil || protocol != "tcp" && protocol != "udp" {
		return invalid("port %.80q: want ADDRESS:PORT/tcp or /udp", text)
	}
	open, err := v.Ports(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(open, func(f nat.Forward) bool { return f.Listen == listen && f.Protocol == protocol })
	if i < 0 {
		return &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.ENOENT, Message: fmt.Sprintf("no port forward listens at %s", text)}
	}
	var at net.Addr = net.TCPAddrFromAddrPort(listen)
	if protocol == "udp" {
		at = net.UDPAddrFromAddrPort(listen)
	}
	if err := v.CloseForward(ctx, at); err != nil {
		return err
	}
	if h.d.reclaim(text) {
		return nil
	}
	h.d.event(Event{Kind: EventPortClosed, Message: fmt.Sprintf("%s -> %s/%s", at, open[i].Target(), protocol)})
	return h.d.amend(func(c *Config) {
		// A forward at port 0 listens elsewhere than it was asked for: of several that match, any one is as good.
		which := slices.IndexFunc(c.Network.Forwards, func(f nat.Forward) bool {
			asked := f.Listen.Port()
			return f.GuestPort == open[i].GuestPort && f.Localhost == open[i].Localhost && (f.Protocol == "udp") == (protocol == "udp") && (asked == 0 || asked == listen.Port())
		})
		if which >= 0 {
			c.Network.Forwards = slices.Delete(slices.Clone(c.Network.Forwards), which, which+1)
		}
	})
}
