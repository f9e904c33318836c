package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Open opens the log of an earlier process to read it or to continue with it. A last record that was cut short by the end of
// that process is dropped. A damaged file is a *CorruptError, and so is one that is empty.
func Open(path string) (*Log, error) { return openMode(path, os.O_RDWR) }

// OpenReadOnly is Open of a log that is only to be read: Append and Finish fail, and nothing in the file changes. The process that
// wrote it must have ended; another one may continue with it meanwhile, which this Log does not see.
func OpenReadOnly(path string) (*Log, error) { return openMode(path, os.O_RDONLY) }

func openMode(path string, mode int) (*Log, error) {
	file, err := os.OpenFile(path, mode, 0)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	l, err := openFile(path, file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return l, nil
}

func openFile(path string, file *os.File) (*Log, error) {
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	return recoverLog(path, file, info.Size())
}

// recoverLog makes a log of the size bytes in store.
func recoverLog(path string, store storage, size int64) (*Log, error) {
	header := make([]byte, fileHeader)
	n, err := readAt(store, header, 0)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	layout, err := decodeLayout(header[:n])
	if err != nil {
		return nil, &CorruptError{Path: path, Cause: err.Error()}
	}
	r := &recovery{Log: newLog(path, layout, store), size: size}
	if err := r.run(); err != nil {
		return nil, err
	}
	return r.Log, nil
}

// recovery fills in the state of a log from its file.
type recovery struct {
	*Log
	size    int64
	headEnd Cursor // by the slots
}

func (r *recovery) run() error {
	if err := r.readSlots(); err != nil {
		return err
	}
	if err := r.readHead(); err != nil {
		return err
	}
	for i, slot := range r.tail {
		var err error
		if i == len(r.tail)-1 {
			err = r.readLast(slot)
		} else {
			err = r.readFull(slot, r.tail[i+1].first)
		}
		if err != nil {
			return err
		}
	}
	return r.readResult()
}

func (r *recovery) corrupt(offset int64, cause string, args ...any) error {
	return &CorruptError{Path: r.name, Offset: offset, Cause: fmt.Sprintf(cause, args...)}
}

// readSlots finds the generations there are. A slot header is 64 bytes in one page and written at once, so it is there or
// it is not: only a damaged one is neither.
func (r *recovery) readSlots() error {
	var found [slots]slot
	var newest slot
	for i := range found {
		offset := r.layout.slotAt(uint64(i + 1))
		header := make([]byte, slotHeader)
		n, err := readAt(r.store, header, offset)
		if err != nil {
			return r.fail("open", err)
		}
		s, ok := r.layout.decodeSlot(header[:n], i)
		if !ok && !zero(header) {
			return r.corrupt(offset, "the header of slot %d is wrong", i)
		}
		found[i] = s
		if s.gen > newest.gen {
			newest = s
		}
	}
	r.gen, r.headEnd = newest.gen, newest.headEnd
	return r.keepSlots(found, newest)
}

// keepSlots checks that there are the last generations without a gap, and makes their regions.
func (r *recovery) keepSlots(found [slots]slot, newest slot) error {
	for gen := uint64(1); gen <= newest.gen; gen++ {
		if gen+slots <= newest.gen {
			gen = newest.gen - slots + 1
		}
		s := found[(gen-1)%slots]
		if s.gen != gen || s.headEnd != newest.headEnd {
			return r.corrupt(r.layout.slotAt(gen), "slot %d does not hold generation %d of %d", (gen-1)%slots, gen, newest.gen)
		}
		r.tail = append(r.tail, r.layout.slotRegion(gen, s.first))
	}
	if newest.gen >= slots {
		return nil
	}
	unused := r.layout.slotRegion(newest.gen+1, 0)
	return r.nothingBehind(unused, unused.records-recordAlign, "a slot has records and no header")
}

// readHead reads the head, which the slots, if there are any, say the length of.
func (r *recovery) readHead() error {
	switch {
	case len(r.tail) == 0:
		return r.readLast(r.head)
	case r.headEnd > Cursor(r.head.capacity):
		return r.corrupt(headAt, "the head ends at byte %d of the output, behind its size", r.headEnd)
	case r.tail[0].gen == 1 && r.tail[0].first != r.headEnd:
		return r.corrupt(r.layout.slotAt(1), "the tail begins at byte %d of the output, the head ends at %d", r.tail[0].first, r.headEnd)
	}
	return r.readFull(r.head, r.headEnd)
}

// readFull reads a region that was left for another at end.
func (r *recovery) readFull(x *region, end Cursor) error {
	cause, err := r.scan(x)
	if err == nil && x.end.cursor != end {
		err = r.corrupt(x.end.offset, "%s, where the output continues to byte %d", cause, end)
	}
	return err
}

// readLast reads the region that was being filled. What follows its last sound record was cut short, unless there is
// another record behind it.
func (r *recovery) readLast(x *region) error {
	cause, err := r.scan(x)
	if err != nil {
		return err
	}
	return r.nothingBehind(x, x.end.offset, cause+", and more of them follow")
}

// scan counts the sound records of x from its beginning and says why it stopped.
func (r *recovery) scan(x *region) (cause string, err error) {
	s := r.scanner(x, x.end.offset)
	for x.room() > 0 {
		rec, sound, err := s.header(x.end.offset)
		if err != nil {
			return "", r.fail("open", err)
		}
		if !sound || rec.length > x.room() {
			return "the header of a record is wrong", nil
		}
		if _, sound, err = s.payload(rec); err != nil {
			return "", r.fail("open", err)
		}
		if !sound {
			return "the bytes of a record are wrong", nil
		}
		x.add(rec)
	}
	return "the records end", nil
}

// nothingBehind makes sure that there is no record of x behind the place where its records seem to end.
func (r *recovery) nothingBehind(x *region, offset int64, cause string) error {
	s := r.scanner(x, offset)
	for at := offset + recordAlign; at < s.limit; at += recordAlign {
		_, sound, err := s.header(at)
		if err != nil {
			return r.fail("open", err)
		}
		if sound {
			return r.corrupt(offset, "%s", cause)
		}
	}
	return nil
}

// scanner reads x from offset on, as far as there is a file.
func (r *recovery) scanner(x *region, offset int64) *scanner {
	limit := min(x.limit, r.size)
	return newScanner(r.layout, r.store, x.gen, limit, max(0, min(maxBuffer, limit-offset)))
}

// readResult finds out whether the log is finished. Its header is written last and in one piece.
func (r *recovery) readResult() error {
	area := make([]byte, resultArea)
	n, err := readAt(r.store, area, resultAt)
	if err != nil {
		return r.fail("open", err)
	}
	if zero(area[:min(n, resultHeader)]) {
		return nil
	}
	total, result, ok := r.layout.decodeResult(area[:n])
	switch {
	case !ok:
		return r.corrupt(resultAt, "the record of how it ended is wrong")
	case total != r.total():
		return r.corrupt(r.newest().end.offset, "a record is missing: the output has %d bytes, these are %d", total, r.total())
	}
	r.finished, r.result = true, result
	return nil
}

// zero compares b with itself, shifted by a byte.
func zero(b []byte) bool { return len(b) == 0 || b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }
