package top

import (
	"bytes"
	"os"
	"strconv"
	"time"
)

// ticks is in how many ticks /proc counts a second, on every architecture that Go has.
const ticks = 100

// processUse returns the processor time that a process has used, and how much memory it has now.
func processUse(pid int) (cpu time.Duration, memory uint64, ok bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 0, 0, false
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name before may have spaces
	const user, system, resident = 11, 12, 21                       // proc_pid_stat(5), counted from the third
	if len(fields) <= resident {
		return 0, 0, false
	}
	number := func(i int) uint64 {
		n, _ := strconv.ParseUint(string(fields[i]), 10, 64)
		return n
	}
	return time.Duration(number(user)+number(system)) * (time.Second / ticks), number(resident) * uint64(os.Getpagesize()), true
}
