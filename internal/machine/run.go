package machine

import (
	"context"
	"encoding/binary"
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
	m.config.Busy(true)
	defer m.config.Busy(false)
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

// slice calls the module's run once and adapts the next budget to the time it took.
func (m *Machine) slice(budget int64) (Reason, error) {
	if m.broken != nil {
		return 0, m.broken
	}
	start, before := m.clock.Monotonic(), m.result.Retired
	if err := m.execute(budget); err != nil {
		return 0, err
	}
	m.adapt(int64(m.result.Retired-before), m.clock.Monotonic()-start)
	if m.result.Released != 0 {
		if err := m.releasePages(); err != nil {
			return 0, err
		}
	}
	return Reason(m.stack[0]), nil
}

// adapt sets the budget so that the next slice takes sliceTarget, by the speed of this one.
func (m *Machine) adapt(executed, nanoseconds int64) {
	if executed < minBudget || nanoseconds <= 0 {
		return // too short to tell
	}
	next := executed * int64(sliceTarget) / nanoseconds
	m.budget = min(max(next, minBudget, m.budget/2), maxBudget, m.budget*2)
}

// readResult is m.read without reflection, for every slice needs it.
func (m *Machine) readResult() error {
	data, ok := m.memory.Read(m.layout.Result, 32)
	if !ok {
		return fmt.Errorf("the result at %#x is outside the machine's memory", m.layout.Result)
	}
	m.result.Retired = binary.LittleEndian.Uint64(data)
	m.result.DeadlineNS = binary.LittleEndian.Uint64(data[8:])
	m.result.Code = binary.LittleEndian.Uint32(data[16:])
	m.result.Released = binary.LittleEndian.Uint32(data[20:])
	m.result.PC = binary.LittleEndian.Uint64(data[24:])
	m.retired.Store(m.result.Retired)
	return nil
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
	m.config.Busy(false)
	defer m.config.Busy(true)
	return m.system.Wait(ctx, wait)
}
