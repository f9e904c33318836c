package disk

import (
	"cmp"
	"io"
	"io/fs"
	"syscall"
)

// readLayers reads from the layers of a disk of size bytes.
func readLayers(stack []*layer, t places, size int64, p []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, syscall.EINVAL
	}
	if offset >= size {
		return 0, io.EOF
	}
	whole := len(p)
	p = p[:min(int64(whole), size-offset)]
	done := 0
	limit := clusterOf(offset+int64(len(p))-1) + 1
	for done < len(p) {
		cluster, within := clusterOf(offset), offset%clusterSize
		where, run := t.run(cluster, limit)
		part := p[done:min(int64(len(p)), int64(done)+int64(run)*clusterSize-within)]
		if where == 0 {
			clear(part)
		} else {
			l := stack[where.layer()]
			n, err := l.file.ReadAt(part, int64(where.slot())*clusterSize+within)
			if n < len(part) {
				if err != nil && err != io.EOF {
					return done, err
				}
				clear(part[n:]) // the last slot of a file is only as long as what was written
			}
		}
		done += len(part)
		offset += int64(len(part))
	}
	if done < whole {
		return done, io.EOF
	}
	return done, nil
}

// clusterOf returns the number of the cluster that has the byte at offset.
func clusterOf(offset int64) uint32 { return uint32(offset / clusterSize) }

// WriteAt implements io.WriterAt. A write that is not inside the disk fails with ENOSPC and changes nothing. Zeros take no room
// where the disk has zeros already.
func (d *Disk) WriteAt(p []byte, offset int64) (int, error) {
	if offset < 0 || offset > d.size-int64(len(p)) {
		return 0, &fs.PathError{Op: "write", Path: d.path, Err: syscall.ENOSPC}
	}
	if len(p) == 0 {
		return 0, nil
	}
	if n, done, err := d.writeInPlace(p, offset); done {
		return n, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.broken != nil {
		return 0, cmp.Or(d.broken, fs.ErrClosed)
	}
	if len(p) >= blockSize && zero(p) {
		return d.writeZeros(p, offset)
	}
	return d.writeNew(p, offset)
}

// writeInPlace writes p when the top has all its clusters already, and p is not zeros. done reports that it did or failed.
func (d *Disk) writeInPlace(p []byte, offset int64) (n int, done bool, err error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed || d.broken != nil {
		return 0, true, cmp.Or(d.broken, fs.ErrClosed)
	}
	top, number := d.top()
	first, limit := clusterOf(offset), clusterOf(offset+int64(len(p))-1)+1
	for c := first; c < limit; c++ {
		if d.places.get(c).layer() != number {
			return 0, false, nil
		}
	}
	if len(p) >= blockSize && zero(p) {
		return 0, false, nil
	}
	for n < len(p) {
		within := offset % clusterSize
		where, run := d.places.run(clusterOf(offset), limit)
		part := p[n:min(int64(len(p)), int64(n)+int64(run)*clusterSize-within)]
		wrote, err := top.file.WriteAt(part, int64(where.slot())*clusterSize+within)
		n += wrote
		if err != nil {
			return n, true, err
		}
		offset += int64(len(part))
	}
	return n, true, nil
}

// writeNew writes clusters that the top does not all have. It writes the data to unused slots and then refers to them in the map, so that a
// process that is killed in between has written nothing.
func (d *Disk) writeNew(p []byte, offset int64) (n int, err error) {
	top, number := d.top()
	for n < len(p) {
		cluster, within := clusterOf(offset), offset%clusterSize
		if where := d.places.get(cluster); where.layer() == number {
			part := p[n:min(int64(len(p)), int64(n)+clusterSize-within)]
			if _, err := top.file.WriteAt(part, int64(where.slot())*clusterSize+within); err != nil {
				return n, err
			}
			n, offset = n+len(part), offset+int64(len(part))
			continue
		}
		part, err := d.writeRun(top, number, p[n:], cluster, within)
		if err != nil {
			return n, err
		}
		n, offset = n+part, offset+int64(part)
	}
	return n, nil
}

// writeRun writes, with one write, as many clusters as possible that the top does not have, and returns how many bytes of p it wrote.
func (d *Disk) writeRun(top *layer, number int, p []byte, cluster uint32, within int64) (int, error) {
	count := 1
	if within == 0 && int64(len(p)) >= clusterSize {
		for int64(count+1)*clusterSize <= int64(len(p)) && d.places.get(cluster+uint32(count)).layer() != number {
			count++
		}
	}
	slot, count := d.takeSlots(top, count)
	data, part := p, min(int64(len(p)), int64(count)*clusterSize-within)
	data = p[:part]
	to := int64(slot)*clusterSize + within
	fresh := int64(slot)*clusterSize >= top.end // it reads as zeros where nothing is written
	if old := d.places.get(cluster); part < clusterSize && (old != 0 || !fresh) {
		whole := make([]byte, clusterSize)
		if old != 0 {
			size := min(clusterSize, d.size-int64(cluster)*clusterSize)
			if _, err := readLayers(d.stack, d.places, d.size, whole[:size], int64(cluster)*clusterSize); err != nil {
				d.returnSlots(slot, count)
				return 0, err
			}
		}
		copy(whole[within:], data)
		data, to = whole, int64(slot)*clusterSize
	}
	_, err := top.file.WriteAt(data, to)
	top.end = max(top.end, (to+int64(len(data))+clusterSize-1)/clusterSize*clusterSize) // after a failure too, which may have written a part
	if err == nil {
		records := make([]record, count)
		for i := range records {
			records[i] = record{recordMap, cluster + uint32(i), slot + uint32(i)}
		}
		err = top.append(records...)
	}
	if err != nil {
		d.returnSlots(slot, count)
		return 0, err
	}
	for i := range uint32(count) {
		d.places.set(cluster+i, at(number, slot+i))
	}
	return int(part), nil
}

// takeSlots reserves up to count contiguous slots.
func (d *Disk) takeSlots(top *layer, count int) (slot uint32, n int) {
	if free := len(d.free); free > 0 {
		slot = d.free[free-1]
		d.free = d.free[:free-1]
		return slot, 1
	}
	slot = top.next
	top.next += uint32(count)
	return slot, count
}

// returnSlots makes slots free after a write to them that has failed.
func (d *Disk) returnSlots(slot uint32, count int) {
	for i := range uint32(count) {
		d.free = append(d.free, slot+i)
	}
}

// writeZeros makes a part of the disk zeros.
func (d *Disk) writeZeros(p []byte, offset int64) (n int, err error) {
	top, number := d.top()
	for n < len(p) {
		cluster, within := clusterOf(offset), offset%clusterSize
		part := min(int64(len(p)-n), clusterSize-within)
		where := d.places.get(cluster)
		switch whole := part == clusterSize || within == 0 && offset+part == d.size; {
		case where == 0:
		case whole:
			if err := top.append(record{recordZero, cluster, 0}); err != nil {
				return n, err
			}
			if d.places.set(cluster, 0); where.layer() == number {
				d.freed = append(d.freed, where.slot())
			}
		case where.layer() == number:
			to := int64(where.slot())*clusterSize + within
			if part%blockSize != 0 || to%blockSize != 0 || punch(top.file, to, part) != nil {
				if _, err := top.file.WriteAt(p[n:int64(n)+part], to); err != nil {
					return n, err
				}
			}
		default:
			if _, err := d.writeRun(top, number, p[n:int64(n)+part], cluster, within); err != nil {
				return n, err
			}
		}
		n, offset = n+int(part), offset+part
	}
	return n, nil
}

// Discard frees the room of a part of the disk whose contents the guest does not need any more. What the top has of it is returned to the
// host, where that has holes, and keeps its slot, so that a guest that discards and writes again and again does not lengthen the map. Whole
// clusters that only a layer below has become zeros; smaller parts of them stay, because hiding them would take room. A part that is not
// inside the disk fails with EINVAL.
func (d *Disk) Discard(offset, length int64) error {
	if offset < 0 || length < 0 || offset > d.size-length {
		return &fs.PathError{Op: "discard", Path: d.path, Err: syscall.EINVAL}
	}
	if length == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.broken != nil {
		return cmp.Or(d.broken, fs.ErrClosed)
	}
	top, number := d.top()
	end := offset + length
	var hidden []record
	for c, limit := clusterOf(offset), clusterOf(end-1)+1; ; {
		if c = d.places.next(c, limit); c == limit {
			break
		}
		where, run := d.places.run(c, limit)
		from, to := max(offset, int64(c)*clusterSize), min(end, int64(c+run)*clusterSize)
		if where.layer() == number {
			at := int64(where.slot())*clusterSize + from - int64(c)*clusterSize
			first, last := (at+blockSize-1)/blockSize*blockSize, (at+to-from)/blockSize*blockSize
			if first < last {
				_ = punch(top.file, first, last-first) // after a failure the room stays used
			}
			c += run
			continue
		}
		for last := c + run; c < last; c++ {
			if begin := int64(c) * clusterSize; begin >= from && min(begin+clusterSize, d.size) <= to {
				hidden = append(hidden, record{recordZero, c, 0})
			}
		}
	}
	if err := top.append(hidden...); err != nil {
		return err
	}
	for _, r := range hidden {
		d.places.set(r.cluster, 0)
	}
	return nil
}
