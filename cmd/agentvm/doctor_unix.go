//go:build unix

package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"agentvm/vm"
)

// addressSpace is how many bytes a VM of the default size reserves, with those of the program itself.
const addressSpace = vm.DefaultMemory + 1<<30

func checkLimits() []finding {
	space := finding{Check: "address space", Status: good}
	space.Detail = limit(unix.RLIMIT_AS, func(n uint64) {
		if n < addressSpace {
			space.Status, space.Advice = fair, "raise it with ulimit -v, or use less --memory"
		}
	})
	files := finding{Check: "open files", Status: good}
	files.Detail = limit(unix.RLIMIT_NOFILE, func(n uint64) {
		if n < 256 {
			files.Status, files.Advice = fair, "raise it with ulimit -n before many VMs or mounts are used"
		}
	})
	return []finding{space, files}
}

// limit describes a resource limit; check is called when there is one.
func limit(resource int, check func(uint64)) string {
	var l unix.Rlimit
	if err := unix.Getrlimit(resource, &l); err != nil {
		return err.Error()
	}
	n := uint64(l.Cur) // signed on some systems
	if n >= 1<<62 {
		return "no limit"
	}
	check(n)
	return fmt.Sprintf("limited to %d", n)
}

func privileges() string {
	if os.Geteuid() == 0 {
		return "root"
	}
	return fmt.Sprintf("user %d", os.Geteuid())
}
