package vm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentvm/internal/guest/guestrpc"
)

// stopTime is how long an orderly stop may take unless its context ends sooner.
const stopTime = 10 * time.Second

// Stop ends the VM in order: where the image has a STOPSIGNAL the jobs that run get it first and have half of the time to end; the guest's
// processes get SIGTERM and then SIGKILL, disks are written back, the guest powers off. When that takes longer than 10 s or ctx, the machine is switched off as it is, and Stop says so in an error.
// Stopping a VM that has ended does nothing.
func (v *VM) Stop(ctx context.Context) error {
	v.markStopping()
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	err := v.Resume(ctx) // a paused guest cannot power off
	if err == nil {
		v.endJobs(ctx)
		var client *guestrpc.Client
		if client, err = v.guest(ctx); err == nil {
			err = client.Shutdown(ctx)
		}
	}
	if err == nil {
		select {
		case <-v.halted:
		case <-v.stuck:
			err = v.stuckErr
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	select {
	case <-v.halted:
		err = nil
	default:
	}
	v.kill(ErrStopped)
	if stuck := v.waitFreed(); stuck != nil {
		return stuck
	}
	if err != nil {
		return fmt.Errorf("the guest did not power off in time and was switched off: %w", err)
	}
	return nil
}

// endJobs sends the image's STOPSIGNAL, if it has one, to the jobs, and waits for them for half of the time that ctx has.
func (v *VM) endJobs(ctx context.Context) {
	signal, err := v.image.StopSignalNumber()
	if err != nil {
		v.config.Logger.Warn("the jobs get SIGTERM", "error", err)
	}
	end, ok := ctx.Deadline()
	if signal == 0 || !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Until(end)/2)
	defer cancel()
	v.jobs.EndDurable(ctx, signal)
}

// Close switches the VM off at once, like pulling the plug. What the guest has not written back is lost; mounted host
// directories are always written through. Closing a VM that has ended does nothing. The error is a *GuestError for one whose machine
// cannot be stopped (Overran).
func (v *VM) Close() error {
	v.markStopping()
	v.kill(ErrStopped)
	return v.waitFreed()
}

// Done is closed when the VM has ended, for whatever reason, and all its resources are free.
func (v *VM) Done() <-chan struct{} { return v.done }

// Halted is closed when the machine has stopped, for whatever reason: nothing runs in it any more. Done is closed after it.
func (v *VM) Halted() <-chan struct{} { return v.halted }

// Wait returns when the VM has ended: nil after Stop or Close, else a *GuestError. When ctx ends first the VM runs on.
func (v *VM) Wait(ctx context.Context) error {
	select {
	case <-v.done:
	case <-v.stuck:
		return v.stuckErr
	case <-ctx.Done():
		return ctx.Err()
	}
	if errors.Is(v.cause, ErrStopped) {
		return nil
	}
	return v.cause
}

// markStopping has the VM's end count as intended (ErrStopped), unless the VM has ended already.
func (v *VM) markStopping() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stopping = true
}

func (v *VM) isStopping() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.stopping
}
