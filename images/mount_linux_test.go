package images

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// mountDisk mounts a disk with the host's own kernel, where that is possible: as root and with EROFS built in.
func mountDisk(t testing.TB, file string) (string, bool) {
	t.Helper()
	kinds, err := os.ReadFile("/proc/filesystems")
	if err != nil || os.Getuid() != 0 || !bytes.Contains(kinds, []byte("\terofs\n")) {
		t.Log("not root, or no EROFS in the kernel: not mounted")
		return "", false
	}
	at := t.TempDir()
	if out, err := exec.Command("mount", "-t", "erofs", "-o", "loop,ro", file, at).CombinedOutput(); err != nil {
		if strings.Contains(string(out), "loop device") {
			t.Logf("no loop devices here: not mounted: %s", out)
			return "", false
		}
		t.Fatalf("mount: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(at, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return at, true
}

// readMounted reads a mounted disk.
func readMounted(t testing.TB, at string) map[string]*thing {
	t.Helper()
	tree := map[string]*thing{}
	inodes := map[uint64]string{}
	err := filepath.WalkDir(at, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(at, path)
		if err != nil {
			return err
		}
		var stat syscall.Stat_t
		if err := syscall.Lstat(path, &stat); err != nil {
			return err
		}
		if first, again := inodes[stat.Ino]; stat.Ino == 0 || again && stat.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			return fmt.Errorf("%s and %s have inode number %d", first, name, stat.Ino)
		}
		inodes[stat.Ino] = name
		tree[name], err = mountedThing(path, &stat)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func mountedThing(path string, stat *syscall.Stat_t) (*thing, error) {
	major, minor := unix.Major(stat.Rdev), unix.Minor(stat.Rdev)
	x := &thing{
		Mode: uint16(stat.Mode), UID: stat.Uid, GID: stat.Gid, Sec: stat.Mtim.Sec, Nsec: uint32(stat.Mtim.Nsec),
		Links: int(stat.Nlink), Device: deviceNumber(major, minor),
	}
	var err error
	switch stat.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		var content []byte
		content, err = os.ReadFile(path)
		x.Size, x.Data = stat.Size, hashOf(content)
	case syscall.S_IFLNK:
		x.Size = stat.Size
		x.Data, err = os.Readlink(path)
	}
	if err != nil {
		return nil, err
	}
	x.Xattrs, err = mountedXattrs(path)
	return x, err
}

func mountedXattrs(path string) (map[string]string, error) {
	buf := make([]byte, 1<<16)
	n, err := unix.Llistxattr(path, buf)
	if n == 0 || errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	xattrs := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		value := make([]byte, 1<<16)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, name, err)
		}
		xattrs[name] = string(value[:n])
	}
	return xattrs, nil
}

// TestDiskFull fills a small file system of its own.
func TestDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root: cannot mount a small file system")
	}
	for _, size := range []string{"1m", "5m", "8m"} {
		t.Run(size, func(t *testing.T) {
			at := t.TempDir()
			if err := syscall.Mount("none", at, "tmpfs", 0, "mode=0700,size="+size); err != nil {
				t.Skipf("cannot mount a tmpfs: %v", err)
			}
			defer syscall.Unmount(at, 0)
			checkDiskFull(t, at)
		})
	}
}

// checkDiskFull imports an archive of 4 MiB into a store that has no room for it or for its disk.
func checkDiskFull(t *testing.T, dir string) {
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	before := files(t, s)
	_, err = s.Import(t.Context(), "large", bytes.NewReader(makeTar(t, []entry{file("f", noise(4<<20))})))
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "AGENTVM_STORE") {
		t.Errorf("import: %v", err)
	}
	if after := files(t, s); len(after) != len(before) {
		t.Errorf("left behind: %q", after)
	}
}
