package machine

import (
	"errors"
	"maps"
	"slices"

	"agentvm/internal/machine/native"
)

// function is the translation of a page in use.
type function struct {
	number  uint32
	frame   uint32 // number of the RAM page
	page    uint64 // id of its record
	entries int    // of the page; without any it goes
	first   uint32 // of its entries in the table of native code
	count   int
}

// function finds a function by its number; nil when it was evicted.
func (j *machineJIT) function(number uint32) *function {
	if f := j.functions[number%j.abi.Functions]; f != nil && f.number == number {
		return f
	}
	return nil
}

// put gives a page the entries of a block.
func (j *machineJIT) put(frame uint32, page *translatedPage, block *native.Block) error {
	number, err := j.reserve.Call(j.h.ctx)
	if err != nil {
		return err
	}
	f := &function{number: uint32(number[0]), frame: frame, page: page.id, count: len(block.Entries)}
	at := f.number % j.abi.Functions
	for j.functions[at] != nil {
		if err := j.evictOldest(); err != nil {
			return err
		}
	}
	if f.first, err = j.code.Install(block, uint64(j.abi.OpTranslated)|uint64(f.number)<<32); err != nil {
		_, removed := j.remove.Call(j.h.ctx, uint64(f.number))
		return errors.Join(err, removed)
	}
	j.functions[at] = f
	j.remember(f.number)
	j.stats.Regions++
	j.stats.Instructions += block.Instructions
	for i, e := range block.Entries {
		before := page.entries[uint16(e.Offset)]
		page.entries[uint16(e.Offset)] = entryState{f.number, f.first + uint32(i)}
		f.entries++
		if err := j.drop(before.function); err != nil {
			return err
		}
	}
	return j.reinstall(frame, page)
}

// remember notes the newest function, and forgets those that went because others have their entries.
func (j *machineJIT) remember(number uint32) {
	if len(j.oldest) > 2*len(j.functions)+64 {
		j.oldest = slices.DeleteFunc(j.oldest, func(n uint32) bool { return j.function(n) == nil })
	}
	j.oldest = append(j.oldest, number)
}

// evictOldest takes the oldest function out of use, if it is still there.
func (j *machineJIT) evictOldest() error {
	number := j.oldest[0]
	j.oldest = j.oldest[1:]
	if j.function(number) == nil {
		return nil // it went because others have its entries
	}
	j.stats.Evicted++
	return j.evict(number)
}

// drop notes that another function has an entry of this one, which goes with its last.
func (j *machineJIT) drop(number uint32) error {
	f := j.function(number)
	if f == nil {
		return nil
	}
	if f.entries--; f.entries > 0 {
		return nil
	}
	j.stats.Replaced++
	return j.evict(number)
}

func (j *machineJIT) evict(number uint32) error {
	at := number % j.abi.Functions
	f := j.functions[at]
	delete(j.functions, at)
	if page := j.pages[f.frame]; page != nil && page.id == f.page {
		maps.DeleteFunc(page.entries, func(_ uint16, e entryState) bool { return e.function == number })
	}
	j.code.Remove(f.first, f.count)
	_, err := j.remove.Call(j.h.ctx, uint64(number))
	return err
}

// reset forgets all code.
func (j *machineJIT) reset() error {
	for len(j.oldest) > 0 {
		if err := j.evictOldest(); err != nil {
			return err
		}
	}
	for _, page := range j.pages {
		page.asked = 0
	}
	return j.code.Reset()
}
