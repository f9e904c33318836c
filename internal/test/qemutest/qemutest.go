// Package qemutest checks whether tests can boot a machine in QEMU, and shares directories with such a machine. It is for tests only.
package qemutest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Need skips a test where QEMU is missing, or in short mode, but never in CI.
func Need(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a machine")
	}
	if _, err := exec.LookPath("qemu-system-riscv64"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("qemu-system-riscv64 is missing; on Debian: apt install qemu-system-misc")
		}
		t.Skip("needs qemu-system-riscv64 (Debian: qemu-system-misc)")
	}
}

// virtiofsd is where QEMU 7.2 has its server of shared directories (Debian: qemu-system-common), which needs root.
const virtiofsd = "/usr/lib/qemu/virtiofsd"

// Shares has a server share directories with a machine, and returns QEMU's arguments for a machine of so many MiB: the first has the tag share0,
// the next share1. It skips the test where there is no such server, but never in CI.
func Shares(t testing.TB, memory int, dirs ...string) []string {
	t.Helper()
	Need(t)
	if _, err := os.Stat(virtiofsd); err != nil || os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is missing, or this is not root; on Debian: apt install qemu-system-common", virtiofsd)
		}
		t.Skipf("needs root and %s (Debian: qemu-system-common)", virtiofsd)
	}
	args := []string{"-object", fmt.Sprintf("memory-backend-memfd,id=ram,size=%dM,share=on", memory), "-machine", "memory-backend=ram"}
	sockets := t.TempDir()
	for i, dir := range dirs {
		socket := filepath.Join(sockets, fmt.Sprint(i))
		server := exec.Command(virtiofsd, "--socket-path="+socket, "-o", "source="+dir, "-o", "sandbox=chroot")
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
		args = append(args, "-chardev", fmt.Sprintf("socket,id=fs%d,path=%s", i, socket), "-device", fmt.Sprintf("vhost-user-fs-device,chardev=fs%d,tag=share%d", i, i))
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(socket); err == nil {
				break
			} else if time.Now().After(end) {
				t.Fatalf("%s does not listen: %v", virtiofsd, err)
			}
		}
	}
	return args
}
