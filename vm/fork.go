package vm

import (
	"context"
	"errors"
)

// ForkOptions say how forks differ from the VM they are made of.
type ForkOptions struct {
	// KeepPrograms has programs that run in the VM run on in the forks, each copy on its own; nobody sees their output, and their
	// input ends. Default: they are killed in the forks. In the VM itself they run on in any case.
	KeepPrograms bool
	// Configure changes the configuration of fork i, which is the VM's own but for this: Hostname has a suffix that no other
	// fork has, ports of the host in Network.Forwards are 0, so that each fork gets others, and Console, Network.Capture,
	// Network.Audit and Disk are not set. For a VM with a writable disk it must set Disk, to a path where a copy of
	// the disk can be made. Memory, Image, Kernel, KernelArguments, the number of Mounts, Network.Disabled and Network.MTU
	// must stay. Default: nothing is changed.
	Configure func(i int, c *Config)
}

// Fork makes n VMs that go on from where this one is, which itself goes on undisturbed but for the moment that it takes to
// note what has changed in its memory; with a writable disk, also to copy that. All share the memory that none of them writes. Each is another
// computer than this VM: it has its own random numbers, MAC, machine-id, host name and generation, and its connections to others
// are reset. docs/snapshots.md has what that means for programs.
//
// The forks' machines run when Fork returns; the first call on one waits until its guest has taken its new identity. Each
// must be stopped by itself, and none needs this VM any more. On failure there are none.
func (v *VM) Fork(ctx context.Context, n int, o ForkOptions) ([]*VM, error) {
	return nil, errors.ErrUnsupported
}

// Generation counts the forks and restores from snapshots that led to this VM: 0 for one that Start has made. Programs of the guest find it in
// /run/agentvm/generation.
func (v *VM) Generation() uint64 { return 0 }
