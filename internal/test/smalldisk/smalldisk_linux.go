// Package smalldisk gives tests a small file system, which is soon full. It is for tests only, and for Linux.
package smalldisk

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// insideEnv tells a test that it runs in a namespace where it may mount.
const insideEnv = "AGENTVM_TEST_SMALL_DISK"

// Run calls do with a directory on a file system in memory of a size like "2m". Where the test may not mount one, the test runs again in
// another process, in a user namespace where it may; without user namespaces it is skipped.
func Run(t *testing.T, size string, do func(t *testing.T, dir string)) {
	t.Helper()
	dir := t.TempDir()
	err := syscall.Mount("none", dir, "tmpfs", 0, "mode=0700,size="+size)
	switch {
	case err == nil:
		defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
		do(t, dir)
	case os.Getenv(insideEnv) == "":
		again(t)
	default:
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
}

// again runs the test in a namespace.
func again(t *testing.T) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	cmd := exec.CommandContext(t.Context(), program, "-test.run", pattern, "-test.v")
	cmd.Env = append(os.Environ(), insideEnv+"=1")
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
