package vm

import (
	"context"
	"errors"
)

// Pause stops the machine between two instructions. It takes no processor time until Resume, its guest's time stands still,
// and what is asked of it waits for that. Its mounts, sockets and memory stay. Pausing a paused VM does nothing. Stop and
// Close end a paused VM.
func (v *VM) Pause(ctx context.Context) error { return errors.ErrUnsupported }

// Resume has a paused machine go on, and sets its clock. Resuming a VM that runs does nothing.
func (v *VM) Resume(ctx context.Context) error { return errors.ErrUnsupported }

// Paused says whether the machine is paused.
func (v *VM) Paused() bool { return false }
