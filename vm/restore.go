package vm

import (
	"context"
	"errors"
)

// RestoreOptions say how a restored VM differs from the one that was saved.
type RestoreOptions struct {
	// KeepPrograms has programs that ran in the VM run on; nobody sees their output, and their input ends. Default: they are
	// killed.
	KeepPrograms bool
	// SameIdentity leaves MAC, machine-id and host name as they were, and connections that lead nowhere to time out: for the
	// one VM that takes the place of the saved one. Random numbers, clock and generation are new in any case.
	SameIdentity bool
}

// Restore starts a VM from a file that Snapshot has written, and returns when it can run commands. Any number of VMs can be
// started from one file; they share the memory that none of them writes.
//
// Of c, Image, Memory, Network.MTU and Network.Subnet are the snapshot's unless given; Image, Memory, Network.MTU and
// Network.Disabled must be the same as then, Kernel and KernelArguments must be empty. There must be as many Mounts as the VM
// had: they are mounted anew. A writable disk is copied to c.Disk, where nothing may be yet. Env, Hostname and the rest of
// Network are c's alone: a policy is not part of a snapshot.
func Restore(ctx context.Context, path string, c Config, o RestoreOptions) (*VM, error) {
	return nil, errors.ErrUnsupported
}
