package disk

// places has the place of each cluster of a disk: the number of a layer and a slot in it. Leaves without clusters are nil.
type places []*[leafSize]place

// place is a layer's index plus one, and the slot; zero where the disk has zeros.
type place uint64

const leafSize = 512 // clusters, 32 MiB

// at returns the place of a slot in the layer with a number.
func at(layer int, slot uint32) place { return place(layer+1)<<32 | place(slot) }

func (p place) layer() int   { return int(p>>32) - 1 }
func (p place) slot() uint32 { return uint32(p) }

// newPlaces returns the table of a disk of size bytes that is all zeros. It takes 8 bytes for each 32 MiB, and 4 KiB more once they have data.
func newPlaces(size int64) places {
	clusters := (size + clusterSize - 1) / clusterSize
	return make(places, (clusters+leafSize-1)/leafSize)
}

func (t places) get(cluster uint32) place {
	leaf := t[cluster/leafSize]
	if leaf == nil {
		return 0
	}
	return leaf[cluster%leafSize]
}

func (t places) set(cluster uint32, p place) {
	leaf := t[cluster/leafSize]
	if leaf == nil {
		if p == 0 {
			return
		}
		leaf = new([leafSize]place)
		t[cluster/leafSize] = leaf
	}
	leaf[cluster%leafSize] = p
}

// overlay puts the clusters of a layer over those of the layers below.
func (t places) overlay(layer int, slots map[uint32]uint32, raw bool) {
	for cluster, slot := range slots {
		if int(cluster/leafSize) >= len(t) {
			continue // a raw file may be longer than the disk
		}
		if slot == 0 && !raw {
			t.set(cluster, 0)
		} else {
			t.set(cluster, at(layer, slot))
		}
	}
}

// run returns the place of a cluster, and how many clusters from it on, below limit, are contiguous there.
func (t places) run(cluster, limit uint32) (place, uint32) {
	first := t.get(cluster)
	n := uint32(1)
	for cluster+n < limit {
		next := t.get(cluster + n)
		if first == 0 && next != 0 || first != 0 && next != first+place(n) {
			break
		}
		n++
	}
	return first, n
}

// next returns the first cluster at or after one that has a place; the limit when there is none.
func (t places) next(cluster, limit uint32) uint32 {
	for cluster < limit {
		switch {
		case t[cluster/leafSize] == nil:
			cluster = (cluster/leafSize + 1) * leafSize
		case t.get(cluster) != 0:
			return cluster
		default:
			cluster++
		}
	}
	return limit
}

// nextData returns the first part at or after offset that may be other than zeros, of a disk of size bytes; its length is 0 when there is
// none.
func (t places) nextData(offset, size int64) (start, length int64) {
	if offset < 0 || offset >= size {
		return 0, 0
	}
	limit := clusterOf(size-1) + 1
	first := t.next(clusterOf(offset), limit)
	if first == limit {
		return 0, 0
	}
	last := first
	for last < limit && t.get(last) != 0 {
		last++
	}
	start = max(offset, int64(first)*clusterSize)
	return start, min(int64(last)*clusterSize, size) - start
}
