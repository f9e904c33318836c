package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"agentvm/egress"
	"agentvm/internal/settings"
	"agentvm/internal/storage/checkpoint"
	"agentvm/internal/storage/snapshot"
	"agentvm/vm"
)

// Started is what a snapshot's file says about how its VM was started. The file may leave the host, so that this has no path, address or
// port of the host, and no values of environment variables. It has their names, so that the user who restores the VM can give the values
// again.
type Started struct {
	Hostname string            `json:"hostname,omitempty"`
	Env      []string          `json:"env,omitempty"`    // names of variables
	Mounts   []MountRef        `json:"mounts,omitempty"` // in the order of the devices
	Network  vm.Network        `json:"network,omitzero"`
	Access   vm.Access         `json:"access,omitzero"`
	WorkDir  string            `json:"workingDir,omitempty"`
	DiskSize int64             `json:"diskSize,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Switches []string          `json:"switches,omitempty"` // keys of the settings that are on (settings.Switches)
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
	s := Started{Hostname: c.Hostname, Network: portable(c.Network), Access: c.Access, WorkDir: c.WorkingDir, DiskSize: c.DiskSize, Labels: c.Labels}
	for _, setting := range settings.Switches() {
		if *setting.Switch(&c.Config) {
			s.Switches = append(s.Switches, setting.Key)
		}
	}
	for _, kv := range c.Env {
		name, _, _ := strings.Cut(kv, "=")
		s.Env = append(s.Env, name)
	}
	for _, m := range c.Mounts {
		s.Mounts = append(s.Mounts, MountRef{m.GuestPath, m.ReadOnly, m.CopyOnWrite})
	}
	return s
}

// portable is the part of a network that has nothing of the host.
func portable(n vm.Network) vm.Network {
	from, to := vm.Config{Network: n}, vm.Config{Network: vm.Network{Policy: n.Policy}}
	for _, s := range settings.All() {
		if s.Portable {
			s.Copy(settings.Config{Config: &to}, settings.Config{Config: &from})
		}
	}
	return to.Network
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
	c := Config{Config: vm.Config{Hostname: s.Hostname, WorkingDir: s.WorkDir, Access: s.Access, Network: portable(s.Network)}, DiskSize: s.DiskSize, Labels: s.Labels}
	c.Access.LoopbackExemptPorts = nil
	for _, key := range s.Switches { // each takes something away from the guest
		switches := settings.Switches()
		i := slices.IndexFunc(switches, func(setting settings.Setting) bool { return setting.Key == key })
		if i < 0 {
			return c, fmt.Errorf("the VM was started with %.80q, which this agentvm does not know: restore it with a newer one", key)
		}
		*switches[i].Switch(&c.Config) = true
	}
	if s.Network.Policy.ReachesRestricted() {
		c.Network.Policy = egress.Policy{}
		return c, ErrOpenNetwork
	}
	return c, c.Validate()
}

// ErrOpenNetwork says that a snapshot's VM had a network without limits. Config returns it with a configuration that has the default
// policy.
var ErrOpenNetwork = errors.New("the VM reached private networks, which a snapshot cannot give by itself")
