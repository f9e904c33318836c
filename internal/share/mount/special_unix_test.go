//go:build unix

package mount

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

// quickly fails instead of hanging when a call blocks on the host.
func quickly(t *testing.T, call func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); call() }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the call hangs")
	}
}

// TestSpecialFiles opens what would block or have effects on the host.
func TestSpecialFiles(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	types := map[string]func(fusetest.FileMode) bool{"fifo": fusetest.FileMode.IsNamedPipe, "sock": fusetest.FileMode.IsSocket}
	if err := unix.Mknod(filepath.Join(dir, "tty"), syscall.S_IFCHR|0o666, int(unix.Mkdev(5, 0))); err == nil {
		types["tty"] = fusetest.FileMode.IsCharacterDevice
	}
	root := attach(t, Config{Dir: dir})
	for name, is := range types {
		t.Run(name, func(t *testing.T) {
			quickly(t, func() {
				f := walk(t, root, name)
				if attr := getattr(t, f); !is(attr.Mode) || attr.RDev != 0 {
					t.Errorf("mode %v rdev %d", attr.Mode, attr.RDev)
				}
				for _, flags := range []fusetest.OpenFlags{fusetest.ReadOnly, fusetest.WriteOnly, fusetest.ReadWrite, fusetest.WriteOnly | openTruncate} {
					err := f.Open(flags)
					wantErrno(t, err, errno.ENXIO)
				}
				wantErrno(t, createIn(walk(t, root), name), errno.ENXIO)
				wantErrno(t, f.SetAttr(fusetest.SetAttrMask{Size: true}, fusetest.SetAttr{}), errno.ENXIO)
				_, err := f.Walk([]string{"x"})
				wantErrno(t, err, errno.ENOTDIR)
			})
		})
	}
}

// TestMakeSpecialFiles makes FIFOs and sockets: on the host they are what they are, and no program is at their ends; where a mask, a protected
// path or another file is, there will be none.
func TestMakeSpecialFiles(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "file"), "x")
	root := attach(t, Config{Dir: dir, Masks: []string{"hidden"}, Protected: []string{".envrc", ".vscode"}})
	if runtime.GOOS != "linux" {
		wantErrno(t, root.Mknod("fifo", fusetest.ModeNamedPipe|0o644, 0, 0), errno.EPERM)
		return
	}
	for name, kind := range map[string]struct{ guest, host uint32 }{
		"fifo": {uint32(fusetest.ModeNamedPipe), syscall.S_IFIFO},
		"sock": {uint32(fusetest.ModeSocket), syscall.S_IFSOCK},
	} {
		mode := fusetest.FileMode(kind.guest) | 0o4640 // set-uid means nothing here, and is dropped
		if err := root.Mknod(name, mode, 1, 3); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil || uint32(st.Mode) != kind.host|0o640 || st.Rdev != 0 {
			t.Errorf("%s has mode %o on the host, rdev %d, %v", name, st.Mode, st.Rdev, err)
		}
		if attr := getattr(t, walk(t, root, name)); attr.Mode != fusetest.FileMode(kind.guest)|0o640 {
			t.Errorf("%s has mode %o in the guest", name, attr.Mode)
		}
		quickly(t, func() { wantErrno(t, walk(t, root, name).Open(fusetest.ReadOnly), errno.ENXIO) })
		wantErrno(t, root.Mknod("file", mode, 0, 0), errno.EEXIST)
		wantErrno(t, root.Mknod("hidden", mode, 0, 0), errno.EACCES)
		wantErrno(t, root.Mknod(".envrc", mode, 0, 0), errno.EROFS)
		wantErrno(t, root.Mknod(".vscode", mode, 0, 0), errno.EROFS)
		if err := root.RenameAt(name, root, name+".moved"); err != nil {
			t.Error(err)
		}
		if err := root.UnlinkAt(name+".moved", 0); err != nil {
			t.Error(err)
		}
	}
	// A FIFO where a host program waits for a reader: neither a look nor an open ends its wait.
	path := filepath.Join(dir, "waiting")
	if err := root.Mknod("waiting", fusetest.ModeNamedPipe|0o600, 0, 0); err != nil {
		t.Fatal(err)
	}
	opened := make(chan *os.File)
	go func() {
		f, _ := os.OpenFile(path, os.O_WRONLY, 0)
		opened <- f
	}()
	time.Sleep(20 * time.Millisecond)
	for range 20 {
		wantErrno(t, walk(t, root, "waiting").Open(fusetest.ReadOnly), errno.ENXIO)
		getattr(t, walk(t, root, "waiting"))
	}
	select {
	case <-opened:
		t.Error("the server has opened a FIFO")
	default:
		reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		(<-opened).Close()
	}
}

// TestOpenRacesWithFIFO swaps a file with a FIFO between the server's look and its open.
func TestOpenRacesWithFIFO(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	writeFile(t, path, "x")
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	root := attach(t, Config{Dir: dir})
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			os.Rename(path, path+".real")
			os.Rename(filepath.Join(dir, "fifo"), path)
			os.Rename(path, filepath.Join(dir, "fifo"))
			os.Rename(path+".real", path)
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	quickly(t, func() {
		for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
			for _, flags := range []fusetest.OpenFlags{fusetest.ReadOnly, fusetest.WriteOnly} {
				if f := tryWalk(root, "f"); f != nil {
					f.Open(flags)
					f.SetAttr(fusetest.SetAttrMask{Size: true}, fusetest.SetAttr{Size: 1})
					f.Close()
				}
			}
		}
	})
	close(stop)
	<-done
}

// TestSetUID checks that the guest cannot leave a program behind that runs as the host's user.
func TestSetUID(t *testing.T) {
	dir := t.TempDir()
	root := attach(t, Config{Dir: dir})
	create(t, root, "a", fusetest.ReadWrite, 0o6755)
	if err := root.Mkdir("d", 0o6755); err != nil {
		t.Fatal(err)
	}
	f := walk(t, root, "a")
	if err := f.SetAttr(fusetest.SetAttrMask{Permissions: true}, fusetest.SetAttr{Permissions: 0o6777}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "d"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
			t.Errorf("%s has mode %v (%v)", name, info.Mode(), err)
		}
	}
}

func TestLinkTimes(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "d/target"), "")
	if err := os.Symlink("target", filepath.Join(dir, "d/link")); err != nil {
		t.Fatal(err)
	}
	before, _ := os.Lstat(filepath.Join(dir, "d/target"))
	link := walk(t, attach(t, Config{Dir: dir}), "d", "link")
	if err := link.SetAttr(fusetest.SetAttrMask{MTime: true, MTimeNotSystemTime: true}, fusetest.SetAttr{MTimeSeconds: 7}); err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Lstat(filepath.Join(dir, "d/link")); info.ModTime().Unix() != 7 {
		t.Errorf("the link's time is %v", info.ModTime())
	}
	if after, _ := os.Lstat(filepath.Join(dir, "d/target")); !after.ModTime().Equal(before.ModTime()) {
		t.Error("the target's time changed")
	}
}

// TestDeepPath makes a path as long as Linux allows and one that is longer.
func TestDeepPath(t *testing.T) {
	root := attach(t, Config{Dir: t.TempDir()})
	name := strings.Repeat("n", 200)
	for depth := range 30 {
		err := root.Mkdir(name, 0o755)
		if err != nil {
			if depth < 20 {
				t.Errorf("depth %d: %v", depth, err)
			}
			wantErrno(t, err, errno.ENAMETOOLONG)
			return
		}
		root = walk(t, root, name)
	}
	t.Error("a path of 6000 bytes was accepted")
}

// TestOtherOwner shows a file of another user with overflowID.
func TestOtherOwner(t *testing.T) {
	if strangersFile == "" {
		t.Skip("only root can give a file away")
	}
	name := filepath.Base(strangersFile)
	if attr := getattr(t, walk(t, attach(t, Config{Dir: filepath.Dir(strangersFile)}), name)); attr.UID != overflowID || attr.GID != overflowID {
		t.Errorf("owner %d:%d", attr.UID, attr.GID)
	}
}
