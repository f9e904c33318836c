package snapshot

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// smallEnv makes TestDiskFull the one inside of a namespace where it may mount.
const smallEnv = "AGENTVM_SNAPSHOT_TEST_SMALL"

// TestDiskFull writes and imports on a file system of a megabyte. Where it may not mount one, it does so in a user namespace.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m")
	if err != nil && os.Getenv(smallEnv) == "" {
		inNamespace(t)
		return
	}
	if err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	var pages []int
	for page := range 600 {
		pages = append(pages, page)
	}
	large, small := content(newMemory(1000*PageSize, pages...)), content(newMemory(1000*PageSize, 1))
	if err := s.Create(t.Context(), "large", large); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v", err)
	}
	if err := s.WriteBase(t.Context(), "large", large); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v", err)
	}
	stream := exported(t, writeFile(t, filepath.Join(t.TempDir(), "x.snap"), large))
	if err := s.Import(t.Context(), bytes.NewReader(stream), "imported"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v", err)
	}
	if n := countTemporaries(t, dir); n != 0 || len(bases(t, s)) != 0 {
		t.Errorf("left behind: %v and %v", names(t, s.snapshots()), names(t, s.bases()))
	}
	if err := s.Create(t.Context(), "large", small); err != nil {
		t.Errorf("there is no room for a small one afterwards: %v", err)
	}
	f, err := s.Open("large")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Verify(t.Context()), f.Close()); err != nil {
		t.Error(err)
	}
}

func inNamespace(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run", "^TestDiskFull$", "-test.v")
	cmd.Env = append(os.Environ(), smallEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); errors.Is(err, syscall.EPERM) {
		t.Skipf("no namespaces here: %v", err)
	} else if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
