package kernel

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine/initramfs"
	"agentvm/internal/test/qemutest"
)

// bootLimit is how many guest instructions may pass from the kernel's first to PID 1's first line of Go, in 256 MiB
// on QEMU's virt machine. docs/internals/kernel.md has the figure; this guards it. QEMU's processor for arm64 has more
// than ours, and so the kernel has more to do.
var bootLimit = map[platform.Architecture]uint64{platform.RISCV64: 23_000_000, platform.ARM64: 36_000_000}

// forEach runs a test with the kernel of each architecture.
func forEach(t *testing.T, test func(t *testing.T, g guest)) {
	for _, architecture := range platform.Supported() {
		t.Run(string(architecture), func(t *testing.T) { test(t, newGuest(t, architecture)) })
	}
}

// commandLine is what a machine is meant to pass, see docs/internals/kernel.md.
const commandLine = "console=hvc0 quiet reboot=panic_warm fb_tunnels=none dummy.numdummies=0 ifb.numifbs=0 bdev_allow_write_mounted=1"

func TestBootKeepsItsPromises(t *testing.T) { forEach(t, bootKeepsItsPromises) }

func bootKeepsItsPromises(t *testing.T, guest guest) {
	output := guest.boot(t, "poweroff", guest.devices(t)...)
	if !strings.HasPrefix(output, "probe: ") {
		t.Errorf("the boot is not quiet, it begins with %.80q", output)
	}
	if !strings.Contains(output, "probe: done") || strings.Contains(output, "FAIL") {
		t.Errorf("console:\n%s", output)
	}
	wantSeen(t, output, "release", Version)
	wantSeen(t, output, "overlay", "new")
	wantSeen(t, output, "block", "a disk")
	wantSeen(t, output, "9p", "hello from the host")
	wantSeen(t, output, "namespaces", "pid 1 uid 0")
	wantSeen(t, output, "rng", "virtio_rng.0")
	if guest.architecture == platform.ARM64 {
		return // QEMU's board has another clock than ours
	}
	date, err := time.Parse(time.RFC3339, seen(output, "clock"))
	if err != nil || time.Since(date).Abs() > time.Minute {
		t.Errorf("the guest's clock says %v (%v), not now", date, err)
	}
}

func TestRebootEndsTheMachine(t *testing.T) {
	forEach(t, func(t *testing.T, g guest) { g.boot(t, "reboot") })
}

func TestPanicResetsAtOnce(t *testing.T) {
	forEach(t, func(t *testing.T, g guest) {
		if output := g.boot(t, "panic"); !strings.Contains(output, "Kernel panic - not syncing: sysrq triggered crash") {
			t.Errorf("no panic message on the console:\n%s", output)
		}
	})
}

// TestBootCost takes the cheapest of a few boots: devices that answer late on a busy computer add instructions, up to 1 %, and
// nothing takes any away.
func TestBootCost(t *testing.T) { forEach(t, bootCost) }

func bootCost(t *testing.T, guest guest) {
	counted := []string{"-icount", "shift=0,sleep=off"}
	firmware := guest.firmwareCost(t, counted...)
	least := uint64(math.MaxUint64)
	for range 4 {
		output := guest.boot(t, "cost", counted...)
		total, err := strconv.ParseUint(seen(output, "instructions"), 10, 64)
		if err != nil {
			t.Fatalf("console: %s", output)
		}
		t.Logf("kernel entry to PID 1: %.2f M guest instructions", float64(total-firmware)/1e6)
		if least = min(least, total-firmware); least <= bootLimit[guest.architecture] {
			return
		}
	}
	t.Errorf("boot takes %d guest instructions, want at most %d", least, bootLimit[guest.architecture])
}

// seen is what the probe printed about one promise.
func seen(output, name string) string {
	for line := range strings.Lines(output) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "probe: ")
		if value, found := strings.CutPrefix(strings.TrimPrefix(line, "ok "), name+" "); found {
			return value
		}
	}
	return ""
}

func wantSeen(t *testing.T, output, name, want string) {
	t.Helper()
	if got := seen(output, name); got != want {
		t.Errorf("%s: saw %q, want %q", name, got, want)
	}
}

// guest is a directory with the kernel and the probe, ready for QEMU.
type guest struct {
	dir          string
	architecture platform.Architecture
}

func newGuest(t *testing.T, architecture platform.Architecture) guest {
	t.Helper()
	qemutest.Machine(t, architecture)
	g := guest{t.TempDir(), architecture}
	g.write(t, "Image", mustImage(t, architecture))
	g.write(t, "initramfs", firstRoot(t, architecture))
	return g
}

func (g guest) path(name string) string { return filepath.Join(g.dir, name) }

func (g guest) write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(g.path(name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// devices is one virtio device of each kind the kernel has a driver for, except those that need a second process.
func (g guest) devices(t *testing.T) []string {
	t.Helper()
	share := g.path("share")
	if err := os.Mkdir(share, 0o700); err != nil {
		t.Fatal(err)
	}
	g.write(t, "share/greeting", []byte("hello from the host\n"))
	g.write(t, "disk", append([]byte("a disk  "), make([]byte, 1<<20)...))
	return []string{
		"-device", "virtio-rng-device", "-device", "virtio-balloon-device,free-page-reporting=on",
		"-netdev", "user,id=net,restrict=on", "-device", "virtio-net-device,netdev=net",
		"-drive", "if=none,id=disk,format=raw,file=" + g.path("disk"), "-device", "virtio-blk-device,drive=disk",
		"-fsdev", "local,id=share,security_model=none,path=" + share, "-device", "virtio-9p-device,fsdev=share,mount_tag=share",
	}
}

// boot runs the probe in the given mode and returns the console once the machine has ended itself.
func (g guest) boot(t *testing.T, mode string, arguments ...string) string {
	t.Helper()
	return g.qemu(t, append([]string{
		"-kernel", g.path("Image"), "-initrd", g.path("initramfs"), "-append", commandLine + " probe=" + mode,
		"-serial", "null", "-chardev", "stdio,id=console",
		"-device", "virtio-serial-device", "-device", "virtconsole,chardev=console",
	}, arguments...)...)
}

// firmwareCost is how many instructions OpenSBI takes until it enters the kernel, told by a kernel that prints the
// counter, a letter from a to p for each four bits, and shuts down. There is no firmware on arm64.
func (g guest) firmwareCost(t *testing.T, arguments ...string) uint64 {
	t.Helper()
	if g.architecture == platform.ARM64 {
		return 0
	}
	var program []byte
	for _, instruction := range []uint32{
		0xc0202473, // rdinstret s0
		0x01000493, // li    s1, 16
		0x03c45513, // srli  a0, s0, 60
		0x00441413, // slli  s0, s0, 4
		0x06150513, // addi  a0, a0, 'a'
		0x00100893, // li    a7, 1        console putchar
		0x00000073, // ecall
		0xfff48493, // addi  s1, s1, -1
		0xfe0494e3, // bnez  s1, -24
		0x00800893, // li    a7, 8        shutdown
		0x00000073, // ecall
	} {
		program = binary.LittleEndian.AppendUint32(program, instruction)
	}
	g.write(t, "counter", program)
	output := g.qemu(t, append([]string{"-kernel", g.path("counter"), "-serial", "stdio"}, arguments...)...)
	letters := regexp.MustCompile(`[a-p]{16}$`).FindString(output)
	if letters == "" {
		t.Fatalf("no counter at the end of the firmware's output:\n%s", output)
	}
	var count uint64
	for _, letter := range letters {
		count = count<<4 | uint64(letter-'a')
	}
	return count
}

// qemu runs one machine to its end; a machine that does not end within two minutes fails the test.
func (g guest) qemu(t *testing.T, arguments ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	machine := append(qemutest.Machine(t, g.architecture), "-m", "256", "-display", "none", "-monitor", "none", "-no-reboot", "-global", "virtio-mmio.force-legacy=false")
	command := exec.CommandContext(ctx, machine[0], append(machine[1:], arguments...)...)
	command.WaitDelay = time.Second
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v, output:\n%s", command, err, output)
	}
	return string(output)
}

// initramfs holds the probe as /init and nothing else.
func firstRoot(t *testing.T, architecture platform.Architecture) []byte {
	t.Helper()
	probe := filepath.Join(t.TempDir(), "probe")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", probe, "./testdata/probe")
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+string(architecture), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, output)
	}
	program, err := os.ReadFile(probe)
	if err != nil {
		t.Fatal(err)
	}
	return initramfs.Archive(initramfs.Program("init", program))
}
