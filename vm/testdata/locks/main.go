//go:build linux

// Locks counts in a file that others count in as well: it opens the file once, and then takes a lock for each step.
//
//	locks fcntl|flock FILE STEPS
package main

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

func main() {
	if err := count(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func count(kind, path, steps string) error {
	n, err := strconv.Atoi(steps)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	fd := int(file.Fd())
	lock := func(unlock bool) error {
		if kind == "flock" {
			return unix.Flock(fd, map[bool]int{false: unix.LOCK_EX, true: unix.LOCK_UN}[unlock])
		}
		range10 := unix.Flock_t{Type: unix.F_WRLCK, Len: 10}
		if unlock {
			range10.Type = unix.F_UNLCK
		}
		return unix.FcntlFlock(uintptr(fd), unix.F_SETLKW, &range10)
	}
	for range n {
		if err := lock(false); err != nil {
			return err
		}
		var text [8]byte
		if _, err := file.ReadAt(text[:], 0); err != nil {
			return err
		}
		was, err := strconv.Atoi(string(text[:]))
		if err != nil {
			return err
		}
		if _, err := file.WriteAt(fmt.Appendf(nil, "%08d", was+1), 0); err != nil {
			return err
		}
		if err := lock(true); err != nil {
			return err
		}
	}
	return nil
}
