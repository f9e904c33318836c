package mount

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

func TestCreateWriteRead(t *testing.T) {
	dir := t.TempDir()
	root := attach(t, Config{Dir: dir})
	f := create(t, root, "a", fusetest.ReadWrite, 0o640)
	if n, err := f.WriteAt([]byte("hello world"), 0); n != 11 || err != nil {
		t.Fatal(n, err)
	}
	if err := f.FSync(); err != nil {
		t.Error(err)
	}
	buf := make([]byte, 5)
	if n, err := f.ReadAt(buf, 6); n != 5 || err != nil || string(buf) != "world" {
		t.Errorf("read %d %q %v", n, buf, err)
	}
	if n, err := f.ReadAt(buf, 100); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read beyond the end: %d %v", n, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if got := readFile(t, filepath.Join(dir, "a")); got != "hello world" {
		t.Errorf("host sees %q", got)
	}
}

func TestCreateExclusive(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "old")
	root := attach(t, Config{Dir: dir})
	err := walk(t, root).Create("a", fusetest.ReadWrite|openExclusive, 0o644)
	wantErrno(t, err, errno.EEXIST)

	// Without O_EXCL an existing file is opened.
	f := create(t, root, "a", fusetest.ReadWrite, 0o644)
	buf := make([]byte, 3)
	if _, err := f.ReadAt(buf, 0); err != nil || string(buf) != "old" {
		t.Errorf("read %q %v", buf, err)
	}
}

func TestTruncateOnOpen(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "old content")
	root := attach(t, Config{Dir: dir})
	open(t, root, fusetest.WriteOnly|openTruncate, "a")
	if got := readFile(t, filepath.Join(dir, "a")); got != "" {
		t.Errorf("host sees %q", got)
	}
}

func TestAppend(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	writeFile(t, path, "one\n")
	root := attach(t, Config{Dir: dir})
	f := open(t, root, fusetest.ReadWrite|openAppend, "log")
	writeFile(t, path, "one\ntwo\n") // the guest's idea of the end is now old
	if _, err := f.WriteAt([]byte("three\n"), 4); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, path); got != "one\ntwo\nthree\n" {
		t.Errorf("host sees %q", got)
	}
	buf := make([]byte, 3)
	if _, err := f.ReadAt(buf, 4); err != nil || string(buf) != "two" {
		t.Errorf("read %q %v", buf, err)
	}
}

func TestOpenUnlinked(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "still here")
	root := attach(t, Config{Dir: dir})
	named := walk(t, root, "a")
	f := open(t, root, fusetest.ReadWrite, "a")
	if err := root.UnlinkAt("a", 0); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if _, err := f.ReadAt(buf, 0); err != nil || string(buf) != "still here" {
		t.Errorf("read %q %v", buf, err)
	}
	if _, err := f.WriteAt([]byte("STILL"), 0); err != nil {
		t.Error(err)
	}
	// fstat, ftruncate, fchmod and futimens come through whichever fid the guest finds first.
	for name, fid := range map[string]*fusetest.File{"open fid": f, "fid of the name": named} {
		mask := fusetest.SetAttrMask{Size: true, Permissions: true, MTime: true, MTimeNotSystemTime: true}
		if err := fid.SetAttr(mask, fusetest.SetAttr{Size: 5, Permissions: 0o600, MTimeSeconds: 1000}); err != nil {
			t.Errorf("%s: setattr: %v", name, err)
		}
		attr := getattr(t, fid)
		if attr.Size != 5 || attr.Mode.Permissions() != 0o600 || attr.MTimeSeconds != 1000 || attr.NLink != 0 {
			t.Errorf("%s: %+v", name, attr)
		}
	}
	_, err := walk(t, root).Walk([]string{"a"})
	wantErrno(t, err, errno.ENOENT)

	// A new file of the same name is another file.
	create(t, root, "a", fusetest.ReadWrite|openExclusive, 0o644)
	if _, err := f.ReadAt(buf[:5], 0); err != nil || string(buf[:5]) != "STILL" {
		t.Errorf("read %q %v", buf[:5], err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	_, err = named.GetAttr()
	wantErrno(t, err, errno.ENOENT)
}

func TestReplacedByRename(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "old"), "old")
	writeFile(t, filepath.Join(dir, "new"), "new")
	root := attach(t, Config{Dir: dir})
	f := open(t, root, fusetest.ReadOnly, "old")
	moved := walk(t, root, "new")
	if err := root.RenameAt("new", root, "old"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 3)
	if _, err := f.ReadAt(buf, 0); err != nil || string(buf) != "old" {
		t.Errorf("read %q %v", buf, err)
	}
	if err := moved.Open(fusetest.ReadOnly); err != nil {
		t.Fatalf("open after rename: %v", err)
	}
	if _, err := moved.ReadAt(buf, 0); err != nil || string(buf) != "new" {
		t.Errorf("read %q %v", buf, err)
	}
}

// TestRenameDirectory checks that nodes far below a renamed directory follow it.
func TestRenameDirectory(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a/b/c/file"), "deep")
	writeFile(t, filepath.Join(dir, "x/y/keep"), "")
	root := attach(t, Config{Dir: dir})
	file := walk(t, root, "a", "b", "c", "file")
	b := walk(t, root, "a", "b")
	if err := walk(t, root, "a").RenameAt("b", walk(t, root, "x"), "moved"); err != nil {
		t.Fatal(err)
	}
	if attr := getattr(t, file); attr.Size != 4 {
		t.Errorf("size %d after rename", attr.Size)
	}
	if err := b.Mkdir("new", 0o755); err != nil {
		t.Error(err)
	}
	if !exists(filepath.Join(dir, "x/moved/new")) {
		t.Error("mkdir through the node of a renamed directory went elsewhere")
	}
	// A second move.
	if err := walk(t, root, "x").RenameAt("moved", root, "again"); err != nil {
		t.Fatal(err)
	}
	if err := file.Open(fusetest.ReadOnly); err != nil {
		t.Error(err)
	}
	wantErrno(t, root.RenameAt("again", b, "self"), errno.EINVAL)
	wantErrno(t, root.RenameAt("again", walk(t, root, "again", "c"), "self"), errno.EINVAL)
}

func TestRenameOntoDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"empty", "from/inside", "full/inside"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(dir, "file"), "")
	root := attach(t, Config{Dir: dir})
	wantErrno(t, root.RenameAt("from", root, "full"), errno.ENOTEMPTY)
	wantErrno(t, root.RenameAt("file", root, "full"), errno.EISDIR)
	wantErrno(t, root.RenameAt("from", root, "file"), errno.ENOTDIR)
	if err := root.RenameAt("from", root, "empty"); err != nil {
		t.Errorf("onto an empty directory: %v", err)
	}
	if !exists(filepath.Join(dir, "empty/inside")) || exists(filepath.Join(dir, "from")) {
		t.Error("the directory is not where it should be")
	}
}

func TestRenameHardLinks(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "x")
	root := attach(t, Config{Dir: dir})
	a := walk(t, root, "a")
	if err := root.Link(a, "b"); err != nil {
		t.Fatal(err)
	}
	b := walk(t, root, "b")
	if err := root.RenameAt("a", root, "b"); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]*fusetest.File{"a": a, "b": b} {
		if attr := getattr(t, f); attr.NLink != 2 {
			t.Errorf("%s has %d links", name, attr.NLink)
		}
	}
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	root := attach(t, Config{Dir: dir})
	if err := root.Mkdir("d", 0o755); err != nil {
		t.Fatal(err)
	}
	d := walk(t, root, "d")
	if err := d.Symlink("../target", "s"); err != nil {
		t.Fatal(err)
	}
	if target, err := walk(t, d, "s").Readlink(); target != "../target" || err != nil {
		t.Errorf("readlink %q %v", target, err)
	}
	if err := d.Mknod("n", fusetest.ModeRegular|0o644, 0, 0); err != nil {
		t.Errorf("mknod of a regular file: %v", err)
	}
	for _, mode := range []fusetest.FileMode{fusetest.ModeBlockDevice, fusetest.ModeCharacterDevice} {
		err := d.Mknod("bad", mode|0o644, 1, 3)
		wantErrno(t, err, errno.EPERM)
	}
	wantErrno(t, root.UnlinkAt("d", fusetest.RemoveDirectory), errno.ENOTEMPTY)
	wantErrno(t, root.UnlinkAt("d", 0), errno.EISDIR)
	wantErrno(t, d.UnlinkAt("n", fusetest.RemoveDirectory), errno.ENOTDIR)
	if err := d.UnlinkAt("n", 0); err != nil {
		t.Error(err)
	}
	if err := d.UnlinkAt("s", 0); err != nil {
		t.Errorf("unlink of a link: %v", err)
	}
	if err := root.UnlinkAt("d", fusetest.RemoveDirectory); err != nil {
		t.Error(err)
	}
	err := d.Mkdir("in removed", 0o755)
	wantErrno(t, err, errno.ENOENT)
}

func TestSetAttr(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	writeFile(t, path, "0123456789")
	root := attach(t, Config{Dir: dir})
	f := walk(t, root, "a")
	mask := fusetest.SetAttrMask{Permissions: true, Size: true, UID: true, GID: true,
		ATime: true, MTime: true, ATimeNotSystemTime: true, MTimeNotSystemTime: true}
	set := fusetest.SetAttr{Permissions: 0o4751, Size: 4, UID: 1000, GID: 1000, ATimeSeconds: 11, ATimeNanoSeconds: 12,
		MTimeSeconds: 21, MTimeNanoSeconds: 22}
	if err := f.SetAttr(mask, set); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() != 4 || info.Mode() != 0o751 || !info.ModTime().Equal(time.Unix(21, 22)) {
		t.Errorf("host: size %d mode %v mtime %v", info.Size(), info.Mode(), info.ModTime())
	}
	attr := getattr(t, f)
	if attr.ATimeSeconds != 11 || attr.ATimeNanoSeconds != 12 || attr.UID != 0 || attr.GID != 0 {
		t.Errorf("guest: %+v", attr)
	}
	// Only one time, taken from the host's clock.
	if err := f.SetAttr(fusetest.SetAttrMask{ATime: true}, fusetest.SetAttr{}); err != nil {
		t.Fatal(err)
	}
	attr = getattr(t, f)
	if age := time.Since(time.Unix(int64(attr.ATimeSeconds), 0)); age > time.Minute || attr.MTimeSeconds != 21 {
		t.Errorf("atime is %v old, mtime %d", age, attr.MTimeSeconds)
	}
	wantErrno(t, root.SetAttr(fusetest.SetAttrMask{Size: true}, fusetest.SetAttr{Size: 1}), errno.EISDIR)
	wantErrno(t, f.SetAttr(fusetest.SetAttrMask{Size: true}, fusetest.SetAttr{Size: 1 << 63}), errno.EFBIG)
}

func TestOwner(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "")
	root := attach(t, Config{Dir: dir, UID: 1000, GID: 100})
	if attr := getattr(t, walk(t, root, "a")); attr.UID != 1000 || attr.GID != 100 {
		t.Errorf("owner %d:%d", attr.UID, attr.GID)
	}
}

// TestInodes checks the numbers that a file keeps.
func TestInodes(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), "x")
	root := attach(t, Config{Dir: dir})
	a := walk(t, root, "a")
	before := getattr(t, a)
	if err := root.RenameAt("a", root, "b"); err != nil {
		t.Fatal(err)
	}
	after := getattr(t, a)
	if before.Inode != after.Inode {
		t.Errorf("path %d became %d by a rename", before.Inode, after.Inode)
	}
	if err := root.Link(a, "c"); err != nil {
		t.Fatal(err)
	}
	if linked := getattr(t, walk(t, root, "c")); linked.Inode != before.Inode {
		t.Errorf("a hard link has path %d, want %d", linked.Inode, before.Inode)
	}
}

// readAll lists an open directory as a client with small messages would.
func readAll(t testing.TB, d *fusetest.File, count uint32) []fusetest.Dirent {
	t.Helper()
	var all []fusetest.Dirent
	var offset uint64
	for {
		entries, err := d.Readdir(offset, count)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 0 {
			return all
		}
		all = append(all, entries...)
		offset = entries[len(entries)-1].Offset
	}
}

func TestReaddirMany(t *testing.T) {
	dir := t.TempDir()
	const files = 10000
	want := map[string]bool{".": true, "..": true}
	for i := range files {
		name := fmt.Sprintf("file-%05d", i)
		want[name] = true
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d := open(t, attach(t, Config{Dir: dir}), fusetest.ReadOnly|directory)
	for range 2 { // the second time after rewinddir
		got := map[string]bool{}
		for _, e := range readAll(t, d, 8192) {
			if got[e.Name] {
				t.Errorf("%s twice", e.Name)
			}
			got[e.Name] = true
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	}
}

// TestReaddirWhileChanging removes what was listed, as rm -r does, and adds files: each old file shows exactly once.
func TestReaddirWhileChanging(t *testing.T) {
	dir := t.TempDir()
	for i := range 500 {
		writeFile(t, filepath.Join(dir, fmt.Sprintf("old-%03d", i)), "")
	}
	root := attach(t, Config{Dir: dir})
	d := open(t, root, fusetest.ReadOnly)
	seen := map[string]int{}
	var offset uint64
	for round := 0; ; round++ {
		entries, err := d.Readdir(offset, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			offset = e.Offset
			seen[e.Name]++
			if e.Type == fusetest.TypeRegular && e.Name[0] == 'o' {
				if err := root.UnlinkAt(e.Name, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		writeFile(t, filepath.Join(dir, fmt.Sprintf("new-%03d", round)), "")
	}
	for i := range 500 {
		if n := seen[fmt.Sprintf("old-%03d", i)]; n != 1 {
			t.Errorf("old-%03d was listed %d times", i, n)
		}
	}
}

func TestReaddirTypes(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "sub/file"), "")
	if err := os.Symlink("file", filepath.Join(dir, "sub/link")); err != nil {
		t.Skip("no symbolic links here: ", err)
	}
	root := attach(t, Config{Dir: dir})
	got := map[string]uint8{}
	paths := map[string]uint64{}
	for _, e := range readAll(t, open(t, root, fusetest.ReadOnly, "sub"), 4096) {
		got[e.Name], paths[e.Name] = uint8(e.Type), e.Inode
	}
	want := map[string]uint8{".": 4, "..": 4, "file": 8, "link": 10} // DT_DIR, DT_REG, DT_LNK
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	parent := getattr(t, root)
	file := getattr(t, walk(t, root, "sub", "file"))
	if paths[".."] != parent.Inode || paths["file"] != file.Inode {
		t.Errorf("paths %v, want .. %d and file %d", paths, parent.Inode, file.Inode)
	}
}

// TestRandomOffsets keeps a copy of a 64 MiB file, writes both at random and compares.
func TestRandomOffsets(t *testing.T) {
	size := 64 << 20
	if testing.Short() {
		size = 8 << 20
	}
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	fill := rand.NewChaCha8([32]byte{})
	want := make([]byte, size)
	f := create(t, attach(t, Config{Dir: dir}), "big", fusetest.ReadWrite, 0o644)
	block := make([]byte, 300<<10)
	for written := 0; written < size*3/2; {
		offset := rng.IntN(size)
		data := block[:1+rng.IntN(min(len(block), size-offset))]
		fill.Read(data)
		if _, err := f.WriteAt(data, int64(offset)); err != nil {
			t.Fatal(err)
		}
		written += copy(want[offset:], data)
	}
	if err := f.SetAttr(fusetest.SetAttrMask{Size: true}, fusetest.SetAttr{Size: uint64(size)}); err != nil {
		t.Fatal(err)
	}
	for range 300 {
		offset := rng.IntN(size)
		got := block[:1+rng.IntN(min(len(block), size-offset))]
		if _, err := f.ReadAt(got, int64(offset)); err != nil || !bytes.Equal(got, want[offset:offset+len(got)]) {
			t.Fatalf("%d bytes at %d differ (%v)", len(got), offset, err)
		}
	}
	got, err := os.ReadFile(filepath.Join(dir, "big"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the host's file differs (%v)", err)
	}
}

func TestStatFS(t *testing.T) {
	st, err := attach(t, Config{Dir: t.TempDir()}).StatFS()
	if err != nil {
		t.Fatal(err)
	}
	if st.BlockSize == 0 || st.Blocks == 0 || st.NameLength != 255 {
		t.Errorf("%+v", st)
	}
}
