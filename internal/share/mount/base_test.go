package mount

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

// TestBase reads of which of the host's files a guest makes a copy.
func TestBase(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "d/file"), "old")
	original, err := OpenOriginal(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer original.Close()
	was, err := original.Stat("d/file")
	if err != nil {
		t.Fatal(err)
	}
	root := attach(t, Config{Dir: dir, ReadOnly: true, Bases: true})
	read := func(names ...string) Base {
		t.Helper()
		value, err := walk(t, root, names...).GetXattr(BaseAttribute, 4096)
		if err != nil {
			t.Fatal(err)
		}
		base, ok := ParseBase(string(value))
		if !ok {
			t.Fatalf("%q is no base", value)
		}
		return base
	}
	if got := read("d", "file"); got != was.Base || got.Path != "d/file" || !got.FileMode().IsRegular() {
		t.Errorf("%+v, want %+v", got, was.Base)
	}
	if got := read("d"); !got.FileMode().IsDir() {
		t.Errorf("%+v is no directory", got)
	}

	// What the guest has opened it copies, whatever the host does meanwhile.
	opened := open(t, root, fusetest.ReadOnly, "d", "file")
	time.Sleep(30 * time.Millisecond) // the clock of files has steps
	writeFile(t, filepath.Join(dir, "d/file"), "new")
	if got := read("d", "file"); got != was.Base {
		t.Errorf("after a change: %+v, want %+v", got, was.Base)
	}
	if now, err := original.Stat("d/file"); err != nil || now.SameFile(was.Base) {
		t.Errorf("the host's change is not to be seen: %+v, %v", now, err)
	}
	open(t, root, fusetest.ReadOnly, "d", "file")
	if got := read("d", "file"); got.SameFile(was.Base) {
		t.Errorf("after another open: %+v", got)
	}

	length, err := opened.GetXattr(BaseAttribute, 0)
	if err != nil || binary.LittleEndian.Uint32(length) != uint32(len(read("d", "file").String())) {
		t.Errorf("length %v, %v", length, err)
	}
	_, err = opened.GetXattr(BaseAttribute, 3)
	wantErrno(t, err, errno.ERANGE)
	_, err = opened.GetXattr("user.x", 100)
	wantErrno(t, err, errno.ENODATA)
	if names, err := opened.ListXattr(100); err != nil || string(names) != BaseAttribute+"\x00" {
		t.Errorf("%q, %v", names, err)
	}
	long := strings.Repeat("n", 255)
	deep := filepath.Join(dir, long, long, long, long, long)
	writeFile(t, filepath.Join(deep, "file"), "")
	if got := read(long, long, long, long, long, "file"); got.Path != "" || len(got.String()) > 200 {
		t.Errorf("the base of a long path has %d bytes", len(got.String()))
	}
}

// TestNodesAreNames has the host exchange what is below an overlay, which keeps what it has once found.
func TestNodesAreNames(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files are numbered by their names")
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	replace := func(text string) {
		t.Helper()
		writeFile(t, at("new"), text)
		if err := os.Rename(at("new"), at("file")); err != nil {
			t.Fatal(err)
		}
	}
	replace("one")
	root := attach(t, Config{Dir: dir, ReadOnly: true, Bases: true})
	other := attach(t, Config{Dir: dir, ReadOnly: true})
	first, plain := walk(t, root, "file"), walk(t, other, "file")
	replace("two!")
	if got := walk(t, root, "file"); got.ID() != first.ID() {
		t.Error("the name has another node")
	}
	if got := walk(t, other, "file"); got.ID() == plain.ID() {
		t.Error("without an overlay, the name has the same node")
	}
	if got := getattr(t, first); got.Size != 4 {
		t.Errorf("the node has %d bytes", got.Size)
	}
	b := make([]byte, 10)
	if n, err := open(t, root, fusetest.ReadOnly, "file").ReadAt(b, 0); string(b[:n]) != "two!" {
		t.Errorf("%q, %v", b[:n], err)
	}
	if err := os.Remove(at("file")); err != nil {
		t.Fatal(err)
	}
	gone := walk(t, root, "file")
	if gone.ID() != first.ID() {
		t.Error("the name that is gone has another node")
	}
	_, err := other.Walk([]string{"file"})
	wantErrno(t, err, errno.ENOENT)
	wantErrno(t, gone.Open(fusetest.ReadOnly), errno.ENOENT)
	_, err = root.Walk([]string{"never"})
	wantErrno(t, err, errno.ENOENT)
	replace("copied")
	copied := walk(t, root, "file")
	if _, err := copied.GetXattr(BaseAttribute, 4096); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(at("file")); err != nil {
		t.Fatal(err)
	}
	if _, err := copied.GetAttr(); err != nil {
		t.Errorf("what the overlay has a copy of: %v", err) // the copy could not be looked at
	}
	replace("three")
	if got := walk(t, root, "file"); got.ID() != first.ID() || getattr(t, got).Size != 5 {
		t.Error("the name that is back has another node")
	}
	if err := os.Remove(at("file")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at("file"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := walk(t, root, "file"); got.ID() == first.ID() || !getattr(t, got).Mode.IsDir() {
		t.Error("a directory has the node of a file")
	}
}

func FuzzParseBase(f *testing.F) {
	f.Add(Base{1, 2, 3, -4, modeRegular | 0o644, 5, "a b/c"}.String())
	f.Add("1 1 1 1 1 1 1 ")
	f.Fuzz(func(t *testing.T, text string) {
		if b, ok := ParseBase(text); ok && b.String() != text {
			t.Errorf("%q is read as %+v", text, b)
		}
	})
}
