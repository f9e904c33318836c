// Package qemutest checks whether tests can boot a machine in QEMU, and shares directories with such a machine. It is for tests only.
package qemutest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"agentvm/internal/host/platform"
)

// machines are QEMU's own that are like ours, with the Debian package of the program.
var machines = map[platform.Architecture]struct {
	program, debian string
	arguments       []string
}{
	platform.RISCV64: {"qemu-system-riscv64", "qemu-system-misc", []string{"-M", "virt"}},
	platform.ARM64:   {"qemu-system-aarch64", "qemu-system-arm", []string{"-M", "virt,gic-version=3", "-cpu", "max,pauth=off"}},
}

// Need skips a test where QEMU for riscv64 is missing, or in short mode, but never in CI.
func Need(t testing.TB) {
	t.Helper()
	Machine(t, platform.RISCV64)
}

// Machine is the command that starts QEMU with a machine of an architecture. It skips a test as Need does.
func Machine(t testing.TB, architecture platform.Architecture) []string {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a machine")
	}
	m := machines[architecture]
	if _, err := exec.LookPath(m.program); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is missing; on Debian: apt install %s", m.program, m.debian)
		}
		t.Skipf("needs %s (Debian: %s)", m.program, m.debian)
	}
	return append([]string{m.program}, m.arguments...)
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
