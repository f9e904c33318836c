package wasi

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const rightsRW = uint64(RightFdRead | RightFdWrite)

// newDirGuest returns a guest whose descriptor 3 is a new directory, and that directory.
func newDirGuest(tb testing.TB, readonly bool) (*guest, string) {
	tb.Helper()
	g, path := newGuest(tb, Config{}), tb.TempDir()
	g.preopen(3, "/", path, readonly)
	return g, path
}

// preopen opens a host's directory for the guest.
func (g *guest) preopen(fd int32, name, path string, readonly bool) {
	g.Helper()
	root, err := os.OpenRoot(path)
	if err != nil {
		g.Fatal(err)
	}
	g.sys.Preopen(fd, name, root, readonly)
}

// openAt calls path_open.
func (g *guest) openAt(fd uint64, path string, lookup, oflags, rights, fdflags uint64) (uint64, Errno) {
	g.Helper()
	ptr, n := g.put(path)
	res := g.alloc(4)
	errno := g.call("path_open", fd, lookup, ptr, n, oflags, rights, 0, fdflags, res)
	return uint64(g.u32(res)), errno
}

// mustOpen is openAt for a file that must open.
func (g *guest) mustOpen(path string, oflags, rights, fdflags uint64) uint64 {
	g.Helper()
	fd, errno := g.openAt(3, path, 0, oflags, rights, fdflags)
	if errno != ErrnoSuccess {
		g.Fatalf("path_open %q: %v", path, errno)
	}
	return fd
}

// path calls a function whose parameters are a directory and a path, and perhaps more.
func (g *guest) path(name, path string, more ...uint64) Errno {
	g.Helper()
	ptr, n := g.put(path)
	return g.call(name, append([]uint64{3, ptr, n}, more...)...)
}

// rename, link, symlink and stat call the functions with more parameters.
func (g *guest) rename(from, to string) Errno {
	a, an := g.put(from)
	b, bn := g.put(to)
	return g.call("path_rename", 3, a, an, 3, b, bn)
}

func (g *guest) link(from, to string, lookup uint64) Errno {
	a, an := g.put(from)
	b, bn := g.put(to)
	return g.call("path_link", 3, lookup, a, an, 3, b, bn)
}

func (g *guest) symlink(content, path string) Errno {
	a, an := g.put(content)
	b, bn := g.put(path)
	return g.call("path_symlink", a, an, 3, b, bn)
}

func (g *guest) stat(path string, lookup uint64) (Filestat, Errno) {
	ptr, n := g.put(path)
	res := g.alloc(filestatSize)
	errno := g.call("path_filestat_get", 3, lookup, ptr, n, res)
	return decodeFilestat(g.bytes(res, filestatSize)), errno
}

func (g *guest) setTimes(path string, lookup, atim, mtim, flags uint64) Errno {
	ptr, n := g.put(path)
	return g.call("path_filestat_set_times", 3, lookup, ptr, n, atim, mtim, flags)
}

// decodeFilestat reverses Filestat.put.
func decodeFilestat(b []byte) Filestat {
	return Filestat{
		Dev: le.Uint64(b), Ino: le.Uint64(b[8:]), Type: Filetype(b[16]), Nlink: le.Uint64(b[24:]), Size: le.Uint64(b[32:]),
		Atim: le.Uint64(b[40:]), Mtim: le.Uint64(b[48:]), Ctim: le.Uint64(b[56:]),
	}
}

// makeTree creates files ("name=content"), directories ("name/") and symbolic links ("name->target").
func makeTree(tb testing.TB, dir string, entries ...string) {
	tb.Helper()
	for _, e := range entries {
		name, target, isLink := strings.Cut(e, "->")
		name, content, _ := strings.Cut(name, "=")
		path := filepath.Join(dir, name)
		var err error
		switch {
		case isLink:
			err = os.Symlink(target, path)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		default:
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// testTree is what the tables below find in their directory.
var testTree = []string{
	"file=content", "empty/", "dir/", "dir/inner=x", "dir/sub/", "link->file", "dirlink->dir", "dangling->nowhere",
	"loop->loop", "outside->../../etc/passwd", "absolute->/etc/passwd", "dir/up->../file", "dir/out->../../x",
}

const (
	creat  = oflagCreat
	excl   = oflagCreat | oflagExcl
	dirf   = oflagDirectory
	trunc  = oflagTrunc
	follow = lookupSymlinkFollow
)

func TestPathOpen(t *testing.T) {
	for _, c := range []struct {
		name, path                     string
		lookup, oflags, rights, flags_ uint64
		want                           Errno
	}{
		{"file", "file", 0, 0, rightsRW, 0, ErrnoSuccess},
		{"dots", "dir/.//sub/../../dir/inner", 0, 0, rightsRW, 0, ErrnoSuccess},
		{"missing", "none", 0, 0, 0, 0, ErrnoNoent},
		{"missing in missing", "none/x", 0, creat, 0, 0, ErrnoNoent},
		{"below a file", "file/x", 0, 0, 0, 0, ErrnoNotdir},
		{"empty path", "", 0, 0, 0, 0, ErrnoNoent},
		{"NUL", "file\x00", 0, 0, 0, 0, ErrnoInval},
		{"absolute", "/file", 0, 0, 0, 0, ErrnoPerm},
		{"root", "/", 0, 0, 0, 0, ErrnoPerm},
		{"parent", "..", 0, 0, 0, 0, ErrnoPerm},
		{"out and back", "dir/../../x", 0, 0, 0, 0, ErrnoPerm},
		{"too long", strings.Repeat("x", 5000), 0, 0, 0, 0, ErrnoNametoolong},
		{"long component", strings.Repeat("x", 300), 0, 0, 0, 0, ErrnoNametoolong},
		{"slash after file", "file/", 0, 0, 0, 0, ErrnoNotdir},
		{"slashes after file", "file///", 0, 0, 0, 0, ErrnoNotdir},
		{"slash after directory", "dir///", 0, 0, 0, 0, ErrnoSuccess},
		{"directory wanted", "file", 0, dirf, 0, 0, ErrnoNotdir},
		{"directory", "dir", 0, dirf, uint64(RightFdRead), 0, ErrnoSuccess},
		{"itself", ".", 0, dirf, 0, 0, ErrnoSuccess},
		{"directory for writing", "dir", 0, 0, rightsRW, 0, ErrnoIsdir},
		{"directory created", "dir", 0, creat, 0, 0, ErrnoIsdir},
		{"directory truncated", "dir", 0, trunc, 0, 0, ErrnoIsdir},
		{"new", "new", 0, creat, rightsRW, 0, ErrnoSuccess},
		{"new with slash", "new/", 0, creat, rightsRW, 0, ErrnoIsdir},
		{"exclusive", "file", 0, excl, rightsRW, 0, ErrnoExist},
		{"exclusive over dangling", "dangling", follow, excl, rightsRW, 0, ErrnoExist},
		{"create and directory", "x", 0, creat | dirf, 0, 0, ErrnoInval},
		{"create, truncate and directory", "dir", 0, trunc | dirf, 0, 0, ErrnoInval},
		{"directory asked for and for writing", "dir", 0, dirf, rightsRW, 0, ErrnoIsdir},
		{"link", "link", 0, 0, 0, 0, ErrnoLoop},
		{"link followed", "link", follow, 0, rightsRW, 0, ErrnoSuccess},
		{"link as directory", "dirlink", 0, dirf, 0, 0, ErrnoNotdir},
		{"link followed as directory", "dirlink", follow, dirf, 0, 0, ErrnoSuccess},
		{"link with slash", "dirlink/", 0, 0, 0, 0, ErrnoSuccess},
		{"link on the way", "dirlink/inner", 0, 0, 0, 0, ErrnoSuccess},
		{"dangling", "dangling", 0, 0, 0, 0, ErrnoLoop},
		{"dangling followed", "dangling", follow, 0, 0, 0, ErrnoNoent},
		{"dangling created", "dangling", follow, creat, rightsRW, 0, ErrnoSuccess},
		{"loop", "loop", 0, 0, 0, 0, ErrnoLoop},
		{"loop followed", "loop", follow, 0, 0, 0, ErrnoLoop},
		{"loop on the way", "loop/x", 0, 0, 0, 0, ErrnoLoop},
		{"link up inside", "dir/up", follow, 0, 0, 0, ErrnoSuccess},
		{"link outside", "outside", follow, 0, 0, 0, ErrnoPerm},
		{"link absolute", "absolute", follow, 0, 0, 0, ErrnoPerm},
		{"link absolute created", "absolute", follow, creat, rightsRW, 0, ErrnoPerm},
		{"unknown oflags", "file", 0, 16, 0, 0, ErrnoInval},
		{"unknown fdflags", "file", 0, 0, 0, 32, ErrnoInval},
		{"synchronous", "file", 0, 0, rightsRW, uint64(FdSync), ErrnoSuccess},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, dir := newDirGuest(t, false)
			makeTree(t, dir, testTree...)
			if _, got := g.openAt(3, c.path, c.lookup, c.oflags, c.rights, c.flags_); got != c.want {
				t.Errorf("path_open(%q) = %v, want %v", c.path, got, c.want)
			}
		})
	}
}

func TestPathEntries(t *testing.T) {
	mkdir := func(p string) func(*guest) Errno {
		return func(g *guest) Errno { return g.path("path_create_directory", p) }
	}
	rmdir := func(p string) func(*guest) Errno {
		return func(g *guest) Errno { return g.path("path_remove_directory", p) }
	}
	unlink := func(p string) func(*guest) Errno {
		return func(g *guest) Errno { return g.path("path_unlink_file", p) }
	}
	rename := func(a, b string) func(*guest) Errno { return func(g *guest) Errno { return g.rename(a, b) } }
	link := func(a, b string) func(*guest) Errno { return func(g *guest) Errno { return g.link(a, b, 0) } }
	symlink := func(a, b string) func(*guest) Errno { return func(g *guest) Errno { return g.symlink(a, b) } }
	stat := func(p string, lookup uint64) func(*guest) Errno {
		return func(g *guest) Errno { _, errno := g.stat(p, lookup); return errno }
	}
	for _, c := range []struct {
		name string
		call func(*guest) Errno
		want Errno
	}{
		{"mkdir", mkdir("new"), ErrnoSuccess},
		{"mkdir slash", mkdir("new/"), ErrnoSuccess},
		{"mkdir existing", mkdir("dir"), ErrnoExist},
		{"mkdir over file", mkdir("file"), ErrnoExist},
		{"mkdir over dangling", mkdir("dangling"), ErrnoExist},
		{"mkdir dot", mkdir("."), ErrnoExist},
		{"mkdir below missing", mkdir("none/new"), ErrnoNoent},
		{"mkdir outside", mkdir("../new"), ErrnoPerm},
		{"mkdir empty path", mkdir(""), ErrnoNoent},
		{"rmdir", rmdir("empty"), ErrnoSuccess},
		{"rmdir slash", rmdir("empty/"), ErrnoSuccess},
		{"rmdir file", rmdir("file"), ErrnoNotdir},
		{"rmdir file slash", rmdir("file/"), ErrnoNotdir},
		{"rmdir link", rmdir("dirlink"), ErrnoNotdir},
		{"rmdir not empty", rmdir("dir"), ErrnoNotempty},
		{"rmdir missing", rmdir("none"), ErrnoNoent},
		{"rmdir dot", rmdir("."), ErrnoInval},
		{"rmdir parent", rmdir(".."), ErrnoPerm},
		{"unlink", unlink("file"), ErrnoSuccess},
		{"unlink slash", unlink("file/"), ErrnoNotdir},
		{"unlink link", unlink("dirlink"), ErrnoSuccess},
		{"unlink link slash", unlink("dirlink/"), ErrnoNotdir},
		{"unlink directory", unlink("empty"), ErrnoIsdir},
		{"unlink directory slash", unlink("empty/"), ErrnoIsdir},
		{"unlink missing", unlink("none"), ErrnoNoent},
		{"unlink outside", unlink("../x"), ErrnoPerm},
		{"rename file", rename("file", "new"), ErrnoSuccess},
		{"rename file over file", rename("file", "dir/inner"), ErrnoSuccess},
		{"rename file over directory", rename("file", "empty"), ErrnoIsdir},
		{"rename directory over file", rename("empty", "file"), ErrnoNotdir},
		{"rename directory over empty", rename("dir", "empty"), ErrnoSuccess},
		{"rename directory over full", rename("empty", "dir"), ErrnoNotempty},
		{"rename directory into itself", rename("dir", "dir/sub/x"), ErrnoInval},
		{"rename directory slashes", rename("dir/", "new/"), ErrnoSuccess},
		{"rename file from slash", rename("file/", "new"), ErrnoNotdir},
		{"rename file to slash", rename("file", "new/"), ErrnoNotdir},
		{"rename missing", rename("none", "new"), ErrnoNoent},
		{"rename dot", rename(".", "new"), ErrnoBusy},
		{"rename outside", rename("file", "../new"), ErrnoPerm},
		{"rename through link outside", rename("file", "dir/out/new"), ErrnoPerm},
		{"link", link("file", "new"), ErrnoSuccess},
		{"link existing", link("file", "dir/inner"), ErrnoExist},
		{"link itself", link("file", "file"), ErrnoExist},
		{"link slash", link("file", "new/"), ErrnoNoent},
		{"link source slash", link("file/", "new"), ErrnoNotdir},
		{"link directory", link("dir", "new"), ErrnoPerm},
		{"link dangling", link("dangling", "new"), ErrnoSuccess},
		{"link missing", link("none", "new"), ErrnoNoent},
		{"link outside", link("../x", "new"), ErrnoPerm},
		{"link following", func(g *guest) Errno { return g.link("link", "new", follow) }, ErrnoInval},
		{"symlink", symlink("anything", "new"), ErrnoSuccess},
		{"symlink upwards", symlink("../file", "dir/new"), ErrnoSuccess},
		{"symlink absolute", symlink("/etc", "new"), ErrnoPerm},
		{"symlink empty", symlink("", "new"), ErrnoNoent},
		{"symlink slash", symlink("file", "new/"), ErrnoNoent},
		{"symlink over directory slash", symlink("file", "empty/"), ErrnoExist},
		{"symlink over file slash", symlink("x", "file/"), ErrnoNotdir},
		{"symlink existing", symlink("x", "file"), ErrnoExist},
		{"symlink dangling", symlink("x", "dangling"), ErrnoExist},
		{"stat", stat("file", 0), ErrnoSuccess},
		{"stat missing", stat("none", 0), ErrnoNoent},
		{"stat dangling", stat("dangling", 0), ErrnoSuccess},
		{"stat dangling followed", stat("dangling", follow), ErrnoNoent},
		{"stat loop followed", stat("loop", follow), ErrnoLoop},
		{"stat file slash", stat("file/", 0), ErrnoNotdir},
		{"stat outside followed", stat("outside", follow), ErrnoPerm},
		{"times both", func(g *guest) Errno { return g.setTimes("file", 0, 1, 1, fstAtim|fstAtimNow) }, ErrnoInval},
		{"times unknown flag", func(g *guest) Errno { return g.setTimes("file", 0, 1, 1, 16) }, ErrnoInval},
		{"times too large", func(g *guest) Errno { return g.setTimes("file", 0, 1<<63, 1, fstAtim) }, ErrnoInval},
		{"times parent", func(g *guest) Errno { return g.setTimes("..", 0, 1, 1, fstAtim) }, ErrnoPerm},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, dir := newDirGuest(t, false)
			makeTree(t, dir, testTree...)
			if got := c.call(g); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// Both paths of a rename or link may belong to different directories.
func TestTwoDirectories(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("refused on this platform")
	}
	g, from := newDirGuest(t, false)
	to := t.TempDir()
	g.preopen(4, "/to", to, false)
	g.preopen(5, "/ro", t.TempDir(), true)
	makeTree(t, from, "a=a", "b=b")
	a, n := g.put("a")
	b, _ := g.put("b")
	g.want(ErrnoSuccess, "path_rename", 3, a, n, 4, a, n)
	g.want(ErrnoSuccess, "path_link", 3, 0, b, n, 4, b, n)
	g.want(ErrnoRofs, "path_rename", 3, b, n, 5, b, n)
	g.want(ErrnoRofs, "path_rename", 5, b, n, 3, b, n)
	g.want(ErrnoRofs, "path_link", 3, 0, b, n, 5, b, n)
	for _, name := range []string{"a", "b"} {
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(got) != name {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	if _, errno := g.stat("a", 0); errno != ErrnoNoent {
		t.Errorf("the renamed file's old name: %v", errno)
	}
}

func TestTimes(t *testing.T) {
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, testTree...)
	const second, nano = uint64(1e9), uint64(123456789)
	if errno := g.setTimes("link", follow, 5*second+nano, 7*second+nano, fstAtim|fstMtim); errno != ErrnoSuccess {
		t.Fatal(errno)
	}
	if errno := g.setTimes("link", 0, 0, 9*second+nano, fstMtim); errno != ErrnoSuccess {
		t.Fatal(errno)
	}
	file, _ := g.stat("file", 0)
	link, _ := g.stat("link", 0)
	got := []uint64{file.Atim, file.Mtim, link.Mtim}
	if diff := cmp.Diff([]uint64{5*second + nano, 7*second + nano, 9*second + nano}, got); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
	fd := g.mustOpen("file", 0, rightsRW, 0)
	g.want(ErrnoSuccess, "fd_filestat_set_times", fd, 3*second+nano, 0, fstAtim)
	file, _ = g.stat("file", 0)
	if file.Atim != 3*second+nano || file.Mtim != 7*second+nano {
		t.Errorf("after fd_filestat_set_times: %d %d", file.Atim, file.Mtim)
	}
	g.want(ErrnoSuccess, "fd_filestat_set_times", fd, 0, 0, fstMtimNow)
	if file, _ = g.stat("file", 0); file.Mtim < uint64(1e18) {
		t.Errorf("mtim is %d after setting it to now", file.Mtim)
	}
}

func TestReadlink(t *testing.T) {
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, testTree...)
	buf, n := g.alloc(16), g.alloc(4)
	if errno := g.path("path_readlink", "link", buf, 16, n); errno != ErrnoSuccess {
		t.Fatal(errno)
	}
	if got := string(g.bytes(buf, int(g.u32(n)))); got != "file" {
		t.Errorf("link is %q", got)
	}
	for _, size := range []int{3, 0} { // cut to the buffer, what lies behind it is left alone
		copy(g.bytes(buf, 16), "................")
		if errno := g.path("path_readlink", "link", buf, uint64(size), n); errno != ErrnoSuccess || g.u32(n) != uint32(size) {
			t.Errorf("into %d bytes: %v, %d used", size, errno, g.u32(n))
		}
		if got := string(g.bytes(buf, 5)); got != "file"[:size]+"....."[size:] {
			t.Errorf("into %d bytes: %q", size, got)
		}
	}
	for _, c := range []struct {
		path string
		size uint64
		want Errno
	}{{"file", 16, ErrnoInval}, {"none", 16, ErrnoNoent}, {"../x", 16, ErrnoPerm}} {
		if got := g.path("path_readlink", c.path, buf, c.size, n); got != c.want {
			t.Errorf("path_readlink(%q, %d) = %v, want %v", c.path, c.size, got, c.want)
		}
	}
}
