package machine

import (
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a module could reach, if all of wazero's checks of bounds were wrong, is the machine's own memory or a fault.
func TestGuardsAroundMemory(t *testing.T) {
	const size = 3<<20 + 4096
	memory, err := newLinearMemory(size)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Free()
	begin := uintptr(unsafe.Pointer(&memory.memory[0]))
	for _, part := range []struct {
		what       string
		begin, end uintptr
		want       string
	}{
		{"before the memory", begin - guardBefore, begin, "---p"},
		{"the memory", begin, begin + size, "rw-p"},
		{"behind the memory, as far as a module's index and offset reach", begin + size, begin + reach + guardAfter, "---p"},
	} {
		if got := protections(t, part.begin, part.end); got != part.want {
			t.Errorf("%s: %s, want %s", part.what, got, part.want)
		}
	}
	for _, offset := range []int64{-1, -guardBefore, size, size + 4095, 1<<32 - 1, 1 << 32, 1<<33 - 1, 1<<33 + 15} {
		if !faults(unsafe.Add(unsafe.Pointer(&memory.memory[0]), offset)) {
			t.Errorf("a read at offset %d does not fault", offset)
		}
	}
	for _, offset := range []int64{0, size - 1} {
		if faults(unsafe.Add(unsafe.Pointer(&memory.memory[0]), offset)) {
			t.Errorf("a read at offset %d faults", offset)
		}
	}
}

// Guards are what a machine does without where there are no addresses for them.
func TestMemoryWithFewAddresses(t *testing.T) {
	if os.Getenv("AGENTVM_TEST_FEW_ADDRESSES") == "" {
		runItself(t, "TestMemoryWithFewAddresses", "AGENTVM_TEST_FEW_ADDRESSES=1")
		return
	}
	var used uint64
	status, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(status), &used)
	}
	if err != nil {
		t.Fatal(err)
	}
	limit := used*uint64(os.Getpagesize()) + 1<<30
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	memory, err := newLinearMemory(64 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Free()
	begin := unsafe.Pointer(&memory.memory[0])
	if !faults(unsafe.Add(begin, -1)) || !faults(unsafe.Add(begin, 64<<20)) || faults(begin) {
		t.Error("the memory has no short guards")
	}
}

// protections are those that a range of addresses has, if they are the same all over.
func protections(t *testing.T, begin, end uintptr) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	at := begin
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		var how string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &how); err != nil || to <= at || from >= end {
			continue
		}
		if from > at {
			found = append(found, "nothing")
		}
		if len(found) == 0 || found[len(found)-1] != how {
			found = append(found, how)
		}
		at = to
	}
	if at < end {
		found = append(found, "nothing")
	}
	return strings.Join(found, ", ")
}

// sink keeps the compiler from leaving a read out.
var sink byte

func faults(at unsafe.Pointer) (faulted bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { faulted = recover() != nil }()
	sink = *(*byte)(at)
	return false
}

// runItself runs one test in another process.
func runItself(t *testing.T, test, variable string) {
	t.Helper()
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.v")
	again.Env = append(os.Environ(), variable)
	if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+test) {
		t.Fatalf("%v\n%s", err, out)
	}
}
