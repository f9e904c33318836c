package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"agentvm/egress"
	"agentvm/mount"
	"agentvm/snapshot"
	"agentvm/vm"
)

// Started is what a snapshot's file says of how its VM was started, for whoever has nothing but the file. It leaves this computer, so it
// has no path, address or port of the host, and no value of the environment: what it was given is named, for whoever restores it to give
// again, or not.
type Started struct {
	Hostname string            `json:"hostname,omitempty"`
	Env      []string          `json:"env,omitempty"`    // names of variables
	Mounts   []MountWish       `json:"mounts,omitempty"` // in the order of the devices
	Network  Network           `json:"network,omitzero"`
	Access   Access            `json:"access,omitzero"`
	DiskSize int64             `json:"diskSize,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
}

// MountWish is where a directory was mounted.
type MountWish struct {
	GuestPath string `json:"guestPath"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
}

// Started says how a VM of this configuration was started.
func (c Config) Started() Started {
	s := Started{Hostname: c.Hostname, Access: c.Access, DiskSize: c.DiskSize, Labels: c.Labels}
	n := c.Network
	s.Network = Network{
		Disabled: n.Disabled, Policy: n.Policy, Search: n.Search, Subnet: n.Subnet, DisableIPv6: n.DisableIPv6, MTU: n.MTU,
		SendLimit: n.SendLimit, ReceiveLimit: n.ReceiveLimit,
	}
	for _, kv := range c.Env {
		name, _, _ := strings.Cut(kv, "=")
		s.Env = append(s.Env, name)
	}
	for _, text := range c.Mounts {
		if spec, err := mount.Parse(text); err == nil {
			s.Mounts = append(s.Mounts, MountWish{spec.GuestPath, spec.ReadOnly})
		}
	}
	return s
}

// StartedAs reads what a snapshot says of its VM; zero when it says nothing.
func StartedAs(m snapshot.Meta) (s Started, err error) {
	raw, err := vm.StartedAs(m)
	if err == nil && raw != nil {
		err = json.Unmarshal(raw, &s)
	}
	if err != nil {
		return Started{}, fmt.Errorf("what the snapshot says of how its VM was started: %w", err)
	}
	return s, nil
}

// Config is what of it a VM gets that goes on from the snapshot. Anybody may have made that, so it grants nothing that a new VM would
// not have: a network that was open is an error, and what needs something of this computer is left to the caller.
func (s Started) Config() (Config, error) {
	c := Config{Hostname: s.Hostname, DiskSize: s.DiskSize, Labels: s.Labels, Access: s.Access}
	c.Access.LoopbackExemptPorts = nil
	n := s.Network
	c.Network = Network{
		Disabled: n.Disabled, Policy: n.Policy, Search: n.Search, Subnet: n.Subnet, DisableIPv6: n.DisableIPv6, MTU: n.MTU,
		SendLimit: n.SendLimit, ReceiveLimit: n.ReceiveLimit,
	}
	if n.Policy.Effective() == egress.Open {
		c.Network.Policy = egress.Policy{}
		return c, ErrOpenNetwork
	}
	return c, c.Check()
}

// ErrOpenNetwork says that the VM of a snapshot of others had a network with no limits. The configuration that comes with it has the usual one.
var ErrOpenNetwork = errors.New("the VM had an open network, which a snapshot cannot give by itself")
