package machine

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tetratelabs/wazero/api"
)

// instance is a translation in use.
type instance struct {
	number        uint32
	made          *translation
	module        api.Module
	pages         map[uint32]uint64 // ids of their records, by number of the RAM page
	entries       int               // of these pages; without any it goes
	limit         int               // of instructions, as asked for
	splitAccesses map[uint32][]byte // by number of the RAM page: Page.Single of the request
	native        nativeInstance    // instead of made and module
}

// instance finds a function by its number; nil when it was evicted.
func (j *machineJIT) instance(number uint32) *instance {
	if in := j.functions[number%j.abi.Functions]; in != nil && in.number == number {
		return in
	}
	return nil
}

// place makes an instance of a translation and puts its function into the table.
func (j *machineJIT) place(q *request, made *translation) (*instance, error) {
	number, err := j.reserve.Call(j.m.ctx)
	if err != nil {
		return nil, err
	}
	in := &instance{number: uint32(number[0]), made: made, pages: make(map[uint32]uint64, len(q.frames)), limit: q.limit, splitAccesses: map[uint32][]byte{}}
	for i, frame := range q.frames {
		in.pages[frame] = q.pages[i].id
		in.splitAccesses[frame] = q.request.Pages[i].Single
	}
	at := in.number % j.abi.Functions
	if err := j.makeRoom(at); err != nil {
		return nil, err
	}
	if in.module, err = j.instantiate(j.m.ctx, made.compiled); err != nil {
		return nil, fmt.Errorf("%w: instantiate translated code: %w", errNoRoom, err)
	}
	made.users.Add(1)
	if err := j.publish(in, at); err != nil {
		return nil, errors.Join(err, j.free(in))
	}
	j.functions[at] = in
	j.remember(in.number)
	j.stats.Regions++
	j.stats.Instructions += made.region.Instructions
	return in, nil
}

// errNoRoom says that the host does not give what one more region needs. The guest continues with the regions that it has.
var errNoRoom = errors.New("no room for more translated code")

// publish puts the function into its place in the table.
func (j *machineJIT) publish(in *instance, at uint32) error {
	reference, err := in.module.ExportedFunction("get").Call(j.m.ctx, 0)
	if err == nil {
		_, err = j.set.Call(j.m.ctx, uint64(j.table+at), reference[0])
	}
	if err != nil {
		return fmt.Errorf("put translated code into the table: %w", err)
	}
	return nil
}

// remember notes the newest function, and forgets those that went because others have their entries.
func (j *machineJIT) remember(number uint32) {
	if len(j.oldest) > 2*len(j.functions)+64 {
		j.oldest = slices.DeleteFunc(j.oldest, func(n uint32) bool { return j.instance(n) == nil })
	}
	j.oldest = append(j.oldest, number)
}

// growBy is how many functions the table gets room for at a time.
const growBy = 256

// makeRoom sees to it that the place in the table exists and is free, and that the limit of memory holds.
func (j *machineJIT) makeRoom(at uint32) error {
	for j.grown <= at {
		if size, err := j.grow.Call(j.m.ctx, growBy); err != nil || int32(size[0]) < 0 {
			return errors.Join(errNoRoom, err)
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
	if in.made != nil {
		j.t.profile.replaced(in.made.key)
	}
	return j.evict(number)
}

func (j *machineJIT) evict(number uint32) error {
	at := number % j.abi.Functions
	in := j.functions[at]
	delete(j.functions, at)
	for frame, id := range in.pages {
		if page := j.pages[frame]; page != nil && page.id == id {
			maps.DeleteFunc(page.entries, func(_ uint16, e entryState) bool { return e.function == number })
		}
	}
	if _, err := j.remove.Call(j.m.ctx, uint64(number)); err != nil {
		return err
	}
	if _, err := j.set.Call(j.m.ctx, uint64(j.table+at), 0); err != nil {
		return err
	}
	return j.free(in)
}

func (j *machineJIT) free(in *instance) error {
	if in.made == nil {
		j.native.code.Remove(in.native.first, in.native.count)
		return nil
	}
	in.made.release()
	return in.module.Close(j.m.ctx)
}
