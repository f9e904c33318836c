package disk

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"agentvm/internal/host/atomicfile"
)

// A disk that is frozen again and again, or whose copies are copied, would get more and more layers. So when there are many below the top,
// the newest are merged into one: from the newest on, all that are not much larger than the sum of the newer ones. Data are then copied
// about once for each doubling of their size. As each layer is at least half again as large as all newer ones, there cannot be many.
const (
	manyLayers = 8
	// A layer is merged with the newer ones when its size is at most growth/2 times their sum.
	growth = 3
)

// merge merges layers of a disk and of kept, which was just frozen from it. The caller holds freezing.
func (d *Disk) merge(ctx context.Context, kept *Frozen) error {
	n := len(kept.stack)
	if n <= manyLayers || d.kept.Load() > 1 { // the layers of another Frozen must keep their names
		return nil
	}
	count := mergeCount(kept.stack)
	if count < 2 {
		return nil
	}
	from := n - count
	merged, slots, err := d.mergeFiles(ctx, kept.stack[from:], from > 0)
	if err != nil {
		return err
	}
	m := d.describe()
	var old []string
	m.Layers, old = mergeRefs(m.Layers, kept.stack[from:], merged.id)
	if err := atomicfile.Write(d.path, m.encode()); err != nil {
		return errors.Join(err, merged.release(), os.Remove(merged.path))
	}
	d.mu.Lock()
	d.places.replace(from, count, slots)
	d.stack, err = splice(d.stack, from, count, merged.addUser())
	d.mu.Unlock()
	kept.places.replace(from, count, slots)
	var other error
	kept.stack, other = splice(kept.stack, from, count, merged)
	for _, id := range old {
		_ = os.Remove(filepath.Join(layersDir(d.path), id))
		_ = os.Remove(filepath.Join(layersDir(d.path), id+sumSuffix))
	}
	return errors.Join(err, other)
}

// mergeRefs replaces the merged layers by the new one in a list, the newest first, and returns the IDs of those whose files are to be removed.
func mergeRefs(refs []layerRef, merged []*layer, id string) (list []layerRef, old []string) {
	for _, l := range merged {
		old = append(old, l.id)
	}
	for _, ref := range refs {
		switch {
		case !slices.Contains(old, ref.ID):
			list = append(list, ref)
		case ref.ID == merged[0].id: // the lowest of the merged ones
			list = append(list, layerRef{ID: id})
		}
	}
	return list, old
}

// splice replaces count layers by one.
func splice(stack []*layer, from, count int, l *layer) (list []*layer, err error) {
	list = append(list, stack[:from]...)
	list = append(list, l)
	for _, old := range stack[from : from+count] {
		err = errors.Join(err, old.release())
	}
	return append(list, stack[from+count:]...), err
}

// mergeCount returns how many of the newest layers should become one.
func mergeCount(stack []*layer) (count int) {
	total := int64(0)
	for _, l := range slices.Backward(stack) {
		if count > 0 && l.end > total*growth/2 {
			break
		}
		total += l.end
		count++
	}
	return count
}

// mergeFiles merges layers, the lowest first, into a new one. With below there are layers below these, which records of zeros hide.
func (d *Disk) mergeFiles(ctx context.Context, layers []*layer, below bool) (*layer, map[uint32]uint32, error) {
	type source struct {
		file *os.File
		slot uint32
		zero bool
	}
	all := make(map[uint32]source)
	for _, l := range layers {
		again := &layer{id: l.id, path: l.path, file: l.file, raw: l.raw, size: l.size}
		c, err := again.read(false)
		if err != nil {
			return nil, nil, err
		}
		for cluster, slot := range c.slots {
			all[cluster] = source{l.file, slot, slot == 0 && !l.raw}
		}
	}
	dir := layersDir(d.path)
	to, err := createLayer(dir, newID(), d.size)
	if err != nil {
		return nil, nil, err
	}
	slots := make(map[uint32]uint32)
	p := make([]byte, clusterSize)
	for _, cluster := range slices.Sorted(maps.Keys(all)) {
		from := all[cluster]
		r := record{recordZero, cluster, 0}
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case from.zero && !below:
			continue
		case !from.zero:
			clear(p)
			n, failed := from.file.ReadAt(p, int64(from.slot)*clusterSize)
			switch {
			case n < len(p) && failed != io.EOF:
				err = failed
			case zero(p) && !below: // discarded
				continue
			case !zero(p):
				r = record{recordMap, cluster, to.next}
				_, err = to.file.WriteAt(p, int64(to.next)*clusterSize)
				to.next++
			}
		}
		if err == nil {
			err = to.append(r)
		}
		if err != nil {
			break
		}
		slots[cluster] = r.slot
	}
	if err == nil {
		err = to.seal()
	}
	if err == nil {
		err = atomicfile.SyncFolder(dir)
	}
	if err != nil {
		return nil, nil, errors.Join(err, to.release(), os.Remove(to.path))
	}
	return to, slots, nil
}

// replace replaces count layers by one with these slots.
func (t places) replace(from, count int, slots map[uint32]uint32) {
	for i, leaf := range t {
		if leaf == nil {
			continue
		}
		for j, p := range leaf {
			switch l := p.layer(); {
			case p == 0 || l < from:
			case l < from+count:
				if leaf[j] = 0; slots[uint32(i*leafSize+j)] != 0 {
					leaf[j] = at(from, slots[uint32(i*leafSize+j)])
				}
			default:
				leaf[j] = at(l-count+1, p.slot())
			}
		}
	}
}

// clone copies the table with its leaves.
func (t places) clone() places {
	c := make(places, len(t))
	for i, leaf := range t {
		if leaf != nil {
			copied := *leaf
			c[i] = &copied
		}
	}
	return c
}
