package vm

import (
	"fmt"
	"slices"
	"sync"

	"agentvm/internal/guestrpc"
)

// checkAccess refuses an invalid Access, and forwards that it does not permit.
func (c Config) checkAccess() error {
	if err := c.Access.Check(); err != nil {
		return fmt.Errorf("access: %w", err)
	}
	if c.Network.Disabled {
		return nil
	}
	for _, f := range c.Network.Forwards {
		if f.GuestPort == 0 {
			continue // nat says what is wrong with it
		}
		if err := c.Access.naming(f.GuestPort).Decide(CallerOutside, OpLoopback, f.GuestPort); err != nil {
			return fmt.Errorf("port forward %s to port %d of the guest: %w", f, f.GuestPort, err)
		}
	}
	return nil
}

// naming returns a with more exempt ports.
func (a Access) naming(ports ...uint16) Access {
	a.LoopbackExemptPorts = slices.Concat(a.LoopbackExemptPorts, ports)
	return a
}

// clone returns a copy that shares nothing with a.
func (a Access) clone() Access {
	return Access{a.Listen.clone(), a.Connect.clone(), slices.Clone(a.LoopbackExemptPorts)}
}

func (p PortPolicy) clone() PortPolicy {
	return PortPolicy{slices.Clone(p.Allow), slices.Clone(p.Deny)}
}

// denied returns the ports that the policy does not permit, for the guest's kernel.
func (p PortPolicy) denied() (list []guestrpc.PortRange) {
	if !p.Restricts() {
		return nil
	}
	for port := 1; port <= 65535; port++ {
		switch last := len(list) - 1; {
		case p.Permits(uint16(port)):
		case last >= 0 && int(list[last].Last) == port-1:
			list[last].Last++
		default:
			list = append(list, guestrpc.PortRange{First: uint16(port), Last: uint16(port)})
		}
	}
	return list
}

// outward is egress.Config.Connect.
func (a Access) outward(port uint16) error { return a.Decide(CallerProgram, OpConnect, port) }

// portAccess is a VM's Access with the ports that its owner named in port forwards.
type portAccess struct {
	access Access

	mu    sync.Mutex
	named map[uint16]int // how many forwards name it
}

func (c Config) portAccess() *portAccess {
	f := &portAccess{access: c.Access.clone(), named: make(map[uint16]int)}
	if !c.Network.Disabled {
		for _, forward := range c.Network.Forwards {
			f.named[forward.GuestPort]++
		}
	}
	return f
}

// name exempts a port until unname is called. Calling unname more than once does no harm.
func (f *portAccess) name(port uint16) (unname func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.named[port]++
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.named[port]--; f.named[port] <= 0 {
			delete(f.named, port)
		}
	})
}

// decide is Access.Decide with the named ports.
func (f *portAccess) decide(who Caller, op Operation, port uint16) error {
	f.mu.Lock()
	named := f.named[port] > 0
	f.mu.Unlock()
	if named {
		return f.access.naming(port).Decide(who, op, port)
	}
	return f.access.Decide(who, op, port)
}

// inward is nat.Config.Inward.
func (f *portAccess) inward(_ string, port uint16) error {
	return f.decide(CallerOutside, OpLoopback, port)
}

// decide is Access.Decide for this VM.
func (v *VM) decide(who Caller, op Operation, port uint16) error {
	if v.network != nil {
		return v.network.access.decide(who, op, port)
	}
	return v.config.Access.Decide(who, op, port)
}

// Access returns what the VM was configured with.
func (v *VM) Access() Access { return v.config.Access.clone() }
