package machine

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"agentvm/internal/machine/jit"
	"agentvm/internal/machine/native"
	"agentvm/internal/machine/native/blocks"
)

// Translation to native code, the default on linux/amd64 and linux/arm64: hot pages are translated by themselves, and everything
// else (counting, entries in decoded slots, what ends them) is as for regions. docs/internals/translator.md.

// nativeModule is the name of the module whose function "enter" is in the table at the place of each native function.
const nativeModule = "native"

// maxNativeBytes bounds the code of a machine, as ProgramConfig.CodeBytes does: when it is used up, all is forgotten.
const maxNativeBytes = 64 << 20

// nativeCode is what a machine has of native code.
type nativeCode struct {
	code     *native.Code
	layout   blocks.Layout
	shim     api.Module
	function uint64 // for the machine's table: nativeModule's "enter"
}

// nativeInstance is the part of the table of entries that an instance has.
type nativeInstance struct {
	first uint32
	count int
}

type nativeKey struct{}

// hostNative makes the module of the function that enters native code. The machine is in the context of the call.
func hostNative(ctx context.Context, runtime wazero.Runtime) (wazero.CompiledModule, error) {
	enter := func(ctx context.Context, stack []uint64) {
		ctx.Value(nativeKey{}).(*machineJIT).enterNative(uint32(stack[1]), stack[2], stack[3], uint32(stack[4]))
	}
	parameters := []api.ValueType{api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI64, api.ValueTypeI64, api.ValueTypeI32}
	_, err := runtime.NewHostModuleBuilder(nativeModule).NewFunctionBuilder().
		WithGoFunction(api.GoFunc(enter), parameters, nil).Export("enter").Instantiate(ctx)
	if err != nil {
		return nil, err
	}
	return runtime.CompileModule(ctx, jit.HostRegionModule(nativeModule, "enter"))
}

// startNative prepares a machine for its first translation.
func (j *machineJIT) startNative() error {
	ctx := j.m.ctx
	if uint64(len(j.m.linear.within)) < guardBefore+native.Reach {
		return fmt.Errorf("%w: too few addresses behind the machine's memory", errNoRoom)
	}
	code, err := native.New(j.m.linear.memory, int(min(j.t.limit, maxNativeBytes)))
	if err != nil {
		return fmt.Errorf("%w: %w", errNoRoom, err)
	}
	module, err := j.t.runtime.InstantiateModule(ctx, j.t.native, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		return errors.Join(fmt.Errorf("%w: reach native code: %w", errNoRoom, err), code.Close())
	}
	reference, err := module.ExportedFunction("get").Call(ctx, 0)
	if err != nil {
		return errors.Join(err, module.Close(ctx), code.Close())
	}
	a, hart := &j.abi, j.m.layout.Hart
	j.native = &nativeCode{code: code, shim: module, function: reference[0], layout: blocks.Layout{
		X: hart + a.X, F: hart + a.F, PC: hart + a.PC, MStatus: hart + a.MStatus, RoundingMode: hart + a.FRM, Reservation: hart + a.Reservation, Reserved: hart + a.Reserved,
		RAM: j.m.layout.RAM, Frame: a.CodePageSize - 8,
		Read: a.Read, Write: a.Write, Code: a.Code, Entries: a.Entries, Other: a.Other, EntrySize: a.EntrySize, Tag: a.Tag, Addend: a.Addend,
	}}
	j.m.ctx = context.WithValue(j.m.ctx, nativeKey{}, j)
	return nil
}

// enterNative is what the machine calls: see jit_run of src/jit.c. An entry that is not the slot's executes nothing.
func (j *machineJIT) enterNative(tlb uint32, page, self uint64, entry uint32) {
	j.native.code.Enter(entry, self|uint64(entry)<<8, page, j.m.layout.Hart, tlb)
}

// translateNative translates a page from a hot place on, with all entries that it has, and what was executed in it.
func (j *machineJIT) translateNative(at codePlace) error {
	page := j.current(at.frame)
	if page == nil || j.full {
		return nil
	}
	if page.refused.has(at.offset) {
		j.refuse(at.frame, at.offset)
		return nil
	}
	request := blocks.Page{Code: j.code(at.frame), Entries: []uint16{at.offset}}
	for e := range page.entries {
		request.Entries = append(request.Entries, e)
	}
	slices.Sort(request.Entries)
	j.observe(at.frame, page)
	request.Second = page.second
	if j.t.mode != TranslateAll {
		page.seen.add(at.offset)
		if page.losses++; page.losses < page.worth() {
			return nil
		}
		request.Seen = page.seen[:]
	}
	page.losses = 0
	page.translations++
	if j.native == nil {
		if err := j.startNative(); err != nil {
			return j.giveUp(err)
		}
	}
	made, ok := native.Translate(&j.native.layout, request)
	if !ok || len(made.Code) > int(j.t.limit)/2 || !slices.ContainsFunc(made.Entries, func(e blocks.Entry) bool { return e.Offset == int(at.offset) }) {
		if at.offset != jit.PageSize-2 { // whose second half may not be known yet
			page.refused.add(at.offset)
		}
		j.stats.Refused++
		j.refuse(at.frame, at.offset)
		return nil
	}
	err := j.putNative(at.frame, page, made)
	if errors.Is(err, native.ErrFull) {
		if err = j.resetNative(); err == nil {
			err = j.putNative(at.frame, j.current(at.frame), made)
		}
	}
	return j.giveUp(err)
}

// worth is how often a place of the page must be hot before it is translated: when as much time was lost by interpreting as the translation
// costs. It costs some 2 us an instruction; a place is hot after JIT_THRESHOLD jumps, of which each loses gainOfPlace. What is executed for the
// first time is likelier to be executed often than what was left out before.
func (p *translatedPage) worth() int {
	const perPlace = 60 // instructions whose translation costs what a hot place has lost
	n := 0
	for _, b := range p.seen {
		n += bits.OnesCount8(b)
	}
	if p.translations == 0 {
		return n / perPlace / 2
	}
	return n / perPlace << min(p.translations-1, 3)
}

// giveUp translates no more when the host has no room for it.
func (j *machineJIT) giveUp(err error) error {
	if !errors.Is(err, errNoRoom) {
		return err
	}
	j.m.config.Logger.Warn("hot code stays interpreted from now on", "error", err)
	j.full = true
	return nil
}

// putNative makes a translation that of its page.
func (j *machineJIT) putNative(frame uint32, page *translatedPage, made blocks.Translation) error {
	number, err := j.reserve.Call(j.m.ctx)
	if err != nil {
		return err
	}
	in := &instance{number: uint32(number[0]), pages: map[uint32]uint64{frame: page.id}}
	at := in.number % j.abi.Functions
	if err := j.makeRoom(at); err != nil {
		return err
	}
	entries := make([]native.Entry, len(made.Entries))
	for i, e := range made.Entries {
		entries[i] = native.Entry{At: e.At, Slot: uint64(j.abi.OpTranslated) | uint64(in.number)<<32}
	}
	first, err := j.native.code.Add(made.Code, entries)
	if err != nil {
		_, removed := j.remove.Call(j.m.ctx, uint64(in.number))
		return errors.Join(err, removed)
	}
	in.native = nativeInstance{first, len(entries)}
	if _, err := j.set.Call(j.m.ctx, uint64(j.table+at), j.native.function); err != nil {
		return err
	}
	j.functions[at] = in
	j.remember(in.number)
	j.stats.Regions++
	j.stats.Instructions += made.Instructions
	for i, e := range made.Entries {
		before := page.entries[uint16(e.Offset)]
		page.entries[uint16(e.Offset)] = entryState{in.number, first + uint32(i)}
		in.entries++
		if before.installed() {
			if err := j.drop(before.function); err != nil {
				return err
			}
		}
	}
	return j.reinstall(frame, page)
}

// resetNative forgets all native code.
func (j *machineJIT) resetNative() error {
	for _, number := range j.oldest {
		if j.instance(number) != nil {
			j.stats.Evicted++
			if err := j.evict(number); err != nil {
				return err
			}
		}
	}
	j.oldest = nil
	j.native.code.Reset()
	return nil
}

func (n *nativeCode) close(ctx context.Context) error {
	return errors.Join(n.shim.Close(ctx), n.code.Close())
}
