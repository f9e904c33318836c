package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// model is a disk and its expected contents.
type model struct {
	*Disk
	want []byte
	rand *rand.Rand
}

func newModel(t *testing.T, seed uint64) *model {
	t.Helper()
	m := &model{Disk: open(t, newDisk(t, MinSize)), want: make([]byte, MinSize), rand: rand.New(rand.NewPCG(seed, 1))}
	if err := readFull(m.Disk, m.want, 0); err != nil {
		t.Fatal(err)
	}
	return m
}

// write writes random data at a random place, as a guest does: blocks mostly, zeros sometimes.
func (m *model) write(t *testing.T) {
	t.Helper()
	size := int64(1+m.rand.IntN(64)) * blockSize
	switch m.rand.IntN(8) {
	case 0:
		size = int64(1+m.rand.IntN(5)) * clusterSize
	case 1:
		size = int64(1 + m.rand.IntN(10_000))
	}
	at := m.rand.Int64N((MinSize-size)/blockSize)*blockSize + blockSize // not the superblock
	at = min(at, MinSize-size)
	if m.rand.IntN(4) == 0 {
		at = max(clusterSize, at/clusterSize*clusterSize)
	}
	p := make([]byte, size)
	if m.rand.IntN(3) > 0 {
		for i := 0; i < len(p); i += 7 {
			p[i] = byte(m.rand.Uint32())
		}
	}
	if n, err := m.WriteAt(p, at); err != nil || n != len(p) {
		t.Fatalf("write %d at %d: %d, %v", size, at, n, err)
	}
	copy(m.want[at:], p)
}

func (m *model) check(t *testing.T) {
	t.Helper()
	checkBytes(t, m.Disk, m.want)
}

func checkBytes(t *testing.T, r interface {
	ReadAt([]byte, int64) (int, error)
}, want []byte,
) {
	t.Helper()
	got := make([]byte, 16*clusterSize+blockSize) // in pieces: the race detector makes much of much memory
	for at := 0; at < len(want); at += len(got) {
		got = got[:min(len(got), len(want)-at)]
		if err := readFull(r, got, int64(at)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want[at:at+len(got)]) {
			t.Fatalf("something between %d and %d is another one", at, at+len(got))
		}
	}
}

func (m *model) reopen(t *testing.T) {
	t.Helper()
	path := m.Path()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	m.Disk = open(t, path)
}

// freeze freezes a disk.
func freeze(t testing.TB, d *Disk) *Frozen {
	t.Helper()
	f, err := d.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	at := f.At()
	kept, err := f.Done(context.Background())
	if err = errors.Join(at, err); err != nil {
		t.Fatal(err)
	}
	return kept
}

// TestLayersAgainstAModel writes, syncs, freezes, copies and opens again, in any order.
func TestLayersAgainstAModel(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			m := newModel(t, seed)
			dir := t.TempDir()
			var kept []*Frozen
			var wanted [][]byte
			for i := range 300 {
				switch m.rand.IntN(20) {
				case 0:
					if err := m.Sync(); err != nil {
						t.Fatal(err)
					}
				case 1:
					m.reopen(t)
				case 2:
					m.check(t)
				case 3:
					if len(kept) < 20 {
						kept, wanted = append(kept, freeze(t, m.Disk)), append(wanted, bytes.Clone(m.want))
						checkBytes(t, kept[len(kept)-1], m.want)
					}
				default:
					m.write(t)
				}
				if i == 200 { // continues as a copy of itself
					f := freeze(t, m.Disk)
					to := filepath.Join(dir, "copy.img")
					if err := errors.Join(f.Clone(t.Context(), to), f.Close(), m.Close()); err != nil {
						t.Fatal(err)
					}
					m.Disk = open(t, to)
				}
			}
			m.check(t)
			for i, f := range kept {
				checkBytes(t, f, wanted[i])
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestForksFiftyDeep: what a copy costs and needs does not grow with how many were made before.
func TestForksFiftyDeep(t *testing.T) {
	dir := t.TempDir()
	m := newModel(t, 7)
	for i := range 50 {
		for range 5 {
			m.write(t)
		}
		f := freeze(t, m.Disk)
		to := filepath.Join(dir, fmt.Sprint(i))
		if err := errors.Join(f.Clone(t.Context(), to), f.Close()); err != nil {
			t.Fatal(err)
		}
		from := m.Path()
		if err := errors.Join(m.Close(), Remove(from)); err != nil {
			t.Fatal(err)
		}
		m.Disk = open(t, to)
		if n := len(m.stack); n > 20 {
			t.Fatalf("%d layers after %d copies", n, i)
		}
		m.check(t)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 3 {
		t.Errorf("left: %v, %v", left, err)
	}
	if names, err := os.ReadDir(layersDir(m.Path())); err != nil || len(names) != len(m.stack) {
		t.Errorf("%d files of layers for %d layers: %v", len(names), len(m.stack), err)
	}
}

// TestFrozenAgainAndAgain: a disk that is frozen again and again has few layers, and takes no more room than its data.
func TestFrozenAgainAndAgain(t *testing.T) {
	m := newModel(t, 8)
	for range 60 {
		for range 3 {
			m.write(t)
		}
		if err := freeze(t, m.Disk).Close(); err != nil {
			t.Fatal(err)
		}
	}
	m.check(t)
	if n := len(m.stack); n > 20 {
		t.Errorf("%d layers", n)
	}
	before := len(m.stack)
	if err := errors.Join(freeze(t, m.Disk).Close(), freeze(t, m.Disk).Close()); err != nil {
		t.Fatal(err)
	}
	if n := len(m.stack); n > before {
		t.Errorf("frozen without having changed, it has %d layers instead of %d", n, before)
	}
	m.reopen(t)
	m.check(t)
}

// TestCopiesShare: a copy takes room only for its changes, on every file system.
func TestCopiesShare(t *testing.T) {
	m := newModel(t, 9)
	big := bytes.Repeat([]byte("shared"), 4<<20/6+1)
	if _, err := m.WriteAt(big, 32<<20); err != nil {
		t.Fatal(err)
	}
	f := freeze(t, m.Disk)
	defer f.Close()
	to := filepath.Join(t.TempDir(), "copy.img")
	if err := f.Clone(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	for _, l := range f.stack {
		a, err := os.Stat(l.path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.Stat(filepath.Join(layersDir(to), l.id))
		if err != nil {
			t.Fatal(err)
		}
		if !os.SameFile(a, b) {
			t.Errorf("layer %s was copied", l.id)
		}
	}
	d := open(t, to)
	if _, err := d.WriteAt([]byte("x"), 33<<20); err != nil {
		t.Fatal(err)
	}
	top, _ := d.top()
	if info, err := os.Stat(top.path); err != nil || info.Size() > 3*clusterSize {
		t.Errorf("with one byte changed its own layer has %d bytes, %v", info.Size(), err)
	}
	var sharing sync.WaitGroup
	for i := range 50 {
		sharing.Go(func() {
			if err := f.Clone(t.Context(), fmt.Sprint(to, i)); err != nil {
				t.Error(err)
			}
		})
	}
	sharing.Wait()
	want := wantOf(t, f)
	for i := range 50 {
		checkBytes(t, open(t, fmt.Sprint(to, i)), want)
	}
}

func wantOf(t *testing.T, f *Frozen) []byte {
	t.Helper()
	p := make([]byte, f.Size())
	if err := readFull(f, p, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestCopyWithoutLinks is for file systems that give a file one name only.
func TestCopyWithoutLinks(t *testing.T) {
	m := newModel(t, 10)
	for range 20 {
		m.write(t)
	}
	f := freeze(t, m.Disk)
	defer f.Close()
	for _, l := range f.stack {
		to := filepath.Join(t.TempDir(), l.id)
		if err := copyFile(l.path, to); err != nil {
			t.Fatal(err)
		}
		a, b := readFile(t, l.path), readFile(t, to)
		if !bytes.Equal(a, b) {
			t.Errorf("layer %s is another one", l.id)
		}
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPowerFails keeps a random part of the writes since the last Sync, as a power failure does. Synced data are
// there, byte for byte.
func TestPowerFails(t *testing.T) {
	m := newModel(t, 11)
	for range 30 {
		m.write(t)
	}
	if err := m.Sync(); err != nil {
		t.Fatal(err)
	}
	top, _ := m.top()
	durable := readFile(t, top.path)
	synced := bytes.Clone(m.want)
	writes := m.rand.IntN(20) + 20
	versions := map[int][][]byte{} // of sectors: each may be any that was written
	for range writes {
		before := bytes.Clone(m.want)
		m.write(t)
		for at := 0; at < len(before); at += 512 {
			if now := m.want[at : at+512]; !bytes.Equal(before[at:at+512], now) {
				versions[at] = append(versions[at], bytes.Clone(now))
			}
		}
	}
	latest := readFile(t, top.path)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, MinSize)
	for round := range 60 {
		// each sector of the file is old or new; the file has its old length or its new one
		mixed := bytes.Clone(latest)
		for at := 0; at < len(mixed); at += 512 {
			if m.rand.IntN(2) == 0 {
				old := make([]byte, 512)
				if at < len(durable) {
					copy(old, durable[at:])
				}
				copy(mixed[at:at+512], old)
			}
		}
		if round%3 == 0 {
			mixed = mixed[:len(durable)]
		}
		if err := os.WriteFile(top.path, mixed, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := openIn(m.Path(), uint64(round+1)<<32)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if err := readFull(d, got, 0); err != nil {
			t.Fatal(err)
		}
		for at := 0; at < MinSize; at += 512 {
			sector := got[at : at+512]
			if bytes.Equal(sector, synced[at:at+512]) || slices.ContainsFunc(versions[at], func(v []byte) bool { return bytes.Equal(v, sector) }) {
				continue
			}
			t.Fatalf("round %d: sector %d, written %d times since, is neither what was durable nor what was written", round, at/512, len(versions[at]))
		}
		// and it continues from there
		if _, err := d.WriteAt([]byte("more"), 8<<20); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			t.Fatal(err)
		}
		if err := open(t, m.Path()).Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKilledProcessLosesNothing: unsynced writes are there as long as the host did not crash.
func TestKilledProcessLosesNothing(t *testing.T) {
	m := newModel(t, 12)
	for range 50 {
		m.write(t)
	}
	m.reopen(t) // Close does not sync
	m.check(t)
	unsynced := bytes.Clone(m.want)
	for range 20 {
		m.write(t)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	d, err := openIn(m.Path(), 0) // it is not known whether the system went down
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	lost := 0
	got := make([]byte, MinSize)
	if err := readFull(d, got, 0); err != nil {
		t.Fatal(err)
	}
	for at := 0; at < MinSize; at += blockSize {
		if !bytes.Equal(got[at:at+blockSize], m.want[at:at+blockSize]) {
			lost++
		}
	}
	if lost == 0 || bytes.Equal(unsynced, m.want) {
		t.Error("nothing was given up: the test shows nothing")
	}
}

// TestKilledWhileFreezing tests every moment at which the process may be killed.
func TestKilledWhileFreezing(t *testing.T) {
	m := newModel(t, 13)
	for range 10 {
		m.write(t)
	}
	f, err := m.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	// before At: the new top and the new manifest are there
	prepared := snapshotOf(t, filepath.Dir(m.Path()))
	top, _ := m.top()
	if err := top.seal(); err != nil {
		t.Fatal(err)
	}
	sealed := snapshotOf(t, filepath.Dir(m.Path()))
	if err := f.staged.Rename(); err != nil {
		t.Fatal(err)
	}
	renamed := snapshotOf(t, filepath.Dir(m.Path()))
	for name, files := range map[string]map[string][]byte{"prepared": prepared, "sealed": sealed, "renamed": renamed} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for path, b := range files {
				if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o700), os.WriteFile(filepath.Join(dir, path), b, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				d := open(t, filepath.Join(dir, "disk.img"))
				checkBytes(t, d, m.want)
				if _, err := d.WriteAt([]byte{1}, 9<<20); err != nil {
					t.Fatal(err)
				}
				if names, err := os.ReadDir(layersDir(d.Path())); err != nil || len(names) != len(d.stack) {
					t.Errorf("%d files for %d layers, %v", len(names), len(d.stack), err)
				}
				if _, err := d.WriteAt(m.want[9<<20:9<<20+1], 9<<20); err != nil {
					t.Fatal(err)
				}
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func snapshotOf(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || strings.HasSuffix(path, ".lock") {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		files[name] = readFile(t, path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestDamageIsAnError flips every kind of byte of a disk's files that says where something is: wrong data are never read.
func TestDamageIsAnError(t *testing.T) {
	m := newModel(t, 14)
	for range 20 {
		m.write(t)
	}
	if err := freeze(t, m.Disk).Close(); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		m.write(t)
	}
	if err := errors.Join(m.Sync(), m.Close()); err != nil {
		t.Fatal(err)
	}
	files := snapshotOf(t, filepath.Dir(m.Path()))
	damaged := 0
	for name, b := range files {
		end := min(len(b), firstSlot*clusterSize)
		for at := 0; at < end; at += 1 + m.rand.IntN(13) {
			if b[at] == 0 && m.rand.IntN(200) > 0 {
				continue
			}
			flipped := bytes.Clone(b)
			flipped[at] ^= 1 << m.rand.IntN(8)
			path := filepath.Join(filepath.Dir(m.Path()), name)
			if err := os.WriteFile(path, flipped, 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := openIn(m.Path(), 1)
			var bad *DamagedError
			var invalid *InvalidError
			switch {
			case err == nil:
				checkBytes(t, d, m.want) // the change is in a part that is not read
				d.Close()
				restore(t, filepath.Dir(m.Path()), files)
				continue
			case !errors.As(err, &bad) && !errors.As(err, &invalid):
				t.Fatalf("%s, byte %d: %v", name, at, err)
			}
			damaged++
			restore(t, filepath.Dir(m.Path()), files)
		}
	}
	if damaged < 100 {
		t.Errorf("only %d damages were found", damaged)
	}
	for _, l := range []string{"removed", "cut"} {
		for name := range files {
			if name == "disk.img" {
				continue
			}
			path := filepath.Join(filepath.Dir(m.Path()), name)
			if l == "removed" {
				os.Remove(path)
			} else {
				os.Truncate(path, int64(len(files[name]))/2)
			}
			var bad *DamagedError
			if d, err := openIn(m.Path(), 1); !errors.As(err, &bad) {
				t.Errorf("%s %s: %v, %v", name, l, d, err)
			}
			restore(t, filepath.Dir(m.Path()), files)
		}
	}
}

func restore(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRawDisks: a disk of a version without layers is opened with its contents unchanged, wherever its adoption was interrupted.
func TestRawDisks(t *testing.T) {
	raw := newRaw(t, MinSize)
	want := readFile(t, raw)
	for name, prepare := range map[string]func(path string){
		"new": func(string) {},
		"interrupted with both names": func(path string) {
			os.Mkdir(layersDir(path), 0o700)
			os.Link(path, filepath.Join(layersDir(path), newID()))
		},
		"interrupted without its own name": func(path string) {
			os.Mkdir(layersDir(path), 0o700)
			os.WriteFile(filepath.Join(layersDir(path), newID()), make([]byte, 100), 0o600)
			os.Rename(path, filepath.Join(layersDir(path), newID()+rawSuffix))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "disk.img")
			if err := os.WriteFile(path, want, 0o600); err != nil {
				t.Fatal(err)
			}
			prepare(path)
			if err := Create(path, MinSize); !errors.Is(err, fs.ErrExist) {
				t.Fatalf("a new disk is made in its place: %v", err)
			}
			for range 3 {
				d := open(t, path)
				checkBytes(t, d, want)
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
			}
			to := path + ".copy"
			if err := Clone(t.Context(), path, to); err != nil {
				t.Fatal(err)
			}
			if err := Remove(path); err != nil {
				t.Fatal(err)
			}
			d := open(t, to)
			checkBytes(t, d, want)
			if _, err := d.WriteAt([]byte("own"), 20<<20); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// FuzzLayer: a damaged or forged file is an error or a layer, and causes no panic.
func FuzzLayer(f *testing.F) {
	dir := f.TempDir()
	l, err := createLayer(dir, strings.Repeat("ab", 16), MinSize)
	if err != nil {
		f.Fatal(err)
	}
	_ = l.append(record{recordMap, 3, 2}, record{recordZero, 4, 0}, wideRecord(recordCommit, 2), wideRecord(recordBegin, 7), record{recordMap, 5, 3})
	whole, err := os.ReadFile(l.path)
	if err != nil {
		f.Fatal(err)
	}
	begin := whole[clusterSize : clusterSize+8*recordSize]
	f.Add(begin, true)
	f.Add(begin[:40], false)
	f.Fuzz(func(t *testing.T, records []byte, right bool) {
		file := bytes.Clone(whole)
		if len(records) > clusterSize {
			return
		}
		copy(file[clusterSize:], records)
		if right { // checksums that are right: what the fuzzer changes is the records
			for i := range len(records) / recordSize {
				at := file[clusterSize+i*recordSize:][:recordSize]
				if !zero(at[:12]) {
					binary.LittleEndian.PutUint32(at[12:], l.check(at, firstBlock, i))
				}
			}
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, l.id), file, 0o600); err != nil {
			t.Fatal(err)
		}
		got, c, err := openLayerAt(dir, layerRef{ID: l.id}, MinSize, true)
		if err != nil {
			var bad *DamagedError
			if !errors.As(err, &bad) {
				t.Errorf("%v", err)
			}
			return
		}
		defer got.file.Close()
		for cluster := range c.slots {
			if int64(cluster)*clusterSize >= MinSize {
				t.Errorf("cluster %d of a disk of %d bytes", cluster, MinSize)
			}
		}
		if !got.sealed {
			if _, err := got.resolveTail(c, 9); err != nil {
				var bad *DamagedError
				if !errors.As(err, &bad) {
					t.Error(err)
				}
			}
		}
	})
}

// FuzzManifest decodes arbitrary files.
func FuzzManifest(f *testing.F) {
	f.Add(manifest{Size: MinSize, Top: strings.Repeat("01", 16)}.encode())
	f.Add([]byte(manifestBegin))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, cause := decodeManifest(b); cause == "" && (m.wrong() != "" || !bytes.HasPrefix(b, m.encode())) {
			t.Errorf("%q is taken for %+v", b, m)
		}
	})
}

// BenchmarkFork is the disk's part of a fork: a disk is frozen and cloned.
func BenchmarkFork(b *testing.B) {
	d := open(b, newDisk(b, DefaultSize))
	dir := b.TempDir()
	i := 0
	for b.Loop() {
		i++
		if _, err := d.WriteAt([]byte{byte(i)}, int64(i%1000)<<20); err != nil {
			b.Fatal(err)
		}
		f := freeze(b, d)
		if err := errors.Join(f.Clone(b.Context(), filepath.Join(dir, fmt.Sprint(i))), f.Close()); err != nil {
			b.Fatal(err)
		}
	}
}
