package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/tetratelabs/wazero/api"

	"agentvm/internal/machine/native"
	"agentvm/internal/machine/native/blocks"
)

// reasonTranslate is enum run_reason's RUN_TRANSLATE: TranslateAll needs its answer before the guest continues.
const reasonTranslate Reason = 5

// abiJIT mirrors struct jit_layout of src/common/jit.c.
type abiJIT struct {
	Version                           uint32 // of the contract
	X, F, PC                          uint32 // offsets in the hart; registers have 8 bytes each
	MStatus, FRM, FFlags              uint32 // offsets in the hart
	Reservation, Reserved             uint32 // offsets of LR's address and value
	Supervisor                        blocks.Supervisor
	ARM64                             blocks.ARM64
	Read, Write, Code                 uint32 // offsets of the TLB's tables in the set of a privilege level
	Entries, EntrySize                uint32 // of a table; both powers of two
	Tag, Addend                       uint32 // offsets in an entry
	Other                             uint32 // xor of the numbers of the two entries of a page in a table of the TLB
	Jumps, Generation                 uint32 // offsets of the cache of jumps, and of its generation, in the set of a privilege level
	Places                            uint32 // address of 32 words of 8 bytes, for native code alone
	Walk                              blocks.Walk
	SlotSize, OpTranslated, Undecoded uint32 // bytes of a decoded slot; the operations that stand for a translated one, and for one that was never executed
	CodePageSize, CodePool            uint32 // struct code_page; address of the first one
	State, Functions                  uint32 // struct jit_state; size of the ring of functions
}

// jitVersion is that of the contract which this program was written for.
const jitVersion = 12

// Offsets in struct jit_state of src/common/jit.h.
const (
	jitHotCount   = 8
	jitRefused    = 12
	jitEntered    = 24
	jitNoProgress = 32
	jitExecuted   = 40
	jitChained    = 48
	jitUnmapped   = 56
	jitBudgetExit = 64
	jitHotList    = 72 + 8*256
	jitHotMax     = 256
)

// machineJIT is the translated code of one machine. It belongs to the goroutine that runs the machine.
type machineJIT struct {
	m        *Machine
	h        *hart
	t        *translator
	slotCode uint32 // see processor
	abi      abiJIT
	install  api.Function
	reserve  api.Function
	remove   api.Function
	pages    map[uint32]*translatedPage
	begins   uint64       // how many instructions the machine has executed when it begins to translate
	lastPage uint64       // id of the newest of them
	full     bool         // no more is translated: the host has no room
	code     *native.Code // nil: nothing was translated yet

	functions map[uint32]*function // by place in the ring
	oldest    []uint32             // their numbers, in the order of installation
	stats     JITStats
}

// onceOnly is how many instructions a new or restored machine interprets by default, however hot they are: most of those that start a VM and its first
// command are not executed again. Less is translated in the time that this loses.
const onceOnly = 1_000_000

// startJIT prepares a new or restored machine.
func (m *Machine) startJIT(p *Program) error {
	for _, h := range m.all() {
		if err := h.startJIT(p); err != nil {
			return err
		}
	}
	return nil
}

func (h *hart) startJIT(p *Program) error {
	t, m := p.translator, h.m
	configure := h.module.ExportedFunction("jit_configure")
	if !t.translates(m.config.Deterministic) {
		// The image that a machine is restored from may have entries of functions that are not here.
		_, err := configure.Call(h.ctx, 0, 0)
		return err
	}
	j := &machineJIT{
		m: m, h: h, t: t, slotCode: m.processor.slotCode, pages: map[uint32]*translatedPage{}, functions: map[uint32]*function{},
		install: h.module.ExportedFunction("jit_install"), reserve: h.module.ExportedFunction("jit_reserve"),
		remove: h.module.ExportedFunction("jit_remove"),
	}
	if t.mode == TranslateDefault {
		j.begins = h.result.Retired + onceOnly
	}
	layout, err := configure.Call(h.ctx, 1, uint64(flag(t.mode == TranslateAll, 1)))
	if err != nil {
		return err
	}
	if err := m.read(uint32(layout[0]), &j.abi); err != nil {
		return err
	}
	if j.abi.Version != jitVersion {
		return fmt.Errorf("machine.wasm has version %d of the contract with translated code, this program %d: rebuild it with `make wasm`", j.abi.Version, jitVersion)
	}
	h.ctx = context.WithValue(h.ctx, nativeKey{}, j)
	h.jit = j
	return nil
}

func (j *machineJIT) guest() blocks.Guest { return j.m.processor.guest }

// counter reads a member of struct jit_state.
func (j *machineJIT) counter(offset uint32) uint64 {
	value, _ := j.m.memory.ReadUint64Le(j.abi.State + offset)
	return value
}

var errOutside = errors.New("the machine's list of hot code is outside its memory")

// afterSlice translates what has become hot.
func (j *machineJIT) afterSlice() error {
	count, ok := j.m.memory.ReadUint32Le(j.abi.State + jitHotCount)
	if !ok {
		return errOutside
	}
	if count == 0 {
		return nil
	}
	list, ok := j.m.memory.Read(j.abi.State+jitHotList, 8*min(count, jitHotMax))
	if !ok || !j.m.memory.WriteUint32Le(j.abi.State+jitHotCount, 0) {
		return errOutside
	}
	for list = slices.Clone(list); len(list) > 0; list = list[8:] { // the machine is called meanwhile
		at := codePlace{binary.LittleEndian.Uint32(list), uint16(binary.LittleEndian.Uint32(list[4:])) & (blocks.PageSize - 2)}
		again, err := j.reinstallIfUnchanged(at)
		if err == nil && !again {
			err = j.translate(at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reinstallIfUnchanged installs the entries of a page again whose decoded form was dropped and has returned with the same contents.
func (j *machineJIT) reinstallIfUnchanged(at codePlace) (bool, error) {
	page := j.pages[at.frame]
	if page == nil || !page.entries[at.offset].installed() {
		return false, nil
	}
	if now, _ := j.current(at.frame); now != page {
		return false, nil
	}
	err := j.reinstall(at.frame, page)
	return page.entries[at.offset].installed(), err
}

// enter is what the machine calls: see jit_run of src/common/jit.c. An entry that is not the slot's executes nothing.
func (j *machineJIT) enter(tlb uint32, page, self uint64, entry uint32) {
	j.code.Enter(entry, self|uint64(entry)<<8, page, j.h.address(), tlb)
}

// close frees the code, when the machine's instance is closed.
func (j *machineJIT) close() error {
	if j.code == nil {
		return nil
	}
	err := j.code.Close()
	if j.t.unsaved != nil {
		j.t.unsaved.flush()
	}
	return err
}
