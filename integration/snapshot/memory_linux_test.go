package snapshot

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
)

// proportionalSize is the process's share of the memory that it uses, in bytes (proc_pid_smaps(5)).
func proportionalSize(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, "Pss:"); found {
			size, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return size << 10
		}
	}
	t.Fatalf("no Pss in %q", text)
	return 0
}
