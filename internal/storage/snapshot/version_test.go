package snapshot

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"
)

// TestVersion1 reads what earlier versions have written, which relied on holes: files, layered ones, and exported ones. Exported or imported
// now they are files of this version.
func TestVersion1(t *testing.T) {
	dir := t.TempDir()
	made := writeFile(t, filepath.Join(dir, "made"), goldenContent(t)) // not one that others are layered on: it would be found
	below := load(t, made)
	changed := slices.Clone(below)
	changed.scribble(2, 2)
	clear(changed[300*PageSize : 301*PageSize])
	for _, test := range []struct {
		name string
		want memory
	}{{"base", below}, {"layer", changed}} {
		stream := readAll(t, filepath.Join("testdata", "version1-"+test.name+".snap.zst"))
		f := openFile(t, saved(t, filepath.Join(dir, test.name+Suffix), unpacked(t, stream)))
		checkMemory(t, f, test.want)
		if f.header.version != 1 || f.header.memory.length != int64(len(below)) {
			t.Errorf("%s: version %d with %d bytes: the test shows nothing", test.name, f.header.version, f.header.memory.length)
		}
		var disk, want [64 * PageSize]byte
		copy(want[63*PageSize:], "and its disk")
		if err := readFull(savedDisk(t, f), disk[:], 0); err != nil || disk != want {
			t.Errorf("%s: the disk is another one: %v", test.name, err)
		}
		moved := importFile(t, exported(t, f), filepath.Join(dir, test.name+"-moved"))
		checkMemory(t, moved, test.want)
		if moved.header.version != Version || test.name == "base" && moved.ID() != made.ID() {
			t.Errorf("%s: moved it is of version %d, with ID %s, want %s", test.name, moved.header.version, moved.ID(), made.ID())
		}
	}
	imported := importFile(t, readAll(t, filepath.Join("testdata", "version1.zst")), filepath.Join(dir, "imported"))
	if !bytes.Equal(readAll(t, imported.Path()), readAll(t, made.Path())) {
		t.Error("imported from a stream of version 1, it is not the file that is made now")
	}
}
