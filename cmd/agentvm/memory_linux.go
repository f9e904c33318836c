package main

import (
	"os"
	"strconv"
	"strings"
)

// availableMemory is how many bytes this process can still use: what the host has free, or what the control group
// has left, whichever is less.
func availableMemory() (uint64, bool) {
	available, ok := memAvailable()
	limit, err1 := readNumber("/sys/fs/cgroup/memory.max") // "max" without a limit
	used, err2 := readNumber("/sys/fs/cgroup/memory.current")
	if err1 == nil && err2 == nil {
		return min(available, limit-min(limit, used)), ok
	}
	return available, ok
}

func memAvailable() (uint64, bool) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "MemAvailable:" {
			n, err := strconv.ParseUint(fields[1], 10, 54)
			return n << 10, err == nil
		}
	}
	return 0, false
}

func readNumber(path string) (uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}
