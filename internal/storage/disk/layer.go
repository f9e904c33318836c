package disk

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
)

// A layer is a file of slots of 64 KiB. A slot holds a cluster of the disk, or a block of the layer's map; slot 0 has the header, slot 1 the
// first block of the map. A cluster of zeros has no slot. Numbers are little-endian.
//
//   - A write goes in place when the top has the cluster; otherwise the cluster is copied to a new slot with what is written, and then its
//     record is appended.
//   - FLUSH is fdatasync; when there are new records, then a commit and fdatasync again. So no durable record refers to data that are not.
//   - After a power failure, or where none can be excluded (Windows), records that no commit covers are dropped. A slot that a record gives up
//     is used again only when that record is durable.
//   - DISCARD punches what the top has out of its file where the system can (Linux). The slot stays, so that a guest that discards and writes
//     without end does not lengthen the map. Whole clusters that only a layer below has become zeros by a record; smaller parts of them stay
//     as they are, because hiding them would take room. A merge leaves discarded clusters out.
//   - Data have no checksums, which would cost reading all of a layer at each freeze.
//
// The header: magic, version u32, 4 zero bytes, size of the disk u64, ID of 16 bytes, zeros, and SHA-256 in the last 32 of 4096 bytes. A record: kind
// u32, cluster u32, slot u32, and the CRC-32C u32 of the layer's ID, the record's place and its first 12 bytes.
//
// The map is a journal of records, which is only appended to. A record has 16 bytes and so never crosses a sector, and a block is durable as
// zeros before it is used. So a record is either complete or zeros, and anything else is damage.
const (
	clusterSize = 64 << 10
	headerSize  = 4096
	headerSum   = headerSize - sha256.Size
	layerMagic  = "\x89avml\r\n\x1a"
	layerVer    = 1

	recordSize   = 16
	blockRecords = clusterSize / recordSize
	firstBlock   = 1 // slot
	firstSlot    = 2 // that can hold a cluster
)

// Kinds of records.
const (
	recordMap    = 1 + iota // the cluster is in the slot
	recordZero              // the cluster is zeros, whatever layers below have
	recordCommit            // all records before ordinal cluster<<32|slot are durable, with their slots
	recordNext              // the map continues in the slot
	recordBegin             // the layer was opened for writing; cluster<<32|slot identifies the host's boot
	recordSealed            // nothing follows; slot is the checksum of all records
	recordForget            // the records from ordinal cluster<<32|slot up to this one do not count
)

// record is an entry of a map. For kinds that need a number of 64 bits, cluster is its upper half and slot its lower one.
type record struct{ kind, cluster, slot uint32 }

func (r record) wide() uint64 { return uint64(r.cluster)<<32 | uint64(r.slot) }

func wideRecord(kind uint32, v uint64) record { return record{kind, uint32(v >> 32), uint32(v)} }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// DamagedError means that a disk was damaged on the host. Its contents are unknown, so it is not opened.
type DamagedError struct{ Path, Cause string }

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the disk's file %s is damaged: %s; restore a snapshot, or remove the VM", e.Path, e.Cause)
}

// layer is an open layer. Disk.places has which of its slots hold which clusters.
type layer struct {
	id   string
	path string
	file *os.File
	raw  bool // a disk of an older version without a map: cluster n is at n * 64 KiB
	size int64

	// The fields below are for layers with a map.
	block   uint32 // slot of the map's last block
	records int    // in that block
	ordinal uint64 // of the next record
	sum     uint32 // checksum of all records
	sealed  bool
	next    uint32 // the first slot that was never used
	end     int64  // where the file ends; it reads as zeros beyond
	used    bool   // it has, or had, a cluster

	users atomic.Int32 // users in addition to the first
}

// addUser adds a user and returns the layer. Each user calls release once.
func (l *layer) addUser() *layer {
	l.users.Add(1)
	return l
}

// release closes the file after the last user.
func (l *layer) release() error {
	if l.users.Add(-1) >= 0 {
		return nil
	}
	return l.file.Close()
}

// contents is what replay reads from a layer's map.
type contents struct {
	slots map[uint32]uint32 // of clusters; 0: zeros
	maps  []uint32          // slots of the map's blocks
	boot  uint64            // the host's boot in which it was last written
	// committed is how many records are known to be durable. Later ones exist only if the host has not crashed since.
	committed uint64
	waiting   []waiting // records that no commit covers
}

// waiting is a record with its number, counted from the beginning of the map.
type waiting struct {
	record
	ordinal uint64
}

// apply makes the waiting records before an ordinal valid.
func (c *contents) apply(to uint64) {
	n := 0
	for ; n < len(c.waiting) && c.waiting[n].ordinal < to; n++ {
		c.slots[c.waiting[n].cluster] = c.waiting[n].slot
	}
	c.waiting = c.waiting[n:]
}

// newID returns 128 random bits in hexadecimal, so that layers of all disks have different names and can be put into one directory.
func newID() string {
	id := make([]byte, 16)
	rand.Read(id) // never fails
	return hex.EncodeToString(id)
}

func validID(id string) bool {
	b, err := hex.DecodeString(id)
	return err == nil && len(b) == 16 && hex.EncodeToString(b) == id
}

// createLayer makes an empty layer, which is durable except for its name.
func createLayer(dir, id string, size int64) (*layer, error) {
	l, err := newLayer(dir, id, size)
	if err != nil {
		return nil, err
	}
	if err := l.sync(); err != nil {
		return nil, errors.Join(err, l.file.Close(), os.Remove(l.path))
	}
	return l, nil
}

// sync makes a layer durable, except for its name; nil is no layer.
func (l *layer) sync() error {
	if l == nil {
		return nil
	}
	return syncData(l.file)
}

// newLayer makes an empty layer that is not durable yet.
func newLayer(dir, id string, size int64) (*layer, error) {
	path := filepath.Join(dir, id)
	file, err := openLayer(path, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	l := &layer{id: id, path: path, file: file, size: size, block: firstBlock, next: firstSlot, end: firstSlot * clusterSize}
	begin := make([]byte, firstSlot*clusterSize)
	copy(begin, encodeHeader(id, size))
	if _, err = file.WriteAt(begin, 0); err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(path))
	}
	return l, nil
}

// encodeHeader returns a header: magic, version u32, u32 0, size of the disk u64, ID 16 bytes, zeros, SHA-256 of all that.
func encodeHeader(id string, size int64) []byte {
	page := make([]byte, headerSize)
	copy(page, layerMagic)
	binary.LittleEndian.PutUint32(page[8:], layerVer)
	binary.LittleEndian.PutUint64(page[16:], uint64(size))
	_, _ = hex.Decode(page[24:40], []byte(id))
	sum := sha256.Sum256(page[:headerSum])
	copy(page[headerSum:], sum[:])
	return page
}

// decodeHeader returns the size of the disk.
func decodeHeader(page []byte, id string) (size int64, cause string) {
	if len(page) < headerSize || string(page[:8]) != layerMagic {
		return 0, "it does not begin like a layer"
	}
	if v := binary.LittleEndian.Uint32(page[8:]); v != layerVer {
		return 0, fmt.Sprintf("it has format %d, this agentvm has format %d", v, layerVer)
	}
	size = int64(binary.LittleEndian.Uint64(page[16:]))
	if size <= 0 || size > MaxSize || string(encodeHeader(id, size)) != string(page) {
		return 0, "its header is not the one of this layer"
	}
	return size, ""
}

// openLayerAt opens an existing layer and reads its map. Without write, the layer must be sealed.
func openLayerAt(dir string, ref layerRef, size int64, write bool) (*layer, *contents, error) {
	flags := os.O_RDONLY
	if write {
		flags = os.O_RDWR
	}
	path := filepath.Join(dir, ref.ID)
	file, err := openLayer(path, flags)
	if err != nil {
		return nil, nil, err
	}
	l := &layer{id: ref.ID, path: path, file: file, raw: ref.Raw, size: size}
	c, err := l.read(write)
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return l, c, nil
}

func (l *layer) damaged(format string, args ...any) error {
	return &DamagedError{l.path, fmt.Sprintf(format, args...)}
}

// read checks the header and reads the map. A layer that is not to be written must have its end.
func (l *layer) read(write bool) (*contents, error) {
	info, err := l.file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, l.damaged("it is not a regular file")
	}
	l.end = info.Size()
	if l.raw {
		return l.readRaw()
	}
	page := make([]byte, headerSize)
	if n, err := l.file.ReadAt(page, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	} else if size, cause := decodeHeader(page[:n], l.id); cause != "" {
		return nil, l.damaged("%s", cause)
	} else if size > l.size {
		return nil, l.damaged("it is of a disk of %d bytes, more than this one has", size)
	}
	c, err := l.replay()
	switch {
	case err != nil:
		return nil, err
	case !write && !l.sealed:
		return nil, l.damaged("its map has no end")
	case l.sealed:
		err = l.checkSlots(c)
	}
	return c, err
}

// readRaw finds the clusters that a raw file has. Without the system's help that is all of them.
func (l *layer) readRaw() (*contents, error) {
	c := &contents{slots: make(map[uint32]uint32)}
	for at := int64(0); at < l.end; {
		start, length, err := nextData(l.file, at)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			start, length = at, l.end-at
		case err != nil:
			return nil, err
		case length <= 0:
			return c, nil
		}
		for n := start / clusterSize; n*clusterSize < start+length; n++ {
			c.slots[uint32(n)] = uint32(n)
		}
		at = start + length
	}
	return c, nil
}

// check returns the checksum of a record at a place of a layer.
func (l *layer) check(r []byte, block uint32, index int) uint32 {
	var place [8]byte
	binary.LittleEndian.PutUint32(place[:], block)
	binary.LittleEndian.PutUint32(place[4:], uint32(index))
	sum := crc32.Update(0, castagnoli, []byte(l.id))
	sum = crc32.Update(sum, castagnoli, place[:])
	return crc32.Update(sum, castagnoli, r[:12])
}

// encode returns the 16 bytes of a record: kind, cluster and slot as u32, and their checksum, which also covers the layer and the place.
func (l *layer) encode(r record, block uint32, index int) []byte {
	b := make([]byte, recordSize)
	binary.LittleEndian.PutUint32(b, r.kind)
	binary.LittleEndian.PutUint32(b[4:], r.cluster)
	binary.LittleEndian.PutUint32(b[8:], r.slot)
	binary.LittleEndian.PutUint32(b[12:], l.check(b, block, index))
	return b
}

// decode reads a place, which has nothing, a record, or damage.
func (l *layer) decode(b []byte, block uint32, index int) (r record, there bool, err error) {
	if zero(b) {
		return r, false, nil
	}
	r = record{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])}
	if l.check(b, block, index) != binary.LittleEndian.Uint32(b[12:]) {
		return r, false, l.damaged("record %d of its map, in slot %d, is none", index, block)
	}
	return r, true, nil
}

// replay reads the map. It accepts the records behind the last commit up to the first gap; resolveTail decides whether they are valid.
func (l *layer) replay() (*contents, error) {
	c := &contents{slots: make(map[uint32]uint32), maps: []uint32{firstBlock}}
	l.block, l.records, l.ordinal, l.sum, l.next = firstBlock, 0, 0, 0, firstSlot
	b := make([]byte, clusterSize)
	for {
		if n, err := l.file.ReadAt(b, int64(l.block)*clusterSize); n < len(b) {
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, err
			}
			return nil, l.damaged("it has been cut: its map continues at %d", int64(l.block)*clusterSize)
		}
		more, err := l.replayBlock(b, c)
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
	}
	if c.committed > l.ordinal {
		return nil, l.damaged("its map has %d records and not the %d that were made durable", l.ordinal, c.committed)
	}
	c.apply(l.ordinal)
	l.used = len(c.slots) > 0
	return c, nil
}

// checkSlots checks that the file has all slots that the map refers to.
func (l *layer) checkSlots(c *contents) error {
	for cluster, slot := range c.slots {
		if slot != 0 && int64(slot)*clusterSize >= l.end {
			return l.damaged("it has been cut: cluster %d is missing", cluster)
		}
	}
	return nil
}

// replayBlock reads a block. It reports whether there is another one, and sets l.block to it.
func (l *layer) replayBlock(b []byte, c *contents) (more bool, err error) {
	for l.records = 0; l.records < blockRecords; l.records++ {
		at := b[l.records*recordSize : (l.records+1)*recordSize]
		r, there, err := l.decode(at, l.block, l.records)
		if err != nil {
			return false, err
		}
		if !there {
			return false, l.checkRest(b, c)
		}
		if l.sealed {
			return false, l.damaged("its map continues after its end")
		}
		if r.kind == recordSealed {
			if r.slot != l.sum {
				return false, l.damaged("the checksum of its map is wrong")
			}
			l.sealed = true
		}
		l.sum = crc32.Update(l.sum, castagnoli, at)
		l.ordinal++
		if r.kind == recordNext {
			if r.slot < firstSlot || int64(r.slot+1)*clusterSize > l.end || len(c.maps) > int(l.end/clusterSize) {
				return false, l.damaged("its map continues in slot %d", r.slot)
			}
			l.block, l.next, c.maps = r.slot, max(l.next, r.slot+1), append(c.maps, r.slot)
			return true, nil
		}
		if err := l.replayRecord(r, c); err != nil {
			return false, err
		}
	}
	return false, l.damaged("a block of its map, slot %d, does not say where it continues", l.block)
}

// checkRest checks what follows the last record. After a power failure there may be records that nothing relies on; a commit among them
// means that an earlier record is missing.
func (l *layer) checkRest(b []byte, c *contents) error {
	for i := l.records; i < blockRecords; i++ {
		r, there, err := l.decode(b[i*recordSize:(i+1)*recordSize], l.block, i)
		if err != nil {
			return err
		}
		if there && (r.kind == recordCommit || r.kind == recordSealed || r.kind == recordNext) {
			return l.damaged("record %d of its map, in slot %d, is missing", l.records, l.block)
		}
	}
	return nil
}

// replayRecord checks a record against what is possible in this disk. The slot of a cluster may lie behind the file's end, because only a
// commit promises its contents.
func (l *layer) replayRecord(r record, c *contents) error {
	switch r.kind {
	case recordMap:
		if r.slot < firstSlot || int64(r.cluster)*clusterSize >= l.size {
			return l.damaged("its map has cluster %d in slot %d", r.cluster, r.slot)
		}
		l.next = max(l.next, r.slot+1)
		c.waiting = append(c.waiting, waiting{r, l.ordinal - 1})
	case recordZero:
		if int64(r.cluster)*clusterSize >= l.size {
			return l.damaged("its map has cluster %d", r.cluster)
		}
		r.slot = 0
		c.waiting = append(c.waiting, waiting{r, l.ordinal - 1})
	case recordCommit:
		if r.wide() >= l.ordinal || r.wide() < c.committed {
			return l.damaged("a commit of %d records of its map follows %d", r.wide(), l.ordinal)
		}
		c.committed = r.wide()
		c.apply(c.committed)
	case recordForget:
		if r.wide() < c.committed {
			return l.damaged("its map gives up records that were made durable")
		}
		for n := len(c.waiting); n > 0 && c.waiting[n-1].ordinal >= r.wide(); n-- {
			c.waiting = c.waiting[:n-1]
		}
	case recordBegin:
		c.boot = r.wide()
	case recordSealed:
	default:
		return l.damaged("record %d of its map has the unknown kind %d", l.ordinal-1, r.kind)
	}
	return nil
}

// append writes records, which survive the death of the process. A failure changes nothing.
func (l *layer) append(records ...record) error {
	for len(records) > 0 {
		n := min(len(records), blockRecords-1-l.records)
		if n == 0 {
			if err := l.extendMap(); err != nil {
				return err
			}
			continue
		}
		if err := l.write(records[:n]); err != nil {
			return err
		}
		records = records[n:]
	}
	return nil
}

// write writes records that fit into the block. Where only a part was written, zeros take its place, so that it does not count as damage.
func (l *layer) write(records []record) error {
	b := make([]byte, 0, len(records)*recordSize)
	for i, r := range records {
		b = append(b, l.encode(r, l.block, l.records+i)...)
	}
	at := int64(l.block)*clusterSize + int64(l.records)*recordSize
	if n, err := l.file.WriteAt(b, at); err != nil {
		if n > 0 {
			_, again := l.file.WriteAt(make([]byte, n), at)
			err = errors.Join(err, again)
		}
		return err
	}
	l.records += len(records)
	l.ordinal += uint64(len(records))
	l.sum = crc32.Update(l.sum, castagnoli, b)
	for _, r := range records {
		l.used = l.used || r.kind == recordMap || r.kind == recordZero
	}
	return nil
}

// extendMap continues the map in a new block, which is durable as zeros before a record refers to it.
func (l *layer) extendMap() error {
	slot := l.next
	if _, err := l.file.WriteAt(make([]byte, clusterSize), int64(slot)*clusterSize); err != nil {
		return err
	}
	if err := syncData(l.file); err != nil {
		return err
	}
	l.next, l.end = slot+1, max(l.end, int64(slot+1)*clusterSize)
	if err := l.write([]record{{kind: recordNext, slot: slot}}); err != nil {
		return err
	}
	l.block, l.records = slot, 0
	return nil
}

// resolveTail decides, before a layer is written to, about the records behind the last commit. They are valid if the host has not booted since
// they were written. Else it revokes them, which is allowed because the guest never learned that they were durable. The decision is durable
// when resolveTail returns.
func (l *layer) resolveTail(c *contents, boot uint64) (*contents, error) {
	rest := make([]byte, clusterSize-l.records*recordSize)
	at := int64(l.block)*clusterSize + int64(l.records)*recordSize
	if err := readFull(l.file, rest, at); err != nil {
		return nil, err
	}
	if !zero(rest) { // records behind a missing one
		if _, err := l.file.WriteAt(make([]byte, len(rest)), at); err != nil {
			return nil, err
		}
		if err := syncData(l.file); err != nil {
			return nil, err
		}
	}
	if l.ordinal > c.committed && (boot == 0 || c.boot != boot) {
		if err := l.append(wideRecord(recordForget, c.committed)); err != nil {
			return nil, err
		}
		var err error
		if c, err = l.replay(); err != nil {
			return nil, err
		}
	}
	if err := l.append(wideRecord(recordBegin, boot)); err != nil {
		return nil, err
	}
	if err := l.checkSlots(c); err != nil {
		return nil, err
	}
	return c, l.commit(l.ordinal)
}

// commit makes everything durable, and then appends the commit of the records before an ordinal.
func (l *layer) commit(ordinal uint64) error {
	if err := syncData(l.file); err != nil {
		return err
	}
	if err := l.append(wideRecord(recordCommit, ordinal)); err != nil {
		return err
	}
	return syncData(l.file)
}

// seal ends the map. The layer is never written to again.
func (l *layer) seal() error {
	if err := syncData(l.file); err != nil {
		return err
	}
	if blockRecords-1-l.records < 2 { // both records must be in one block, because the checksum covers all before it
		if err := l.extendMap(); err != nil {
			return err
		}
	}
	if err := l.append(wideRecord(recordCommit, l.ordinal)); err != nil {
		return err
	}
	if err := l.append(record{kind: recordSealed, slot: l.sum}); err != nil {
		return err
	}
	l.sealed = true
	return syncData(l.file)
}

// readFull reads all of p.
func readFull(r io.ReaderAt, p []byte, at int64) error {
	n, err := r.ReadAt(p, at)
	if n == len(p) {
		return nil
	}
	return errors.Join(io.ErrUnexpectedEOF, err)
}
