package disk

import (
	"bytes"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"testing"
)

// A discarded cluster reads as zeros whatever layers below have, also after a restart; its room in the top is free.
func TestDiscard(t *testing.T) {
	path := newDisk(t, MinSize)
	d := open(t, path)
	before := allocated(t, path)
	data := bytes.Repeat([]byte("discarded data! "), 32<<20/16)
	write := func() {
		t.Helper()
		if _, err := d.WriteAt(data, 16<<20); err != nil {
			t.Fatal(err)
		}
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	discard := func(offset, length int64) {
		t.Helper()
		if err := d.Discard(offset, length); err != nil {
			t.Fatal(err)
		}
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	write()
	discard(16<<20, 32<<20)
	if n := allocated(t, path); runtime.GOOS == "linux" && n > before+1<<20 {
		t.Errorf("%d bytes on the host before, %d after the discard", before, n)
	}
	write() // in the same slots
	if n := allocated(t, path); n > before+33<<20 {
		t.Errorf("%d bytes on the host for 32 MiB that were written twice", n-before)
	}
	copied := filepath.Join(t.TempDir(), "copy.img")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Clone(t.Context(), path, copied); err != nil {
		t.Fatal(err)
	}
	d = open(t, copied) // the data are in a layer below now
	before = allocated(t, copied)
	discard(16<<20+100, 16<<20) // up to the middle of clusters at both ends
	if n := allocated(t, copied); n > before+128<<10 {
		t.Errorf("a discard took %d bytes on the host", n-before)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open(t, copied)
	got := make([]byte, len(data))
	if _, err := d.ReadAt(got, 16<<20); err != nil {
		t.Fatal(err)
	}
	want := bytes.Clone(data)
	clear(want[clusterSize : 16<<20])
	if !bytes.Equal(got, want) {
		t.Error("the copy has something else than zeros where it was discarded, and else what was written")
	}
	original := open(t, path)
	if _, err := original.ReadAt(got, 16<<20); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the disk of which it is a copy has changed: %v", err)
	}
}

// After random writes and discards a disk has what was written, zeros, or, of parts of clusters, what was there.
func TestDiscardRandomly(t *testing.T) {
	path := newDisk(t, MinSize)
	d := open(t, path)
	random := rand.New(rand.NewPCG(1, 2))
	const from, size = 8 << 20, 4 << 20
	model, known := make([]byte, size), bytes.Repeat([]byte{1}, size)
	if _, err := d.ReadAt(model, from); err != nil {
		t.Fatal(err)
	}
	for i := range 400 {
		at := random.Int64N(size/512) * 512
		length := min(1+random.Int64N(5*clusterSize), size-at)
		switch random.IntN(8) {
		case 0:
			if err := d.Sync(); err != nil {
				t.Fatal(err)
			}
		case 1:
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = open(t, path)
		case 2, 3, 4:
			p := bytes.Repeat([]byte{byte(i), 7}, int(length+1)/2)[:length]
			if _, err := d.WriteAt(p, from+at); err != nil {
				t.Fatal(err)
			}
			copy(model[at:], p)
			copy(known[at:at+length], bytes.Repeat([]byte{1}, int(length)))
		default:
			if err := d.Discard(from+at, length); err != nil {
				t.Fatal(err)
			}
			for n := at; n < at+length; n++ {
				c := n / clusterSize * clusterSize
				if whole := c >= at && c+clusterSize <= at+length; whole {
					model[n], known[n] = 0, 1
				} else if model[n] != 0 || known[n] == 0 {
					known[n] = 0 // zero, or as before
				}
			}
		}
	}
	got := make([]byte, size)
	if _, err := d.ReadAt(got, from); err != nil {
		t.Fatal(err)
	}
	for n := range got {
		if got[n] != model[n] && (known[n] == 1 || got[n] != 0) {
			t.Fatalf("byte %d is %d, want %d (discarded %v)", n, got[n], model[n], known[n] == 0)
		}
	}
}

func TestDiscardOutside(t *testing.T) {
	d := open(t, newDisk(t, MinSize))
	for _, part := range [][2]int64{{-1, 10}, {0, -1}, {0, MinSize + 1}, {MinSize, 1}, {1<<63 - 1, 1<<63 - 1}} {
		if d.Discard(part[0], part[1]) == nil {
			t.Errorf("discarded %d bytes at %d", part[1], part[0])
		}
	}
	if err := d.Discard(MinSize-clusterSize, clusterSize); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d.Discard(0, clusterSize) == nil {
		t.Error("discarded a part of a closed disk")
	}
}

// A guest that writes and discards the same clusters again and again does not lengthen the map.
func TestDiscardWithoutEnd(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("discards in the top do nothing on this system")
	}
	d := open(t, newDisk(t, MinSize))
	data := bytes.Repeat([]byte{1}, 4*clusterSize)
	records := uint64(0)
	for i := range 100 {
		if _, err := d.WriteAt(data, 16<<20); err != nil {
			t.Fatal(err)
		}
		if err := d.Discard(16<<20, int64(len(data))); err != nil {
			t.Fatal(err)
		}
		top, _ := d.top()
		if i == 0 {
			records = top.ordinal
		} else if top.ordinal != records {
			t.Fatalf("the map has %d records after %d rounds, %d after the first", top.ordinal, i+1, records)
		}
	}
}

// A merge of layers leaves out what was discarded.
func TestMergeLeavesOutWhatIsDiscarded(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("discards in the top do nothing on this system")
	}
	path := newDisk(t, MinSize)
	d := open(t, path)
	empty := allocated(t, path)
	for i := range manyLayers + 2 {
		at := int64(8+i) << 20
		if _, err := d.WriteAt(bytes.Repeat([]byte{byte(i + 1)}, 1<<20), at); err != nil {
			t.Fatal(err)
		}
		if err := d.Discard(at, 1<<20); err != nil {
			t.Fatal(err)
		}
		if err := d.clone(t.Context(), filepath.Join(t.TempDir(), "copy.img")); err != nil {
			t.Fatal(err)
		}
	}
	if n := allocated(t, path); n > empty+2<<20 {
		t.Errorf("%d bytes on the host for data that are discarded", n-empty)
	}
	got := make([]byte, (manyLayers+2)<<20)
	if _, err := d.ReadAt(got, 8<<20); err != nil || !zero(got) {
		t.Errorf("discarded data are not zeros: %v", err)
	}
}
