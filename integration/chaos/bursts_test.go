package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/integration/burst"
)

// TestInboundBursts opens 400 connections at once to a published port, again and again. Every byte of each arrives, the guest still
// reaches its gateway and the host still reaches the guest, and the daemon keeps no descriptor of what has ended.
func TestInboundBursts(t *testing.T) {
	const connections = 400
	rounds := rounds(t)
	program := filepath.Join(t.TempDir(), "sums")
	if err := os.WriteFile(program, burst.Server(t), 0o755); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.start("first")
	w.must("rm", "-f", "first")
	before := w.files()
	w.start("first", "-p", fmt.Sprint("0:", burst.Port))
	w.must("cp", program, "first:/root/sums")
	w.must("exec", "-d", "-n", "first", "exec /root/sums")
	vm := w.status()[0]
	at, _, _ := strings.Cut(vm.Ports[0], " ")
	var err error
	for range 100 { // until it listens
		if err = burst.Send(at, 1, nil); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	idle := descriptors(vm.Pid)
	for i := range rounds {
		for _, count := range []int{connections, 1} {
			if err := burst.Send(at, count, func() { w.logFlows("first") }); err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
		}
		w.check(i, "first")
		if out, err := w.try("exec", "-n", "first", "ping -c 1 -W 20 192.168.127.1"); err != nil {
			t.Fatalf("round %d: the gateway does not answer the guest any more: %s, %v", i, out, err)
		}
		for end := time.Now().Add(time.Minute); descriptors(vm.Pid) > idle; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("round %d: the daemon has %d descriptors, a minute after the burst; before it had %d", i, descriptors(vm.Pid), idle)
			}
		}
	}
	w.must("rm", "-f", "first")
	w.same(before)
}

// descriptors is how many a process has open, on Linux, or 0.
func descriptors(pid int) int {
	open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(open)
}
