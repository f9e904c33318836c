package machine_test

import (
	"bufio"
	"fmt"
	"os"
	"testing"
	"time"
	"unsafe"

	"agentvm/internal/host/platform"
)

// A machine whose memory is trimmed again and again does what one does whose memory is not, and its captures are the same.
func TestTrimmedMachineEqualsOthers(t *testing.T) {
	t.Parallel()
	image := workAt(t, 60e6).capture()
	untouched, trimmed := restoreWorker(t, lockstep, image), restoreWorker(t, lockstep, image)
	for millions := range lockstepMillions(t, platform.RISCV64) {
		if err := trimmed.Trim(); err != nil {
			t.Fatal(err)
		}
		untouched.advance(1e6)
		trimmed.advance(1e6)
		if untouched.hash() != trimmed.hash() {
			t.Fatalf("the trimmed machine differs after %d million instructions", millions+1)
		}
	}
	again := restoreWorker(t, lockstep, trimmed.capture())
	if err := trimmed.Trim(); err != nil {
		t.Fatal(err)
	}
	for _, w := range []*worker{untouched, trimmed, again} {
		w.advance(1e6)
	}
	if want := untouched.hash(); trimmed.hash() != want || again.hash() != want {
		t.Error("after its capture the trimmed machine, or its copy, differs")
	}
}

// An idle guest's memory is given back without anybody asking, as far as the image has it.
func TestIdleMachineIsTrimmed(t *testing.T) {
	w := bootWorker(t, idleGuest, "")
	c := restoreWorker(t, idleGuest, w.capture())
	c.ask("time")
	memory := c.LinearMemory()
	for at := 0; at < len(memory); at += 4096 {
		_ = memory[at]
	}
	copyPages(mustRAM(t, c.Machine))
	before := residentIn(t, memory)
	first := c.TrimWait()
	if err := c.Trim(); err != nil {
		t.Fatal(err)
	}
	if second := c.TrimWait(); first <= 0 || second < 3*first/2 {
		t.Errorf("the guest is to be idle for %v until the first time, and for %v until the second", first, second)
	}
	copyPages(mustRAM(t, c.Machine))
	c.TrimAfter(time.Millisecond)
	c.runFor(200 * time.Millisecond)
	after := residentIn(t, memory)
	t.Logf("%d KiB of the memory are resident, %d before", after>>10, before>>10)
	if after > before/4 {
		t.Errorf("%d KiB of the memory are still resident, %d were", after>>10, before>>10)
	}
	if c.ask("time") == "" {
		t.Error("the guest does not answer")
	}
}

// copyPages writes to each page what is there.
func copyPages(memory []byte) {
	for at := 0; at < len(memory); at += 4096 {
		memory[at]++
		memory[at]--
	}
}

// residentIn sums how much of memory is resident, in bytes.
func residentIn(t *testing.T, memory []byte) (sum int) {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	begin := uintptr(unsafe.Pointer(&memory[0]))
	within := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var from, to uintptr
		var kib int
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &from, &to); n == 2 {
			within = from >= begin && to <= begin+uintptr(len(memory))
		}
		if n, _ := fmt.Sscanf(lines.Text(), "Rss: %d kB", &kib); n == 1 && within {
			sum += kib << 10
		}
	}
	return sum
}
