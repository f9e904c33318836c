package vm

import (
	"context"
	"errors"

	"agentvm/snapshot"
)

// SnapshotOptions say what a snapshot is to be.
type SnapshotOptions struct {
	// Comment is kept in the file.
	Comment string
	// Base leaves out of the file what is as in the file that this VM was started from, which must then not be removed: the
	// store keeps bases that snapshots need. Without effect where there is none. Default: the file has everything.
	Base bool
}

// Snapshot writes the VM to a file, with what is in its memory and on its writable disk, and goes on. The guest stands still only
// while what has changed in its memory is noted and its disk copied; the file is written meanwhile. It is readable by its
// owner only: it holds whatever secrets the guest has in its memory.
func (v *VM) Snapshot(ctx context.Context, path string, o SnapshotOptions) (snapshot.Meta, error) {
	return snapshot.Meta{}, errors.ErrUnsupported
}
