package wasi

import (
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The tests of this file hold what programs of the public WASI test suite rely on beyond the tables of the other files.

// needs are the rights that guests' libraries expect of every directory, and that they may ask for inside.
const (
	needsOfDirectory = RightPathCreateDirectory | RightPathCreateFile | RightPathLinkSource | RightPathLinkTarget | RightPathOpen |
		RightFdReaddir | RightPathReadlink | RightPathRenameSource | RightPathRenameTarget | RightPathSymlink |
		RightPathRemoveDirectory | RightPathUnlinkFile | RightPathFilestatGet | RightPathFilestatSetTimes | RightFdFilestatGet |
		RightFdFilestatSetTimes
	needsInside = needsOfDirectory | RightFdDatasync | RightFdRead | RightFdSeek | RightFdFdstatSetFlags | RightFdSync | RightFdTell |
		RightFdWrite | RightFdAdvise | RightFdAllocate | RightFdFilestatSetSize | RightPollFdReadwrite
)

func TestDirectoryRights(t *testing.T) {
	g, _ := newDirGuest(t, false)
	_, _, base, inheriting := g.fdstat(3)
	if missing := needsOfDirectory &^ base; missing != 0 {
		t.Errorf("base rights lack %b", missing)
	}
	if missing := needsInside &^ inheriting; missing != 0 {
		t.Errorf("inheriting rights lack %b", missing)
	}
	for _, c := range []struct {
		name          string
		oflags        uint64
		rights, inner Rights
		flags         Fdflags
	}{
		{name: "those it has", rights: base, inner: inheriting},
		{name: "none"},
		{name: "none, as a directory", oflags: dirf},
		{name: "reading", oflags: dirf, rights: RightFdRead},
		{name: "seeking", oflags: dirf, rights: RightFdSeek},
		{name: "not blocking", flags: FdNonblock},
	} {
		t.Run(c.name, func(t *testing.T) {
			g.TB = t
			ptr, n := g.put(".")
			res := g.alloc(4)
			g.want(ErrnoSuccess, "path_open", 3, 0, ptr, n, c.oflags, uint64(c.rights), uint64(c.inner), uint64(c.flags), res)
			typ, flags, got, _ := g.fdstat(uint64(g.u32(res)))
			if typ != FiletypeDirectory || flags != c.flags || got&(RightFdSeek|RightFdFilestatSetSize) != 0 {
				t.Errorf("type %d, flags %b, rights %b", typ, flags, got)
			}
		})
	}
}

// Truncating needs the directory's right for paths, not the file's for its size.
func TestTruncationRights(t *testing.T) {
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, "sub/", "sub/file=x")
	fd := g.mustOpen("sub", dirf, 0, 0)
	_, _, base, inheriting := g.fdstat(fd)
	g.want(ErrnoSuccess, "fd_fdstat_set_rights", fd, uint64(base), uint64(inheriting&^RightFdFilestatSetSize))
	if _, errno := g.openAt(fd, "file", 0, trunc, 0, 0); errno != ErrnoSuccess {
		t.Errorf("without the right for the file's size: %v", errno)
	}
	base &^= RightPathFilestatSetSize
	g.want(ErrnoSuccess, "fd_fdstat_set_rights", fd, uint64(base), uint64(inheriting&^RightFdFilestatSetSize))
	if _, errno := g.openAt(fd, "file", 0, trunc, 0, 0); errno != ErrnoPerm {
		t.Errorf("without the right for paths: %v", errno)
	}
}

// A file loses the right to be read, keeps the one to seek, and none comes back.
func TestDroppedFileRights(t *testing.T) {
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, "file=content")
	fd := g.mustOpen("file", 0, rightsRW, 0)
	_, _, base, _ := g.fdstat(fd)
	g.want(ErrnoSuccess, "fd_fdstat_set_rights", fd, uint64(base&^(RightFdRead|RightFdWrite)), 0)
	if _, errno := g.read(fd, 4); errno != ErrnoBadf {
		t.Errorf("read: %v", errno)
	}
	if errno := g.write(fd, "x"); errno != ErrnoBadf {
		t.Errorf("write: %v", errno)
	}
	if _, errno := g.seek(fd, 2, 0); errno != ErrnoSuccess {
		t.Errorf("seek: %v", errno)
	}
	g.want(ErrnoNotcapable, "fd_fdstat_set_rights", fd, uint64(base), 0)
	g.want(ErrnoNotcapable, "fd_fdstat_set_rights", fd, 0, uint64(RightFdRead))
}

// A link and its file are the same in every respect, also through another directory's descriptor.
func TestLinkIsTheFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links between descriptors are refused on this platform")
	}
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, "file=x", "sub/")
	sub := g.mustOpen("sub", dirf, 0, 0)
	name, n := g.put("file")
	g.want(ErrnoSuccess, "path_link", 3, 0, name, n, sub, name, n)
	file := g.mustOpen("file", 0, 0, 0)
	link, errno := g.openAt(sub, "file", 0, 0, 0, 0)
	if errno != ErrnoSuccess {
		t.Fatal(errno)
	}
	a, b := g.alloc(filestatSize), g.alloc(filestatSize)
	for call, size := range map[string]int{"fd_filestat_get": filestatSize, "fd_fdstat_get": fdstatSize} {
		g.want(ErrnoSuccess, call, file, a)
		g.want(ErrnoSuccess, call, link, b)
		if diff := cmp.Diff(g.bytes(a, size), g.bytes(b, size)); diff != "" {
			t.Errorf("%s (-file +link):\n%s", call, diff)
		}
	}
}

// Guests find the size that a listing needs by trying: no buffer's length may cut a name in a way that looks whole.
func TestReaddirGrowingBuffer(t *testing.T) {
	g, dir := newDirGuest(t, false)
	const name = "naïve-Ω-名"
	makeTree(t, dir, name+"=x")
	whole := 3*direntSize + len(".") + len("..") + len(name)
	buf, n := g.alloc(whole+1), g.alloc(4)
	for size := range whole + 2 {
		g.want(ErrnoSuccess, "fd_readdir", 3, buf, uint64(size), 0, n)
		if got := int(g.u32(n)); got != min(size, whole) {
			t.Errorf("%d bytes used of %d", got, size)
		}
	}
	if got := string(g.bytes(buf+uint64(whole-len(name)), len(name))); got != name {
		t.Errorf("name %q", got)
	}
}

// Entries that are removed while a guest lists a directory do not make it miss others.
func TestReaddirWhileRemoving(t *testing.T) {
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, "a=", "b=", "c=", "d=")
	buf, n := g.alloc(direntSize+1), g.alloc(4)
	seen := ""
	for cookie := uint64(2); ; {
		g.want(ErrnoSuccess, "fd_readdir", 3, buf, direntSize+1, cookie, n)
		if g.u32(n) == 0 {
			break
		}
		entry := g.bytes(buf, direntSize+1)
		name := string(entry[direntSize:])
		seen, cookie = seen+name, le.Uint64(entry)
		if errno := g.path("path_unlink_file", name); errno != ErrnoSuccess {
			t.Fatalf("unlink %q: %v", name, errno)
		}
	}
	if seen != "abcd" {
		t.Errorf("saw %q", seen)
	}
	if got, _ := g.list(3, 4096); len(got) != 2 {
		t.Errorf("%d entries are left", len(got))
	}
}

// Standard streams move over open files like any descriptor, but nothing moves to a free number.
func TestRenumberStandardStreams(t *testing.T) {
	g, _ := newDirGuest(t, false)
	for fd := range int32(3) {
		g.sys.SetFile(fd, NewInput(nil))
	}
	res := g.alloc(fdstatSize)
	for fd := range uint64(3) {
		g.want(ErrnoBadf, "fd_renumber", fd, fd+100)
		to := g.mustOpen("file", creat, 0, 0)
		g.want(ErrnoSuccess, "fd_renumber", fd, to)
		g.want(ErrnoBadf, "fd_fdstat_get", fd, res)
		if typ, _, _, _ := g.fdstat(to); typ != FiletypeUnknown {
			t.Errorf("%d has type %d after the move", to, typ)
		}
	}
}

func TestClosePreopen(t *testing.T) {
	g, _ := newDirGuest(t, false)
	fd := g.mustOpen(".", dirf, 0, 0)
	res := g.alloc(fdstatSize)
	g.want(ErrnoSuccess, "fd_close", 3)
	g.want(ErrnoBadf, "fd_fdstat_get", 3, res)
	g.want(ErrnoBadf, "fd_prestat_get", 3, res)
	if _, errno := g.openAt(fd, "new", 0, creat, 0, 0); errno != ErrnoSuccess {
		t.Errorf("open below the directory that stays: %v", errno)
	}
}

// Writing nothing behind the end of a file leaves its size; writing something fills the gap.
func TestWriteBehindTheEnd(t *testing.T) {
	g, _ := newDirGuest(t, false)
	fd := g.mustOpen("file", creat, rightsRW, 0)
	empty, _ := g.iovec(0)
	one, _ := g.iovec(1)
	n := g.alloc(8)
	size := func(want uint64) {
		t.Helper()
		if st, errno := g.stat("file", 0); st.Size != want || errno != ErrnoSuccess {
			t.Errorf("size %d, %v; want %d", st.Size, errno, want)
		}
	}
	g.want(ErrnoSuccess, "fd_pwrite", fd, empty, 1, 50, n)
	_, _ = g.seek(fd, 20, 0)
	g.want(ErrnoSuccess, "fd_write", fd, empty, 1, n)
	size(0)
	g.want(ErrnoSuccess, "fd_pwrite", fd, one, 1, 50, n)
	size(51)
	g.want(ErrnoSuccess, "fd_tell", fd, n)
	if g.u64(n) != 20 {
		t.Errorf("position %d after fd_pwrite", g.u64(n))
	}
	g.want(ErrnoSuccess, "fd_write", fd, one, 1, n)
	g.want(ErrnoSuccess, "fd_tell", fd, n)
	if g.u64(n) != 21 {
		t.Errorf("position %d after fd_write", g.u64(n))
	}
}

// A file that is open under two descriptors shows at once what is written, and can be removed and made anew.
func TestUnbufferedAndRemoved(t *testing.T) {
	g, _ := newDirGuest(t, false)
	reader := g.mustOpen("file", creat, uint64(RightFdRead), 0)
	writer := g.mustOpen("file", 0, uint64(RightFdWrite), 0)
	if errno := g.write(writer, "now"); errno != ErrnoSuccess {
		t.Fatal(errno)
	}
	if got, errno := g.read(reader, 8); got != "now" || errno != ErrnoSuccess {
		t.Errorf("read %q, %v", got, errno)
	}
	if runtime.GOOS == "windows" {
		return // no removing of open files
	}
	if errno := g.path("path_unlink_file", "file"); errno != ErrnoSuccess {
		t.Fatal(errno)
	}
	if st, errno := g.stat("file", 0); errno != ErrnoNoent {
		t.Errorf("removed, but %v, %v", st, errno)
	}
	again := g.mustOpen("file", creat, rightsRW, 0)
	if got, errno := g.read(again, 8); got != "" || errno != ErrnoSuccess {
		t.Errorf("the new file has %q, %v", got, errno)
	}
}
