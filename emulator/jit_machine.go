package emulator

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"agentvm/jit"
)

// reasonTranslate is enum run_reason's RUN_TRANSLATE: TranslateAll wants its answer before the guest goes on.
const reasonTranslate Reason = 5

// abiJIT mirrors struct jit_layout of src/jit.c.
type abiJIT struct {
	jit.Layout
	State, Functions uint32
}

// Offsets in struct jit_state of src/jit.h.
const (
	jitHotCount = 8
	jitRefused  = 12
	jitEntered  = 32
	jitStuck    = 40
	jitExecuted = 48
	jitHotList  = 56
	jitHotMax   = 256
)

// machineJIT is the translated code of one machine. It belongs to the goroutine that runs the machine, but for the inbox.
type machineJIT struct {
	m         *Machine
	t         *translator
	abi       abiJIT
	table     uint32 // index of the first function
	shim      api.Module
	set       api.Function
	grow      api.Function
	install   api.Function
	reserve   api.Function
	remove    api.Function
	grown     uint32 // functions that the table has room for
	pages     map[uint32]*translatedPage
	functions map[uint32]*instance // by place in the table
	oldest    []uint32             // their numbers, in the order of installation
	stats     JITStats
	final     JITStats // when the machine was closed

	closed  atomic.Bool
	arrived atomic.Bool
	mu      sync.Mutex
	inbox   []delivery
}

// delivery is the answer to a job.
type delivery struct {
	frame   uint32
	request jit.Request
	made    *translation
}

// instance is a translation in use.
type instance struct {
	number uint32
	made   *translation
	module api.Module
	frame  uint32
}

// translatedPage is what is known of a page of RAM as long as it has these contents.
type translatedPage struct {
	sum     [sha256.Size]byte
	entries map[uint16]entryState
	regions int // since they were last merged
	merges  int
}

// maxPages bounds what is remembered of pages: a guest can make all of its RAM code.
const maxPages = 4096

// mergeAt is how many regions a page may have before they are translated again as one, so that jumps between them stay
// inside; each merge doubles it.
const mergeAt = 2

type entryState struct {
	state    int // one of the following
	function uint32
	index    uint32
}

const (
	entryPending = iota
	entryRefused
	entryInstalled
)

// JITStats counts what was translated for a machine.
type JITStats struct {
	Regions, Instructions int    // installed, guest instructions in them
	Refused, Dropped      int    // entries that cannot be translated; jobs that found the queue full
	Entered, Stuck        uint64 // calls of translated code, and those that did nothing
	Executed              uint64 // instructions in translated code
	Evicted               int    // regions that made way for others
	Bytes                 int64  // translated code of all machines of the program, by estimate
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
		m: m, t: t, pages: map[uint32]*translatedPage{}, functions: map[uint32]*instance{},
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
	m.jit, m.linear.shared = j, true
	return nil
}

// instantiate makes an instance whose imports are the machine's exports.
func (j *machineJIT) instantiate(ctx context.Context, compiled wazero.CompiledModule) (api.Module, error) {
	resolve := func(string) api.Module { return j.m.module }
	return j.t.runtime.InstantiateModule(experimental.WithImportResolver(ctx, resolve), compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions())
}

func (j *machineJIT) deliver(d delivery) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed.Load() {
		d.discard()
		return
	}
	j.inbox = append(j.inbox, d)
	j.arrived.Store(true)
}

// discard gives back what nobody takes.
func (d *delivery) discard() { d.made.release() }

// behindSlice takes the machine's hot code to the translator and puts in place what came back.
func (j *machineJIT) behindSlice() error {
	count, ok := j.m.memory.ReadUint32Le(j.abi.State + jitHotCount)
	if !ok {
		return errors.New("the machine's list of hot code is outside its memory")
	}
	if count != 0 {
		if err := j.collect(min(count, jitHotMax)); err != nil {
			return err
		}
	}
	if !j.arrived.Load() {
		return nil
	}
	j.mu.Lock()
	inbox := j.inbox
	j.inbox = nil
	j.arrived.Store(false)
	j.mu.Unlock()
	for _, d := range inbox {
		if err := j.accept(d.frame, d.request, d.made); err != nil {
			return err
		}
	}
	return nil
}

// collect empties the list of hot code.
func (j *machineJIT) collect(count uint32) error {
	list, ok := j.m.memory.Read(j.abi.State+jitHotList, 8*count)
	if !ok || !j.m.memory.WriteUint32Le(j.abi.State+jitHotCount, 0) {
		return errors.New("the machine's list of hot code is outside its memory")
	}
	wanted := map[uint32][]uint16{}
	var frames []uint32
	for ; len(list) > 0; list = list[8:] {
		frame, offset := binary.LittleEndian.Uint32(list), uint16(binary.LittleEndian.Uint32(list[4:]))
		if wanted[frame] == nil {
			frames = append(frames, frame)
		}
		wanted[frame] = append(wanted[frame], offset&(jit.PageSize-2))
	}
	for _, frame := range frames {
		slices.Sort(wanted[frame])
		if err := j.want(frame, slices.Compact(wanted[frame])); err != nil {
			return err
		}
	}
	return nil
}

// code is a page's contents, nil when there is no such page.
func (j *machineJIT) code(frame uint32) []byte {
	if uint64(frame) >= j.m.config.Memory/jit.PageSize {
		return nil
	}
	code, _ := j.m.memory.Read(j.m.layout.RAM+frame*jit.PageSize, jit.PageSize)
	return code
}

// want asks for the translation of a page from the given entries on.
func (j *machineJIT) want(frame uint32, entries []uint16) error {
	code := j.code(frame)
	if code == nil {
		return nil
	}
	page := j.page(frame, sha256.Sum256(code))
	r := jit.Request{}
	again := false
	for _, e := range entries {
		known, ok := page.entries[e]
		switch {
		case !ok:
			r.Entries = append(r.Entries, e)
		case known.state == entryInstalled:
			again = true
		case known.state == entryRefused:
			j.refuse(frame, e)
		}
	}
	if again { // the decoded page was dropped and is back with the same contents
		if err := j.reinstall(frame, page); err != nil {
			return err
		}
	}
	if len(r.Entries) == 0 {
		return nil
	}
	if j.t.mode != TranslateAll {
		page.merge(&r)
	}
	for e, known := range page.entries {
		if known.state != entryRefused && !slices.Contains(r.Entries, e) {
			r.Stops = append(r.Stops, e)
		}
	}
	slices.Sort(r.Stops)
	r.Code = slices.Clone(code)
	return j.request(frame, page, r)
}

// merge adds the entries that are there already to a request, once there are many regions.
func (p *translatedPage) merge(r *jit.Request) {
	if p.regions >= mergeAt<<p.merges {
		p.regions, p.merges = 0, p.merges+1
		for e, known := range p.entries {
			if known.state == entryInstalled {
				r.Entries = append(r.Entries, e)
			}
		}
		slices.Sort(r.Entries)
	}
	p.regions++
}

// page gives the record of a page, a new one when its contents have changed.
func (j *machineJIT) page(frame uint32, sum [sha256.Size]byte) *translatedPage {
	page := j.pages[frame]
	if page == nil || page.sum != sum {
		if len(j.pages) >= maxPages {
			clear(j.pages) // their functions stay until they are evicted
		}
		page = &translatedPage{sum: sum, entries: map[uint16]entryState{}}
		j.pages[frame] = page
	}
	return page
}

func (j *machineJIT) request(frame uint32, page *translatedPage, r jit.Request) error {
	job := &job{layout: &j.abi.Layout, request: r, key: translationKey(r), to: j, frame: frame}
	made := j.t.lookup(job.key)
	if made == nil && j.t.mode != TranslateHot {
		made = j.t.translate(job)
	}
	for _, e := range r.Entries {
		if _, known := page.entries[e]; !known {
			page.entries[e] = entryState{state: entryPending}
		}
	}
	switch {
	case made != nil:
		return j.accept(frame, r, made)
	case !j.t.submit(job):
		j.stats.Dropped++
		for _, e := range r.Entries {
			if page.entries[e].state == entryPending {
				delete(page.entries, e)
			}
		}
	}
	return nil
}

// accept puts a translation in place, unless the page has changed meanwhile. It releases the translation.
func (j *machineJIT) accept(frame uint32, r jit.Request, made *translation) error {
	defer made.release()
	page, code := j.pages[frame], j.code(frame)
	if page == nil || page.sum != sha256.Sum256(r.Code) || !slices.Equal(code, r.Code) {
		return nil
	}
	for _, e := range r.Entries {
		if !slices.Contains(made.region.Entries, e) && page.entries[e].state == entryPending {
			page.entries[e] = entryState{state: entryRefused}
			j.stats.Refused++
			j.refuse(frame, e)
		}
	}
	if made.compiled == nil {
		return nil
	}
	in, err := j.place(frame, made)
	if err != nil {
		return err
	}
	for index, e := range made.region.Entries {
		page.entries[e] = entryState{entryInstalled, in.number, uint32(index)}
	}
	return j.reinstall(frame, page)
}

// refuse tells a machine that waits for a translation that there will be none.
func (j *machineJIT) refuse(frame uint32, offset uint16) {
	j.m.memory.WriteUint32Le(j.abi.State+jitRefused, frame)
	j.m.memory.WriteUint32Le(j.abi.State+jitRefused+4, uint32(offset))
}

// reinstall makes the decoded page's slots entries of their functions.
func (j *machineJIT) reinstall(frame uint32, page *translatedPage) error {
	for offset, e := range page.entries {
		if e.state != entryInstalled {
			continue
		}
		if in := j.functions[e.function%j.abi.Functions]; in == nil || in.number != e.function {
			delete(page.entries, offset) // evicted
			continue
		}
		if _, err := j.install.Call(j.m.ctx, uint64(frame), uint64(offset), uint64(e.function), uint64(e.index)); err != nil {
			return fmt.Errorf("install translated code: %w", err)
		}
	}
	return nil
}

// place makes an instance of a translation and puts its function into the table.
func (j *machineJIT) place(frame uint32, made *translation) (*instance, error) {
	number, err := j.reserve.Call(j.m.ctx)
	if err != nil {
		return nil, err
	}
	in := &instance{number: uint32(number[0]), made: made, frame: frame}
	at := in.number % j.abi.Functions
	if err := j.makeRoom(at); err != nil {
		return nil, err
	}
	if in.module, err = j.instantiate(j.m.ctx, made.compiled); err != nil {
		return nil, fmt.Errorf("instantiate translated code: %w", err)
	}
	made.users.Add(1)
	reference, err := in.module.ExportedFunction("get").Call(j.m.ctx, 0)
	if err != nil {
		return nil, err
	}
	if _, err := j.set.Call(j.m.ctx, uint64(j.table+at), reference[0]); err != nil {
		return nil, fmt.Errorf("put translated code into the table: %w", err)
	}
	j.functions[at] = in
	j.oldest = append(j.oldest, in.number)
	j.stats.Regions++
	j.stats.Instructions += made.region.Instructions
	return in, nil
}

// growBy is how many functions the table gets room for at a time.
const growBy = 256

// makeRoom sees to it that the place in the table exists and is free, and that the limit of memory holds.
func (j *machineJIT) makeRoom(at uint32) error {
	for j.grown <= at {
		if size, err := j.grow.Call(j.m.ctx, growBy); err != nil || int32(size[0]) < 0 {
			return errors.Join(err, errors.New("the table of functions cannot grow"))
		}
		j.grown += growBy
	}
	for j.functions[at] != nil || (j.t.bytes.Load() > j.t.limit && len(j.oldest) > 0) {
		if err := j.evictOldest(); err != nil {
			return err
		}
		j.t.forget()
	}
	return nil
}

func (j *machineJIT) evictOldest() error {
	number := j.oldest[0]
	j.oldest = j.oldest[1:]
	at := number % j.abi.Functions
	in := j.functions[at]
	delete(j.functions, at)
	if _, err := j.remove.Call(j.m.ctx, uint64(number)); err != nil {
		return err
	}
	if _, err := j.set.Call(j.m.ctx, uint64(j.table+at), 0); err != nil {
		return err
	}
	j.stats.Evicted++
	return j.free(in)
}

func (j *machineJIT) free(in *instance) error {
	in.made.release()
	return in.module.Close(j.m.ctx)
}

// close frees all instances; the machine's own is closed already.
func (j *machineJIT) close() error {
	j.mu.Lock()
	j.closed.Store(true)
	for _, d := range j.inbox {
		d.discard()
	}
	j.inbox = nil
	j.mu.Unlock()
	var err error
	for _, in := range j.functions {
		err = errors.Join(err, j.free(in))
	}
	j.functions = nil
	err = errors.Join(err, j.shim.Close(j.m.ctx))
	j.m.linear.shared = false
	j.m.linear.Free()
	return err
}

// JITStats tells what was translated so far. Call it between slices.
func (m *Machine) JITStats() JITStats {
	if m.jit == nil {
		return JITStats{}
	}
	s := m.jit.stats
	s.Bytes = m.jit.t.bytes.Load()
	s.Entered, _ = m.memory.ReadUint64Le(m.jit.abi.State + jitEntered)
	s.Executed, _ = m.memory.ReadUint64Le(m.jit.abi.State + jitExecuted)
	s.Stuck, _ = m.memory.ReadUint64Le(m.jit.abi.State + jitStuck)
	return s
}

// execute runs a slice. Where the machine waits for a translation, the slice goes on behind it.
func (m *Machine) execute(budget int64) error {
	m.stack[0], m.stack[1] = uint64(budget), m.system.TakeReady()
	for {
		before := m.result.Retired
		if err := m.runSlice.CallWithStack(m.ctx, m.stack[:]); err != nil {
			return err
		}
		if err := m.readResult(); err != nil || m.jit == nil {
			return err
		}
		if err := m.jit.behindSlice(); err != nil || Reason(m.stack[0]) != reasonTranslate {
			return err
		}
		budget -= int64(m.result.Retired - before)
		m.stack[0], m.stack[1] = uint64(budget), 0
	}
}
