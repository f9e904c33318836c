package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	"agentvm/internal/machine"
	"agentvm/internal/storage/snapshot"
)

// Extra is what a snapshot records of its VM besides snapshot.Meta. Anybody may have written it.
type Extra struct {
	Hostname string          `json:"hostname"`
	MAC      string          `json:"mac,omitempty"` // empty: the default
	Mounts   []string        `json:"mounts,omitempty"`
	Added    []string        `json:"added,omitempty"`        // tags of devices whose mounts were added while the VM ran, and are in no restored VM
	Started  json.RawMessage `json:"started,omitempty"`      // how the VM was started, in the words of who saved it
	Commands bool            `json:"hostCommands,omitempty"` // the guest has commands of the host
	Program  string          `json:"program,omitempty"`      // version of the program that saved it; earlier ones did not say
}

// Network is what the guest of a saved machine knows of its network.
type Network struct {
	MTU         int      `json:"mtu"`
	Subnet      string   `json:"subnet"`
	Address     string   `json:"address,omitempty"` // of the guest, unless it is the default
	DisableIPv6 bool     `json:"disableIPv6,omitempty"`
	Search      []string `json:"search,omitempty"`
}

// Describe reads what a snapshot says of its VM; without a network the *Network is nil.
func Describe(m snapshot.Meta) (extra Extra, network *Network, err error) {
	read := func(raw json.RawMessage, into any) error {
		if raw == nil { // it may be missing
			return nil
		}
		return json.Unmarshal(raw, into)
	}
	err = errors.Join(read(m.Extra, &extra), read(m.Network, &network))
	return extra, network, err
}

// Shape is what a VM asks for that continues from a saved machine, as far as the machine has it already.
type Shape struct {
	Machine   string // digest of the emulator's build
	Program   string // version of this program, for errors; may be empty
	Memory    uint64 // bytes
	Mounts    int
	OwnKernel bool   // a kernel or arguments of its own
	Disk      string // path where the writable disk is to be copied; empty: none
}

// Admits refuses a shape that the machine of a snapshot cannot have.
func Admits(m snapshot.Meta, extra Extra, s Shape) error {
	switch {
	case m.Machine != s.Machine:
		return fmt.Errorf("%w: its memory is of %s with machine %.12s, and this is %s with machine %.12s", snapshot.ErrVersion,
			programName(extra.Program, "an earlier version of agentvm"), m.Machine, programName(s.Program, "another version"), s.Machine)
	case s.Memory != m.Memory:
		return fmt.Errorf("memory of %d MiB: the VM had %d MiB, which cannot change", s.Memory>>20, m.Memory>>20)
	case s.OwnKernel:
		return errors.New("a restored VM has its kernel already: leave out Kernel and KernelArguments")
	case s.Mounts < m.Shares:
		return fmt.Errorf("%d mounts: the VM had %d, at %q, and needs as many, at whatever places (-m HOST:GUEST for each)", s.Mounts, m.Shares, extra.Mounts)
	case s.Mounts > m.Shares:
		return fmt.Errorf("%d mounts: the VM had %d, at %q, and can have no more when it continues: leave out those of -m", s.Mounts, m.Shares, extra.Mounts)
	case m.SpareShares < 0 || m.SpareShares > machine.MaxShares-m.Shares:
		return fmt.Errorf("%w: it has %d devices for mounts", snapshot.ErrFormat, m.SpareShares)
	case m.Disk != nil && s.Disk == "":
		return fmt.Errorf("the snapshot has a writable disk of %d MiB: name a path where it is to be copied (Config.Disk)", m.Disk.Size>>20)
	case m.Disk == nil && s.Disk != "":
		return fmt.Errorf("writable disk %s: the VM had none, so it can have none", s.Disk)
	}
	return nil
}

// Admits refuses a network that the saved machine's guest, which has its addresses already, cannot have.
func (n *Network) Admits(asked *Network) error {
	switch {
	case asked.MTU != n.MTU:
		return fmt.Errorf("MTU of %d: the VM has %d, which cannot change", asked.MTU, n.MTU)
	case asked.Subnet != n.Subnet:
		return fmt.Errorf("subnet %s: the VM has its address in %s, which cannot change", asked.Subnet, n.Subnet)
	case asked.Address != n.Address:
		return fmt.Errorf("address %s: the VM has %s, which cannot change", cmp.Or(asked.Address, "by default"), cmp.Or(n.Address, "the one by default"))
	case asked.DisableIPv6 != n.DisableIPv6:
		return errors.New("IPv6: the VM has it and needs it, or has none and can have none (Network.DisableIPv6)")
	}
	return nil
}

// programName names a version of this program. The text may be anybody's.
func programName(version, unknown string) string {
	if version == "" {
		return unknown
	}
	return fmt.Sprintf("agentvm %.40q", version)
}
