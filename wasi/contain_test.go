package wasi

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

// newEscapeGuest returns a guest whose preopen lies beside a secret file, with links that lead there. The guest could
// not have made the absolute ones; a mount may contain them.
func newEscapeGuest(t *testing.T, readonly bool) (g *guest, inside, secret string) {
	t.Helper()
	base := t.TempDir()
	inside, secret = filepath.Join(base, "inside"), filepath.Join(base, "secret")
	makeTree(t, base, "secret=keep", "outside/", "inside/", "inside/dir/")
	makeTree(t, inside, "file=x", "up->..", "updir->../outside", "secret->../secret", "abs->"+secret, "absdir->"+base,
		"chain->dir/chain", "dir/chain->../../secret", "new->../new", "dir/inside->../file")
	g = newGuest(t, Config{})
	g.preopen(3, "/", inside, readonly)
	return g, inside, secret
}

// escapes lists paths that lead out of the directory, for files and for directories.
var (
	escapeFiles = []string{
		"../secret", "dir/../../secret", "up/secret", "dir/../up/secret", "absdir/secret", "./.././secret", "/etc/passwd", "/secret", "dir/../../inside/file",
	}
	escapeLinks = []string{"secret", "abs", "chain", "dir/chain"}
)

func TestContainment(t *testing.T) {
	type call func(g *guest, path string) Errno
	open := func(oflags, rights uint64) call {
		return func(g *guest, path string) Errno {
			_, errno := g.openAt(3, path, follow, oflags, rights, 0)
			return errno
		}
	}
	simple := func(name string) call { return func(g *guest, path string) Errno { return g.path(name, path) } }
	following := map[string]call{
		"open":     open(0, uint64(RightFdRead)),
		"create":   open(oflagCreat, rightsRW),
		"truncate": open(oflagTrunc, rightsRW),
		"stat":     func(g *guest, p string) Errno { _, errno := g.stat(p, follow); return errno },
		"times":    func(g *guest, p string) Errno { return g.setTimes(p, follow, 1, 1, fstAtim|fstMtim) },
	}
	all := map[string]call{
		"lstat":       func(g *guest, p string) Errno { _, errno := g.stat(p, 0); return errno },
		"ltimes":      func(g *guest, p string) Errno { return g.setTimes(p, 0, 1, 1, fstAtim|fstMtim) },
		"mkdir":       simple("path_create_directory"),
		"rmdir":       simple("path_remove_directory"),
		"unlink":      simple("path_unlink_file"),
		"readlink":    func(g *guest, p string) Errno { return g.path("path_readlink", p, g.alloc(64), 64, g.alloc(4)) },
		"rename from": func(g *guest, p string) Errno { return g.rename(p, "stolen") },
		"rename to":   func(g *guest, p string) Errno { return g.rename("file", p) },
		"link from":   func(g *guest, p string) Errno { return g.link(p, "stolen", 0) },
		"link to":     func(g *guest, p string) Errno { return g.link("file", p, 0) },
		"symlink":     func(g *guest, p string) Errno { return g.symlink("x", p) },
	}
	check := func(name, path string, f call) {
		t.Run(name+" "+path, func(t *testing.T) {
			g, inside, secret := newEscapeGuest(t, false)
			before, err := os.Stat(secret)
			if err != nil {
				t.Fatal(err)
			}
			if got := f(g, path); got != ErrnoPerm {
				t.Errorf("got %v, want %v", got, ErrnoPerm)
			}
			after, err := os.Stat(secret)
			if err != nil || !after.ModTime().Equal(before.ModTime()) || after.Size() != before.Size() {
				t.Errorf("the secret changed: %v, %v", after, err)
			}
			if _, err := os.Lstat(filepath.Join(inside, "stolen")); err == nil {
				t.Error("something came in")
			}
			if _, err := os.Lstat(filepath.Join(filepath.Dir(inside), "new")); err == nil {
				t.Error("something came out")
			}
		})
	}
	for _, path := range escapeFiles {
		for name, f := range following {
			check(name, path, f)
		}
		for name, f := range all {
			check(name, path, f)
		}
	}
	for _, path := range escapeLinks {
		for name, f := range following {
			check(name, path, f)
		}
	}
	check("create through link", "new", following["create"])
}

// What a link would reach outside must not come in as a hard link: the link itself is linked.
func TestHardLinkToLink(t *testing.T) {
	g, inside, _ := newEscapeGuest(t, false)
	if errno := g.link("secret", "copy", 0); errno != ErrnoSuccess {
		t.Fatal(errno)
	}
	info, err := os.Lstat(filepath.Join(inside, "copy"))
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the copy is %v, %v; want a symbolic link", info, err)
	}
	if _, errno := g.openAt(3, "copy", follow, 0, uint64(RightFdRead), 0); errno != ErrnoPerm {
		t.Errorf("opening it: %v", errno)
	}
}

// Descriptors of a directory below confine to that directory.
func TestSubdirectoryConfines(t *testing.T) {
	g, _, _ := newEscapeGuest(t, false)
	fd := g.mustOpen("dir", oflagDirectory, 0, 0)
	for _, path := range []string{"..", "../file", "inside"} {
		if _, errno := g.openAt(fd, path, follow, 0, 0, 0); errno != ErrnoPerm {
			t.Errorf("open %q below a subdirectory: %v", path, errno)
		}
	}
}

// While another process swaps a directory for a link to the outside, nothing outside is read, written or removed.
func TestRenameRace(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a directory in use cannot be renamed on this platform")
	}
	g, inside, secret := newEscapeGuest(t, false)
	makeTree(t, inside, "swap/", "swap/secret=inner")
	stop := make(chan struct{})
	var swapper sync.WaitGroup
	swapper.Go(func() {
		dir, away, link := filepath.Join(inside, "swap"), filepath.Join(inside, "away"), filepath.Join(inside, "lnk")
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Rename(dir, away)
			_ = os.Symlink("..", link)
			_ = os.Rename(link, dir)
			_ = os.Remove(dir)
			_ = os.Rename(away, dir)
		}
	})
	for range 2000 {
		g.reset()
		fd, errno := g.openAt(3, "swap/secret", follow, 0, rightsRW, 0)
		if errno == ErrnoSuccess {
			if got, _ := g.read(fd, 16); got == "keep" {
				t.Fatal("read the secret")
			}
			g.call("fd_close", fd)
		}
		_ = g.setTimes("swap/secret", 0, 1, 1, fstMtim)
		_ = g.path("path_unlink_file", "swap/outsider")
		_ = g.rename("swap/secret", "swap/moved")
		_ = g.rename("swap/moved", "swap/secret")
	}
	close(stop)
	swapper.Wait()
	got, err := os.ReadFile(secret)
	info, statErr := os.Stat(secret)
	if err != nil || statErr != nil || string(got) != "keep" || info.ModTime().Unix() == 0 {
		t.Errorf("the secret is %q, %v, of %v", got, err, info.ModTime())
	}
}

func TestReadOnly(t *testing.T) {
	g, inside, _ := newEscapeGuest(t, true)
	for name, got := range map[string]Errno{
		"mkdir":       g.path("path_create_directory", "x"),
		"rmdir":       g.path("path_remove_directory", "dir"),
		"unlink":      g.path("path_unlink_file", "file"),
		"rename":      g.rename("file", "x"),
		"link":        g.link("file", "x", 0),
		"symlink":     g.symlink("file", "x"),
		"path times":  g.setTimes("file", 0, 1, 1, fstMtim),
		"set times":   g.call("fd_filestat_set_times", 3, 1, 1, fstMtim),
		"create":      second(g.openAt(3, "x", 0, oflagCreat, rightsRW, 0)),
		"create only": second(g.openAt(3, "x", 0, oflagCreat, uint64(RightFdRead), 0)),
		"write":       second(g.openAt(3, "file", 0, 0, rightsRW, 0)),
		"truncate":    second(g.openAt(3, "file", 0, oflagTrunc, 0, 0)),
		"set size":    second(g.openAt(3, "file", 0, 0, uint64(RightFdFilestatSetSize), 0)),
	} {
		if got != ErrnoRofs {
			t.Errorf("%s: %v, want %v", name, got, ErrnoRofs)
		}
	}
	fd := g.mustOpen("file", oflagCreat, uint64(RightFdRead), 0) // exists, so nothing is created
	g.want(ErrnoRofs, "fd_filestat_set_size", fd, 0)
	g.want(ErrnoRofs, "fd_filestat_set_times", fd, 1, 1, fstMtim)
	g.want(ErrnoRofs, "fd_allocate", fd, 0, 100)
	g.want(ErrnoBadf, "fd_write", fd, 16, 0, 16)
	if got, errno := g.read(fd, 8); got != "x" || errno != ErrnoSuccess {
		t.Errorf("read %q, %v", got, errno)
	}
	sub := g.mustOpen("dir", oflagDirectory, 0, 0)
	if _, errno := g.openAt(sub, "x", 0, oflagCreat, rightsRW, 0); errno != ErrnoRofs {
		t.Errorf("create below a subdirectory: %v", errno)
	}
	if got, err := os.ReadFile(filepath.Join(inside, "file")); err != nil || string(got) != "x" {
		t.Errorf("the file is %q, %v", got, err)
	}
}

// second returns the errno of an open.
func second(_ uint64, errno Errno) Errno { return errno }

// The numbers of requirement V5 as the guest sees them.
func TestErrnoNumbers(t *testing.T) {
	for errno, want := range map[Errno]uint16{
		ErrnoNoent: 44, ErrnoAcces: 2, ErrnoNotdir: 54, ErrnoIsdir: 31, ErrnoExist: 20, ErrnoInval: 28, ErrnoIo: 29, ErrnoAgain: 6,
		ErrnoBadf: 8, ErrnoPerm: 63, ErrnoRofs: 69, ErrnoSpipe: 70, ErrnoNotcapable: 76, ErrnoSuccess: 0,
	} {
		if uint16(errno) != want {
			t.Errorf("%v is %d, want %d", errno, uint16(errno), want)
		}
	}
	if len(errnoTexts) != 77 {
		t.Errorf("%d errnos, want the specification's 77", len(errnoTexts))
	}
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, "closed=x")
	if err := os.Chmod(filepath.Join(dir, "closed"), 0); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() > 0 {
		if _, errno := g.openAt(3, "closed", 0, 0, rightsRW, 0); errno != ErrnoAcces {
			t.Errorf("a file without permissions: %v", errno)
		}
	}
	for _, err := range []error{os.ErrPermission, syscall.EACCES} {
		if got := errnoOf(&os.PathError{Op: "open", Err: err}); got != ErrnoAcces {
			t.Errorf("%v is %v", err, got)
		}
	}
}
