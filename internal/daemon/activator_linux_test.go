package daemon

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"agentvm/internal/daemon/confine"
)

// TestActivatorIsConfined: the process that holds ports can neither run programs nor change what VMs are; its child, which wakes them, ends with
// it. When that child ends, so does the activator, and the next one who uses the VM starts both anew.
func TestActivatorIsConfined(t *testing.T) {
	s, at := porting(t, 80)
	layers := make(map[string]bool)
	for _, l := range confine.Available() {
		layers[l.Name] = l.InForce
	}
	if layers[confine.Seccomp] {
		wantThreads(t, activatorPid(t, s))
	}
	log, err := os.ReadFile(s.activator().log())
	if err != nil {
		t.Fatal(err)
	}
	for name, force := range layers {
		if want := fmt.Sprintf("layer=%q \"in force\"=%t", name, force); !strings.Contains(strings.ReplaceAll(string(log), "layer="+name+" ", fmt.Sprintf("layer=%q ", name)), want) {
			t.Errorf("the activator's log lacks %s:\n%s", want, log)
		}
	}
	for range 2 {
		if _, err := talk(at[0], 1600); err != nil {
			t.Fatal(err)
		}
		sleeps(t, s)
	}
	waker := childOf(t, activatorPid(t, s))
	process, err := os.FindProcess(waker)
	if err == nil {
		err = process.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the activator's end", func() bool {
		_, err := os.Lstat(s.activator().lock())
		return err != nil
	})
	if err := s.startActivator(); err != nil { // as who uses the VM does
		t.Fatal(err)
	}
	await(t, "the ports", func() bool {
		_, err := talk(at[0], 1600)
		return err == nil
	})
	sleeps(t, s)
	pid := activatorPid(t, s)
	waker = childOf(t, pid)
	killActivator(t, s)
	await(t, "the end of what wakes VMs", func() bool {
		_, err := os.Stat(filepath.Join("/proc", strconv.Itoa(waker)))
		return err != nil
	})
}

// TestActivatorServesAgain: an activator that gave up its lock, and which a VM needs since, serves on in its confinement.
func TestActivatorServesAgain(t *testing.T) {
	s, at := porting(t, 80)
	pid := activatorPid(t, s)
	if err := os.Remove(s.activator().lock()); err != nil { // as when it is about to end
		t.Fatal(err)
	}
	await(t, "the second listening", func() bool {
		log, err := os.ReadFile(s.activator().log())
		return err == nil && bytes.Count(log, []byte("the activator listens")) == 2
	})
	if again := activatorPid(t, s); again != pid {
		t.Errorf("process %d serves, after %d", again, pid)
	}
	await(t, "the ports", func() bool {
		_, err := talk(at[0], 1600)
		return err == nil
	})
	sleeps(t, s)
}

// childOf returns the only child of a process.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var list []string
	for _, task := range tasks {
		text, readErr := os.ReadFile(task)
		if readErr != nil {
			continue
		}
		list = append(list, strings.Fields(string(bytes.TrimSpace(text)))...)
	}
	if err != nil || len(list) != 1 {
		t.Fatalf("children of %d: %q, %v", pid, list, err)
	}
	child, err := strconv.Atoi(list[0])
	if err != nil {
		t.Fatal(err)
	}
	return child
}
