package machine

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// Reason says why the guest stopped.
type Reason uint32

// Reasons, with the values of enum run_reason in src/common/processor.h.
const (
	reasonBudget Reason = iota
	reasonIdle
	PowerOff // the guest powered itself off
	Reboot   // the guest asked for a reset; a kernel that panics does
	Failure  // the guest reported a failure, see Exit.Code
)

// String names the reason in words.
func (r Reason) String() string {
	switch r {
	case PowerOff:
		return "powered off"
	case Reboot:
		return "asked for a reboot"
	case Failure:
		return "reported a failure"
	default:
		return fmt.Sprintf("reason %d", uint32(r))
	}
}

// Exit is how a run of the guest ended.
type Exit struct {
	Reason Reason
	Code   uint32 // with Failure: what the guest wrote to the finisher or to SBI SRST
}

// A slice runs without Go being able to stop it, and a garbage collection waits for it: slices aim at half a
// millisecond and stay below one.
const (
	sliceTarget = 500 * time.Microsecond
	firstBudget = 20_000
	minBudget   = 1_000
	maxBudget   = 1_000_000
)

// Run executes the guest until it stops by itself or ctx is done, in which case it returns ctx's error; the machine
// can then be Run again and continues where it was. Waiting for timers and input takes no processor time.
func (m *Machine) Run(ctx context.Context) (Exit, error) {
	m.busy(true)
	defer m.busy(false)
	if len(m.others) == 0 {
		return m.run(ctx)
	}
	return m.runAll(ctx)
}

// run executes the first hart.
func (m *Machine) run(ctx context.Context) (Exit, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Exit{}, err
		}
		reason, err := m.slice(m.budget)
		switch {
		case err != nil:
			return Exit{}, fmt.Errorf("the machine broke: %w", err)
		case reason == reasonIdle:
			if err := m.idle(ctx); err != nil {
				return Exit{}, err
			}
		case reason != reasonBudget:
			return Exit{Reason: reason, Code: m.result.Code}, nil
		default:
			runtime.Gosched() // with one processor, the goroutines that feed the machine must get their turn
		}
	}
}

// Step executes budget instructions, in as many slices as that takes, and reports whether the guest stopped. An idle guest returns at once.
func (m *Machine) Step(budget int64) (exit Exit, stopped bool, err error) {
	const patience = 3 // slices without an instruction: devices may have work left, or a page was decoded
	for end, idle := m.result.Retired+uint64(budget), 0; m.result.Retired < end && idle < patience; idle++ {
		before := m.result.Retired
		reason, err := m.slice(int64(end - before))
		if err != nil || reason == reasonIdle {
			return Exit{}, false, err
		}
		if reason != reasonBudget {
			return Exit{Reason: reason, Code: m.result.Code}, true, nil
		}
		if m.result.Retired > before {
			idle = -1
		}
	}
	return Exit{}, false, nil
}

const noDeadline = ^uint64(0)

// idle waits for input or for the guest's next timer.
func (m *Machine) idle(ctx context.Context) error {
	wait := time.Duration(-1)
	if m.result.DeadlineNS != noDeadline {
		wait = max(0, time.Duration(int64(m.result.DeadlineNS)-m.clock.Monotonic()))
	}
	if wait == 0 {
		return nil
	}
	switch trim := m.trimWait(); {
	case trim == 0:
		if err := m.trim(); err != nil {
			return err
		}
	case trim > 0 && (wait < 0 || wait > trim):
		wait = trim // the slice that follows finds the guest idle again
	}
	m.busy(false)
	defer m.busy(true)
	return m.system.Wait(ctx, wait)
}
