package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"agentvm/internal/daemon/confine"
)

// mountServers are the processes that serve added mounts of a store's VMs.
func mountServers(t *testing.T, dir string) (list []int) {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, _ := os.ReadFile(file)
		args := bytes.Split(line, []byte{0})
		if len(args) > 2 && string(args[1]) == dir && string(args[2]) == mountName {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			list = append(list, pid)
		}
	}
	slices.Sort(list)
	return list
}

// wantConfined requires the server of a mount to be confined as far as this system can.
func wantConfined(t *testing.T, pid int) {
	t.Helper()
	if slices.ContainsFunc(confine.Available(), func(l confine.Layer) bool { return l.Name == "seccomp" && l.InForce }) {
		wantThreads(t, pid)
	}
}
