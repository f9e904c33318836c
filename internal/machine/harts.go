package machine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

// all are the machine's harts, the first one first.
func (m *Machine) all() []*hart { return append([]*hart{&m.hart}, m.others...) }

// instantiateHarts makes the module by which harts of one machine have each other continue, see src/common/harts.c.
func instantiateHarts(ctx context.Context, r wazero.Runtime) error {
	pause := func(context.Context, []uint64) { runtime.Gosched() }
	wake := func(ctx context.Context, stack []uint64) {
		if m, ok := ctx.Value(machineKey{}).(*Machine); ok {
			m.wakeHart(int(uint32(stack[0])))
		}
	}
	exchange := func(_ context.Context, module api.Module, stack []uint64) {
		at, ok := module.Memory().Read(uint32(stack[0])&^15, 16)
		operands, okToo := module.Memory().Read(uint32(stack[1])&^7, 48)
		if ok && okToo {
			exchange128(unsafe.Pointer(unsafe.SliceData(at)), (*[6]uint64)(unsafe.Pointer(unsafe.SliceData(operands))))
		}
	}
	_, err := r.NewHostModuleBuilder("harts").
		NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(exchange), []api.ValueType{api.ValueTypeI32, api.ValueTypeI32}, nil).Export("exchange_128").
		NewFunctionBuilder().WithGoFunction(api.GoFunc(pause), nil, nil).Export("pause").
		NewFunctionBuilder().WithGoFunction(api.GoFunc(wake), []api.ValueType{api.ValueTypeI32}, nil).Export("wake").
		Instantiate(ctx)
	return err
}

// machineKey is the key of the machine in the context of its calls.
type machineKey struct{}

// sharedMemory is the machine's memory for the instances of the other harts. It is the first one's to free.
type sharedMemory struct{ *linearMemory }

func (s sharedMemory) Allocate(_, _ uint64) experimental.LinearMemory { return s }

func (sharedMemory) Free() {}

// instantiateOthers makes the other harts' instances. Each writes the module's data to its place again, so that has to come before all else.
func (m *Machine) instantiateOthers(p *Program) error {
	if m.config.harts() == 1 {
		return nil
	}
	if !hasExchange128 {
		return fmt.Errorf("%d processors: on this host a machine has one", m.config.harts())
	}
	m.ctx = context.WithValue(m.ctx, machineKey{}, m)
	for i := 1; i < m.config.harts(); i++ {
		h := &hart{m: m, number: i, ctx: m.ctx, budget: firstBudget, wake: make(chan struct{}, 1)}
		m.others = append(m.others, h)
		if err := h.instantiateIn(p, sharedMemory{m.linear}); err != nil {
			return err
		}
	}
	return nil
}

func setGlobal(module api.Module, name string, value uint32) error {
	g, ok := module.ExportedGlobal(name).(api.MutableGlobal)
	if !ok {
		return errors.New("this module is for one processor")
	}
	g.Set(uint64(value))
	return nil
}

// placeOthers has the instances know their harts, and memory that one of them has added.
func (m *Machine) placeOthers() error {
	size := m.memory.Size()
	for _, h := range m.others {
		size = max(size, h.module.Memory().Size())
	}
	if _, ok := m.memory.Grow((size - m.memory.Size()) / wasmPage); !ok {
		return errors.New("the machine's memory does not fit")
	}
	for _, h := range m.others {
		memory := h.module.Memory()
		if _, ok := memory.Grow((size - memory.Size()) / wasmPage); !ok {
			return errors.New("the machine's memory does not fit")
		}
		if err := errors.Join(setGlobal(h.module, "hart_base", h.address()), setGlobal(h.module, "__stack_pointer", h.address())); err != nil {
			return err
		}
	}
	return nil
}

// startOthers follows init: each has memory of its own.
func (m *Machine) startOthers() error {
	for _, h := range m.others {
		if err := m.placeOthers(); err != nil {
			return err
		}
		code, err := h.module.ExportedFunction("init_hart").Call(h.ctx)
		if err != nil || code[0] != 0 {
			return errors.Join(err, fmt.Errorf("processor %d has no memory", h.number))
		}
	}
	return m.placeOthers()
}

// callOthers calls an export without arguments and results in the other harts' instances.
func (m *Machine) callOthers(name string) error {
	for _, h := range m.others {
		if _, err := h.module.ExportedFunction(name).Call(h.ctx); err != nil {
			return fmt.Errorf("%s of processor %d: %w", name, h.number, err)
		}
	}
	return nil
}

// busy counts the harts that execute, for Config.Busy.
func (m *Machine) busy(on bool) {
	m.executing.Lock()
	defer m.executing.Unlock()
	if on {
		if m.executing.harts++; m.executing.harts == 1 {
			m.config.Busy(true)
		}
		return
	}
	if m.executing.harts--; m.executing.harts == 0 {
		m.config.Busy(false)
	}
}

// wakeHart has a hart that waits look for what it has to do.
func (m *Machine) wakeHart(number int) {
	if number == 0 {
		m.system.Notify(fdWake)
		return
	}
	select {
	case m.others[number-1].wake <- struct{}{}:
	default: // a token is there already
	}
}

// runAll runs the other harts beside the first one, until one of them ends the machine. All of them rest when it returns.
func (m *Machine) runAll(ctx context.Context) (Exit, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	for _, h := range m.others {
		running.Go(func() {
			if exit, err := h.run(ctx); err != nil || exit.Reason != reasonBudget {
				stop(&ended{exit, err})
			}
		})
	}
	exit, err := m.run(ctx)
	stop(nil)
	running.Wait()
	var other *ended
	if errors.As(context.Cause(ctx), &other) {
		return other.exit, other.err
	}
	return exit, err
}

// ended is how another hart than the first one ended the machine.
type ended struct {
	exit Exit
	err  error
}

func (*ended) Error() string { return "another processor ended the machine" }

// run executes a hart that is not the first. An exit with reasonBudget says that ctx is done.
func (h *hart) run(ctx context.Context) (Exit, error) {
	h.m.busy(true)
	defer h.m.busy(false)
	for ctx.Err() == nil {
		reason, err := h.slice(h.budget)
		switch {
		case err != nil:
			return Exit{}, fmt.Errorf("processor %d broke: %w", h.number, err)
		case reason == reasonIdle:
			h.idle(ctx)
		case reason != reasonBudget:
			return Exit{Reason: reason, Code: h.result.Code}, nil
		default:
			runtime.Gosched()
		}
	}
	return Exit{}, nil
}

// idle waits for the hart's next timer, or until it is woken.
func (h *hart) idle(ctx context.Context) {
	var expired <-chan time.Time
	if h.result.DeadlineNS != noDeadline {
		wait := time.Duration(int64(h.result.DeadlineNS) - h.m.clock.Monotonic())
		if wait <= 0 {
			return
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		expired = timer.C
	}
	h.m.busy(false)
	defer h.m.busy(true)
	select {
	case <-h.wake:
	case <-expired:
	case <-ctx.Done():
	}
}
