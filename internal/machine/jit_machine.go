package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"agentvm/internal/machine/jit"
)

// reasonTranslate is enum run_reason's RUN_TRANSLATE: TranslateAll needs its answer before the guest continues.
const reasonTranslate Reason = 5

// abiJIT mirrors struct jit_layout of src/jit.c.
type abiJIT struct {
	jit.Layout
	State, Functions               uint32
	Undecoded, CodePageSize        uint32
	Edge, EdgeThreshold, Threshold uint32
	SplitAccess                    uint32
	Other                          uint32 // xor of the numbers of the two entries of a page in a table of the TLB
}

// Offsets in struct jit_state of src/jit.h.
const (
	jitHotCount   = 8
	jitRefused    = 12
	jitEntered    = 32
	jitNoProgress = 40
	jitExecuted   = 48
	jitChained    = 56
	jitUnmapped   = 64
	jitBudgetExit = 72
	jitHotList    = 80 + 8*256
	jitHotMax     = 256
)

// machineJIT is the translated code of one machine. It belongs to the goroutine that runs the machine, except for the inbox.
type machineJIT struct {
	m        *Machine
	t        *translator
	abi      abiJIT
	table    uint32 // index of the first function
	shim     api.Module
	set      api.Function
	grow     api.Function
	install  api.Function
	reserve  api.Function
	remove   api.Function
	grown    uint32 // functions that the table has room for
	pages    map[uint32]*translatedPage
	lastPage uint64 // id of the newest of them
	hotness  hotness
	budget   compileBudget
	full     bool        // no more is asked for: the host has no room
	native   *nativeCode // nil: nothing was translated to native code yet

	functions map[uint32]*instance // by place in the table
	oldest    []uint32             // their numbers, in the order of installation
	stats     JITStats
	final     JITStats // when the machine was closed

	closed  atomic.Bool
	arrived atomic.Bool
	mu      sync.Mutex
	inbox   []result
}

// result is a finished job.
type result struct {
	request *request
	made    *translation
	took    time.Duration
}

// startJIT prepares a new or restored machine.
func (m *Machine) startJIT(ctx context.Context, p *Program) error {
	t := p.translator
	if t.mode == TranslateNever || (m.config.Deterministic && t.mode == TranslateHot) {
		// The image that a machine is restored from may have entries of functions that are not here.
		_, err := m.module.ExportedFunction("jit_configure").Call(m.ctx, 0, 0, 0)
		return err
	}
	j := &machineJIT{
		m: m, t: t, pages: map[uint32]*translatedPage{}, functions: map[uint32]*instance{}, hotness: newHotness(),
		install: m.module.ExportedFunction("jit_install"), reserve: m.module.ExportedFunction("jit_reserve"),
		remove: m.module.ExportedFunction("jit_remove"),
	}
	var err error
	if j.shim, err = j.instantiate(ctx, t.shim); err != nil {
		return fmt.Errorf("reach the machine's table of functions: %w", err)
	}
	j.set, j.grow = j.shim.ExportedFunction("set"), j.shim.ExportedFunction("grow")
	size, err := j.grow.Call(m.ctx, 0)
	if err != nil {
		return err
	}
	j.table = uint32(size[0])
	layout, err := m.module.ExportedFunction("jit_configure").Call(m.ctx, 1, uint64(flag(t.mode == TranslateAll, 1)), size[0])
	if err != nil {
		return err
	}
	if err := m.read(uint32(layout[0]), &j.abi); err != nil {
		return err
	}
	if j.abi.Version != jit.Version {
		return fmt.Errorf("machine.wasm has version %d of the contract with translated code, this program %d: rebuild it with `make wasm`", j.abi.Version, jit.Version)
	}
	j.budget.executed, j.budget.entered = j.counter(jitExecuted), j.counter(jitEntered)
	m.jit, m.linear.shared = j, true
	return nil
}

// instantiate makes an instance whose imports are the machine's exports.
func (j *machineJIT) instantiate(ctx context.Context, compiled wazero.CompiledModule) (api.Module, error) {
	resolve := func(string) api.Module { return j.m.module }
	return j.t.runtime.InstantiateModule(experimental.WithImportResolver(ctx, resolve), compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions())
}

// counter reads a member of struct jit_state.
func (j *machineJIT) counter(offset uint32) uint64 {
	value, _ := j.m.memory.ReadUint64Le(j.abi.State + offset)
	return value
}

func (j *machineJIT) deliver(d result) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed.Load() {
		d.made.release()
		return
	}
	j.inbox = append(j.inbox, d)
	j.arrived.Store(true)
}

// afterSlice notes what is hot, installs what the translator has finished, and requests more.
func (j *machineJIT) afterSlice() error {
	count, ok := j.m.memory.ReadUint32Le(j.abi.State + jitHotCount)
	if !ok {
		return errOutside
	}
	if count != 0 {
		if err := j.collect(min(count, jitHotMax)); err != nil {
			return err
		}
	}
	if j.t.native != nil {
		return nil
	}
	if j.arrived.Load() {
		if err := j.takeInbox(); err != nil {
			return err
		}
	}
	return j.scheduleTranslations()
}

var errOutside = errors.New("the machine's list of hot code is outside its memory")

func (j *machineJIT) takeInbox() error {
	j.mu.Lock()
	inbox := j.inbox
	j.inbox = nil
	j.arrived.Store(false)
	j.mu.Unlock()
	for i, d := range inbox {
		j.budget.spent(d.took + costOfPlace)
		j.budget.waiting--
		if err := j.accept(d.request, d.made); err != nil {
			for _, rest := range inbox[i+1:] {
				rest.made.release()
			}
			return err
		}
	}
	return nil
}

// collect empties the list of hot code.
func (j *machineJIT) collect(count uint32) error {
	list, ok := j.m.memory.Read(j.abi.State+jitHotList, 8*count)
	if !ok || !j.m.memory.WriteUint32Le(j.abi.State+jitHotCount, 0) {
		return errOutside
	}
	for list = slices.Clone(list); len(list) > 0; list = list[8:] { // installing may change the memory's place
		a, b := binary.LittleEndian.Uint32(list), binary.LittleEndian.Uint32(list[4:])
		if j.t.native != nil && a&(j.abi.Edge|j.abi.SplitAccess) != 0 {
			continue
		}
		if a&j.abi.Edge != 0 {
			j.hotness.join(a&^j.abi.Edge, b)
			continue
		}
		if a&j.abi.SplitAccess != 0 {
			j.noteSplitAccess(a&^j.abi.SplitAccess, b)
			continue
		}
		at := codePlace{a, uint16(b) & (jit.PageSize - 2)}
		if again, err := j.reinstallIfUnchanged(at); again || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		if j.t.native != nil {
			if err := j.translateNative(at); err != nil {
				return err
			}
			continue
		}
		if j.pages[at.frame] == nil && j.t.profile.ready.Load() {
			j.current(at.frame) // for recipesOf
		}
		j.hotness.countEntry(at)
	}
	return nil
}

// reinstallIfUnchanged installs the entries of a page again whose decoded form was dropped and has returned with the same contents.
func (j *machineJIT) reinstallIfUnchanged(at codePlace) (bool, error) {
	page := j.pages[at.frame]
	if page == nil || !page.entries[at.offset].installed() || j.current(at.frame) != page {
		return false, nil
	}
	err := j.reinstall(at.frame, page)
	return page.entries[at.offset].installed(), err
}

// close frees all instances; the machine's own is closed already.
func (j *machineJIT) close() error {
	j.mu.Lock()
	j.closed.Store(true)
	for _, d := range j.inbox {
		d.made.release()
	}
	j.inbox = nil
	j.mu.Unlock()
	var err error
	for _, in := range j.functions {
		err = errors.Join(err, j.free(in))
	}
	j.functions = nil
	if j.native != nil {
		err = errors.Join(err, j.native.close(j.m.ctx))
	}
	err = errors.Join(err, j.shim.Close(j.m.ctx))
	j.m.linear.shared = false
	j.m.linear.Free()
	return err
}

// execute runs a slice. When the machine waits for a translation, the slice continues with it.
func (m *Machine) execute(budget int64) error {
	m.stack[0], m.stack[1] = uint64(budget), m.system.TakeReady()
	for {
		before := m.result.Retired
		m.slices.Add(1)
		err := m.runSlice.CallWithStack(m.ctx, m.stack[:])
		m.slices.Add(1)
		if err != nil {
			return err
		}
		if err := m.readResult(); err != nil || m.jit == nil {
			return err
		}
		if err := m.jit.afterSlice(); err != nil || Reason(m.stack[0]) != reasonTranslate {
			return err
		}
		budget -= int64(m.result.Retired - before)
		m.stack[0], m.stack[1] = uint64(budget), 0
	}
}
