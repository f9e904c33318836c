package disk

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine/initramfs"
	"agentvm/internal/machine/kernel"
	"agentvm/internal/test/qemutest"
)

// guest is a directory with the kernel of agentvm and testdata/grow as its PID 1, for QEMU.
type guest struct{ dir string }

func newGuest(t *testing.T) guest {
	t.Helper()
	qemutest.Need(t)
	image, err := kernel.Image(platform.RISCV64)
	if err != nil {
		t.Fatal(err)
	}
	g := guest{t.TempDir()}
	for name, content := range map[string][]byte{"Image": image, "initramfs": firstRoot(t)} {
		if err := os.WriteFile(filepath.Join(g.dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func firstRoot(t *testing.T) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "init")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, "./testdata/grow")
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=riscv64", "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	program, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return initramfs.Archive(initramfs.Program("init", program))
}

// run boots a machine with the disk and hands each line of its console to see, until it ends or see says stop, which
// kills it.
func (g guest) run(t *testing.T, disk, mode string, see func(line string) (stop bool)) {
	t.Helper()
	ctx, kill := context.WithTimeout(t.Context(), 15*time.Minute)
	defer kill()
	command := exec.CommandContext(ctx, "qemu-system-riscv64", "-M", "virt", "-m", "256", "-display", "none", "-monitor", "none", "-no-reboot",
		"-global", "virtio-mmio.force-legacy=false", "-kernel", filepath.Join(g.dir, "Image"), "-initrd", filepath.Join(g.dir, "initramfs"),
		"-append", "console=hvc0 quiet reboot=panic_warm fb_tunnels=none dummy.numdummies=0 ifb.numifbs=0 mode="+mode, "-serial", "null", "-chardev", "stdio,id=console",
		"-device", "virtio-serial-device", "-device", "virtconsole,chardev=console",
		"-drive", "if=none,id=disk,format=raw,file="+disk, "-device", "virtio-blk-device,drive=disk,write-zeroes=off,discard=off")
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		t.Log(lines.Text())
		if strings.Contains(lines.Text(), "FAIL") || strings.Contains(lines.Text(), "EXT4-fs error") {
			t.Errorf("guest: %s", lines.Text())
		}
		if !stopped && see(lines.Text()) {
			stopped = true
			kill() // SIGKILL
		}
	}
	if err := command.Wait(); err != nil && !stopped {
		t.Fatalf("qemu: %v", err)
	}
}

// look boots a machine that mounts the disk and returns its console.
func (g guest) look(t *testing.T, disk string) (lines []string) {
	t.Helper()
	g.run(t, disk, "look", func(line string) bool { lines = append(lines, strings.TrimSpace(line)); return false })
	return lines
}

// TestGrowsInTheGuest has the kernel of agentvm mount new disks and grow them, once.
func TestGrowsInTheGuest(t *testing.T) {
	g := newGuest(t)
	for _, size := range []int64{MinSize, 1<<30 + sizeStep, DefaultSize, DefaultSize + 1<<30} {
		path := newRaw(t, size)
		for mount := range 2 {
			console := strings.Join(g.look(t, path), "\n")
			if grown := strings.Contains(console, fmt.Sprint("grown ", size/blockSize)); grown != (size != MinSize && size != DefaultSize && mount == 0) {
				t.Errorf("disk of %d, mount %d: %s", size, mount, console)
			}
		}
		fsck(t, path)
		checkBlocks(t, path, size)
		if takes := allocated(t, path); takes > 8<<20 {
			t.Errorf("disk of %d: mounted and grown it takes %d bytes", size, takes)
		}
		open(t, path).Close()
	}
}

func checkBlocks(t *testing.T, path string, size int64) {
	t.Helper()
	if blocks := facts(t, path)["Block count"]; blocks != fmt.Sprint(size/blockSize) {
		t.Errorf("disk of %d: the file system has %s blocks", size, blocks)
	}
}

// TestKilledMachine kills machines at random moments. What the guest had synced is there, and the file system is sound after
// the journal was replayed.
func TestKilledMachine(t *testing.T) {
	g := newGuest(t)
	path := newRaw(t, DefaultSize)
	durable := make(map[string]bool)
	for round := range 3 {
		more := rand.IntN(4)
		g.run(t, path, "forever", func(line string) bool {
			if number, ok := strings.CutPrefix(strings.TrimSpace(line), "durable "); ok {
				durable[number] = true
				more--
			}
			return more < 0
		})
		console := strings.Join(g.look(t, path), "\n")
		for number := range durable {
			if !strings.Contains(console, "found "+number+" here") {
				t.Errorf("round %d: what was durable at %s is gone:\n%s", round, number, console)
			}
		}
		fsck(t, path)
	}
}

// TestKilledWhileGrowing: the next mount continues wherever growing was interrupted.
func TestKilledWhileGrowing(t *testing.T) {
	g := newGuest(t)
	for range 6 {
		path := newRaw(t, DefaultSize-sizeStep)
		g.run(t, path, "look", func(line string) bool {
			if !strings.HasPrefix(line, "growing") {
				return false
			}
			time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond) // growing takes about that long
			return true
		})
		g.look(t, path)
		fsck(t, path)
		checkBlocks(t, path, DefaultSize-sizeStep)
	}
}
