package machine

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"agentvm/internal/machine/native/blocks"
)

// codePlace is an offset in a page of RAM.
type codePlace struct {
	frame  uint32
	offset uint16
}

// translatedPage is what is known of a page of RAM as long as it has these contents. A guest can make all of its RAM code, and all of
// that hot, so a record has a fixed size except for what is installed, which the limit of translated code bounds.
type translatedPage struct {
	id           uint64 // of this record: pages come and go
	sum          [sha256.Size]byte
	entries      map[uint16]entryState
	refused      halfwords // entries from which nothing can be translated
	seen         halfwords // what was ever executed
	losses       int       // how often a place was hot since the last translation
	translations int
	second       uint16 // half of the instruction that begins in the last halfword, when it was executed last; 0: none was
	asked        uint32 // whether the store was asked: 1, and above it the second half for which; 0: it was not
}

// halfwords has a bit for each halfword of a page.
type halfwords [blocks.PageSize / 16]byte

func (h *halfwords) has(offset uint16) bool { return h[offset/16]>>(offset/2%8)&1 != 0 }

func (h *halfwords) add(offset uint16) { h[offset/16] |= 1 << (offset / 2 % 8) }

func (h *halfwords) join(other []byte) {
	for i := range min(len(h), len(other)) {
		h[i] |= other[i]
	}
}

// maxPages bounds what is remembered of pages, to some 3 MiB.
const maxPages = 4096

// entryState is an entry that has a translation.
type entryState struct{ function, index uint32 }

func (e entryState) installed() bool { return e.function != 0 }

// pageCode is a page's contents, nil when there is no such page.
func (j *machineJIT) pageCode(frame uint32) []byte {
	if uint64(frame) >= j.m.config.Memory/blocks.PageSize {
		return nil
	}
	code, _ := j.m.memory.Read(j.m.layout.RAM+frame*blocks.PageSize, blocks.PageSize)
	if len(j.m.others) > 0 { // which may be changing it
		code = slices.Clone(code)
	}
	return code
}

// current gives the record of a page, a new one when its contents have changed, and these; nil when there is no such page.
func (j *machineJIT) current(frame uint32) (*translatedPage, []byte) {
	code := j.pageCode(frame)
	if code == nil {
		return nil, nil
	}
	page, sum := j.pages[frame], sha256.Sum256(code)
	if page == nil || page.sum != sum {
		if len(j.pages) >= maxPages {
			clear(j.pages) // their functions stay until they are evicted
		}
		j.lastPage++
		page = &translatedPage{id: j.lastPage, sum: sum, entries: map[uint16]entryState{}}
		j.pages[frame] = page
	}
	return page, code
}

// observe notes which slots of a page's decoded form were executed.
func (j *machineJIT) observe(frame uint32, page *translatedPage) {
	index, ok := j.m.memory.ReadUint16Le(j.abi.Walk.CodeIndex + 2*frame)
	if !ok || index == 0 {
		return
	}
	slots, ok := j.m.memory.Read(j.abi.CodePool+(uint32(index)-1)*j.abi.CodePageSize, blocks.PageSize/j.slotCode*j.abi.SlotSize)
	if !ok {
		return
	}
	const last = blocks.PageSize/2 - 1
	if slot := slots[min(last*j.abi.SlotSize, uint32(len(slots))-j.abi.SlotSize):]; j.guest() == blocks.GuestRISCV64 && uint32(slot[0]) == j.abi.Undecoded+1 && slot[1] != 0 { // OP_CROSSING
		page.second = binary.LittleEndian.Uint16(slot[4:])
	}
	for i := range blocks.PageSize / j.slotCode {
		if uint32(slots[i*j.abi.SlotSize]) != j.abi.Undecoded {
			page.seen.add(uint16(i * j.slotCode))
		}
	}
}

// refuse tells a machine that waits for a translation that there will be none.
func (j *machineJIT) refuse(frame uint32, offset uint16) {
	j.m.memory.WriteUint32Le(j.abi.State+jitRefused, frame)
	j.m.memory.WriteUint32Le(j.abi.State+jitRefused+4, uint32(offset))
}

// reinstall makes the decoded page's slots entries of their functions.
func (j *machineJIT) reinstall(frame uint32, page *translatedPage) error {
	for offset, e := range page.entries {
		if j.function(e.function) == nil {
			delete(page.entries, offset) // evicted
			continue
		}
		if _, err := j.install.Call(j.h.ctx, uint64(frame), uint64(offset), uint64(e.function), uint64(e.index)); err != nil {
			return fmt.Errorf("install translated code: %w", err)
		}
	}
	return nil
}
