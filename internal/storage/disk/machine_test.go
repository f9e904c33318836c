package disk

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/kernel"
	"agentvm/wasi"
)

// TestGrowsInTheMachine is TestGrowsInTheGuest on the machine that disks are for: what it writes goes through a Disk, so the
// zeros of the backup descriptors take no room either.
func TestGrowsInTheMachine(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a machine")
	}
	program, err := machine.NewProgram(t.Context(), machine.ProgramConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close(context.Background())
	archive := firstRoot(t)
	const size = DefaultSize - sizeStep // one of DefaultSize is as large as its disk
	path := newDisk(t, size)
	for mount := range 2 {
		console := lookInMachine(t, program, archive, path)
		t.Log(console)
		if grown := strings.Contains(console, fmt.Sprint("grown ", size/blockSize)); grown != (mount == 0) || strings.Contains(console, "FAIL") {
			t.Errorf("mount %d: %s", mount, console)
		}
	}
	fsck(t, path)
	checkBlocks(t, path, size)
	if takes := allocated(t, path); takes > 3<<20 {
		t.Errorf("mounted and grown it takes %d bytes", takes)
	}
}

// lookInMachine is guest.look, without QEMU.
func lookInMachine(t *testing.T, program *machine.Program, archive []byte, path string) string {
	t.Helper()
	image, err := kernel.Image(platform.RISCV64)
	if err != nil {
		t.Fatal(err)
	}
	d := open(t, path)
	console := wasi.NewStream(1 << 16)
	m, err := program.NewMachine(t.Context(), machine.Config{
		Memory: 128 << 20, Console: console, Disks: []machine.Disk{{File: wasi.NewDisk(d, d.Size(), false)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&text, console.Host())
	}()
	err = m.LoadLinux(machine.Linux{Kernel: image, Initramfs: archive, CommandLine: "console=hvc0 quiet mode=look"})
	if err == nil {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		_, err = m.Run(ctx)
	}
	if closed := m.Close(); err != nil || closed != nil {
		t.Fatal(err, closed)
	}
	<-read
	return text.String()
}
