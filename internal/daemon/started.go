package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"agentvm/egress"
	"agentvm/internal/checkpoint"
	"agentvm/internal/mount"
	"agentvm/internal/snapshot"
	"agentvm/vm"
)

// Started is what a snapshot's file says about how its VM was started. The file may leave the host, so that this has no path, address or
// port of the host, and no values of environment variables. It has their names, so that the user who restores the VM can give the values
// again.
type Started struct {
	Hostname string            `json:"hostname,omitempty"`
	Env      []string          `json:"env,omitempty"`    // names of variables
	Mounts   []MountRef        `json:"mounts,omitempty"` // in the order of the devices
	Network  Network           `json:"network,omitzero"`
	Access   Access            `json:"access,omitzero"`
	DiskSize int64             `json:"diskSize,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
}

// MountRef is a mount of the saved VM, without the host's path.
type MountRef struct {
	GuestPath string `json:"guestPath"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
	// CopyOnWrite mounts have what the guest has changed in the snapshot.
	CopyOnWrite bool `json:"copyOnWrite,omitempty"`
}

// Started returns what a snapshot of a VM with this configuration says.
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
			s.Mounts = append(s.Mounts, MountRef{spec.GuestPath, spec.ReadOnly, spec.CopyOnWrite})
		}
	}
	return s
}

// StartedAs reads a snapshot's Started; the zero value when it has none.
func StartedAs(m snapshot.Meta) (s Started, err error) {
	extra, _, err := checkpoint.Describe(m)
	if err == nil && extra.Started != nil {
		err = json.Unmarshal(extra.Started, &s)
	}
	if err != nil {
		return Started{}, fmt.Errorf("what the snapshot says of how its VM was started: %w", err)
	}
	return s, nil
}

// Config is the part of it that a VM restored from the snapshot gets. A stranger may have made the snapshot, so that this grants nothing
// that a new VM would not have: an open network is an error, and the caller decides about everything that needs files or ports of the
// host.
func (s Started) Config() (Config, error) {
	c := Config{Config: vm.Config{Hostname: s.Hostname}, DiskSize: s.DiskSize, Labels: s.Labels, Access: s.Access}
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

// ErrOpenNetwork says that a snapshot's VM had a network without limits. Config returns it with a configuration that has the default
// policy.
var ErrOpenNetwork = errors.New("the VM had an open network, which a snapshot cannot give by itself")
