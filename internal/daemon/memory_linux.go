package daemon

import (
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// freeMemory gives back what this process does not need while it waits: also the pages of its own program, which are most of it, and which the
// system brings back when they are used.
func freeMemory() {
	debug.FreeOSMemory()
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer maps.Close()
	first := make([]byte, 4096) // the program's mappings are the first
	n, _ := maps.Read(first)
	var from, to uintptr // a mapping that cannot be written to
	for line := range bytes.Lines(first[:n]) {
		fields := strings.Fields(string(line))
		switch {
		case len(fields) >= 5 && strings.Contains(fields[0], "-"): // from-to r-xp offset device inode path
			n, _ := fmt.Sscanf(fields[0], "%x-%x", &from, &to)
			if n != 2 || len(fields) != 6 || !strings.HasPrefix(fields[5], "/") || strings.Contains(fields[1], "w") {
				from, to = 0, 0
			}
		case len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] == "0" && to > from: // each page is as in the file
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}
