package smalldisk

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// RunExfat calls do with a directory on an exFAT file system of a size in bytes: without holes, hard links, reflinks and modes of single
// files. It is in an image, and Debian's exfat-fuse serves it. The test is skipped where it may not mount that.
func RunExfat(t *testing.T, size int64, do func(t *testing.T, dir string)) {
	t.Helper()
	var tools [2]string
	for i, tool := range []struct{ name, of string }{{"mkfs.exfat", "exfatprogs"}, {"mount.exfat-fuse", "exfat-fuse"}} {
		path, err := exec.LookPath(tool.name)
		if err != nil {
			path, err = exec.LookPath("/usr/sbin/" + tool.name)
		}
		if err != nil && os.Getenv("CI") == "true" {
			t.Fatalf("%v: install %s", err, tool.of)
		} else if err != nil {
			t.Skip(err)
		}
		tools[i] = path
	}
	if os.Geteuid() != 0 {
		t.Skip("only root may use a loop device")
	}
	for _, device := range []string{"/dev/fuse", "/dev/loop-control"} {
		file, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			t.Skipf("no mounts of images here: %v", err)
		}
		file.Close()
	}
	dir := t.TempDir()
	image, mounted := filepath.Join(dir, "image"), filepath.Join(dir, "mounted")
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), name, args...).Output()
		if err != nil {
			t.Fatalf("%s %q: %v: %s", name, args, err, out)
		}
		return string(out)
	}
	file, err := os.OpenFile(image, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = file.Truncate(size)
		file.Close()
	}
	if err == nil {
		err = os.Mkdir(mounted, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	run(tools[0], image)
	loop := run("losetup", "--find", "--show", image)
	loop = loop[:len(loop)-1]
	defer func() { _ = exec.Command("losetup", "--detach", loop).Run() }()
	run(tools[1], "-o", "noatime,umask=077", loop, mounted)
	defer func() {
		if err := syscall.Unmount(mounted, 0); err != nil {
			t.Errorf("still in use: %v", err)
			_ = syscall.Unmount(mounted, syscall.MNT_DETACH)
		}
	}()
	do(t, mounted)
}

// Used returns how many bytes of the file system of dir are in use.
func Used(t *testing.T, dir string) int64 {
	t.Helper()
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	return int64(s.Blocks-s.Bfree) * int64(s.Bsize)
}
