package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

// firstHart is HART_ADDRESS of src/arm64/hart.h.
const firstHart = 0x10000

// hart is a processor of a machine: an instance of the module. One goroutine runs it.
type hart struct {
	m        *Machine
	number   int
	ctx      context.Context // carries the System, and what native code needs, into the module's calls
	module   api.Module
	runSlice api.Function
	stack    [2]uint64 // arguments and result of run
	budget   int64     // instructions of the next slice
	result   abiResult
	retired  atomic.Uint64 // of result, for other goroutines
	slices   atomic.Uint64 // begun and ended, see Progress
	looked   atomic.Uint64 // slices, when Progress was asked last
	jit      *machineJIT   // nil: everything is interpreted
	wake     chan struct{} // one token: it has something to do; of others than the first
}

// instantiateIn makes the hart's instance over the machine's memory.
func (h *hart) instantiateIn(p *Program, memory experimental.MemoryAllocator) error {
	module, err := p.runtime.InstantiateModule(experimental.WithMemoryAllocator(h.ctx, memory), p.compiled,
		wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		return err
	}
	h.module, h.runSlice = module, module.ExportedFunction("run")
	if base, ok := module.ExportedGlobal("hart_base").(api.MutableGlobal); ok {
		base.Set(firstHart) // until placeOthers
	}
	return nil
}

// address is where the hart is in linear memory.
func (h *hart) address() uint32 {
	if h.number == 0 {
		return h.m.layout.Hart
	}
	return h.m.layout.Harts[h.number]
}

func (h *hart) resultAt() uint32 { return h.m.layout.Result - h.m.layout.Hart + h.address() }

// ready is which descriptors changed: the first hart looks at them.
func (h *hart) ready() uint64 {
	if h.number != 0 {
		return 0
	}
	return h.m.system.TakeReady()
}

func (h *hart) close() error {
	var err error
	if h.module != nil {
		err = h.module.Close(h.ctx)
	}
	if h.jit != nil {
		err = errors.Join(err, h.jit.close())
	}
	return err
}

// slice calls the module's run once and adapts the next budget to the time it took.
func (h *hart) slice(budget int64) (Reason, error) {
	if h.m.broken != nil {
		return 0, h.m.broken
	}
	start, before := h.m.clock.Monotonic(), h.result.Retired
	if err := h.execute(budget); err != nil {
		return 0, err
	}
	h.adapt(int64(h.result.Retired-before), h.m.clock.Monotonic()-start)
	if h.result.Released != 0 {
		if err := h.m.releasePages(h); err != nil {
			return 0, err
		}
	}
	return Reason(h.stack[0]), nil
}

// adapt sets the budget so that the next slice takes sliceTarget, by the speed of this one.
func (h *hart) adapt(executed, nanoseconds int64) {
	if executed < minBudget || nanoseconds <= 0 {
		return // too short to tell
	}
	next := executed * int64(sliceTarget) / nanoseconds
	h.budget = min(max(next, minBudget, h.budget/2), maxBudget, h.budget*2)
}

// readResult is Machine.read without reflection, for every slice needs it.
func (h *hart) readResult() error {
	data, ok := h.m.memory.Read(h.resultAt(), 32)
	if !ok {
		return fmt.Errorf("the result at %#x is outside the machine's memory", h.resultAt())
	}
	h.result.Retired = binary.LittleEndian.Uint64(data)
	h.result.DeadlineNS = binary.LittleEndian.Uint64(data[8:])
	h.result.Code = binary.LittleEndian.Uint32(data[16:])
	h.result.Released = binary.LittleEndian.Uint32(data[20:])
	h.result.PC = binary.LittleEndian.Uint64(data[24:])
	h.retired.Store(h.result.Retired)
	return nil
}

// execute runs a slice. When the machine waits for a translation, the slice continues with it.
func (h *hart) execute(budget int64) error {
	h.stack[0], h.stack[1] = uint64(budget), h.ready()
	for {
		before := h.result.Retired
		h.slices.Add(1)
		err := h.runSlice.CallWithStack(h.ctx, h.stack[:])
		h.slices.Add(1)
		if err != nil {
			return err
		}
		if err := h.readResult(); err != nil || h.jit == nil {
			return err
		}
		if err := h.jit.afterSlice(); err != nil || Reason(h.stack[0]) != reasonTranslate {
			return err
		}
		budget -= int64(h.result.Retired - before)
		h.stack[0], h.stack[1] = uint64(budget), 0
	}
}
