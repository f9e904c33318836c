package emulator

import (
	"errors"
	"fmt"

	"github.com/tetratelabs/wazero/api"
)

// instance is a translation in use.
type instance struct {
	number  uint32
	made    *translation
	module  api.Module
	pages   map[uint32]*translatedPage // by number of the RAM page
	entries int                        // of these pages; without any it goes
}

// instance finds a function by its number; nil when it was evicted.
func (j *machineJIT) instance(number uint32) *instance {
	if in := j.functions[number%j.abi.Functions]; in != nil && in.number == number {
		return in
	}
	return nil
}

// place makes an instance of a translation and puts its function into the table.
func (j *machineJIT) place(q *ask, made *translation) (*instance, error) {
	number, err := j.reserve.Call(j.m.ctx)
	if err != nil {
		return nil, err
	}
	in := &instance{number: uint32(number[0]), made: made, pages: map[uint32]*translatedPage{}}
	for i, frame := range q.frames {
		in.pages[frame] = q.pages[i]
	}
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
		number := j.oldest[0]
		j.oldest = j.oldest[1:]
		if j.instance(number) == nil {
			continue // it went because others have its entries
		}
		j.stats.Evicted++
		if err := j.evict(number); err != nil {
			return err
		}
		j.t.forget()
	}
	return nil
}

// drop notes that another function has an entry of this one, which goes with its last.
func (j *machineJIT) drop(number uint32) error {
	in := j.instance(number)
	if in == nil {
		return nil
	}
	if in.entries--; in.entries > 0 {
		return nil
	}
	j.stats.Replaced++
	return j.evict(number)
}

func (j *machineJIT) evict(number uint32) error {
	at := number % j.abi.Functions
	in := j.functions[at]
	delete(j.functions, at)
	if _, err := j.remove.Call(j.m.ctx, uint64(number)); err != nil {
		return err
	}
	if _, err := j.set.Call(j.m.ctx, uint64(j.table+at), 0); err != nil {
		return err
	}
	return j.free(in)
}

func (j *machineJIT) free(in *instance) error {
	in.made.release()
	return in.module.Close(j.m.ctx)
}
