//go:build linux

// The machine has one processor for good: the runtime need not look for others every second.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// agentvm-guest is PID 1 of the virtual machine. It is built by internal/guest/build.sh and embedded by internal/guest/supervisor.
package main

import (
	"os"

	"agentvm/internal/guest"
)

func main() {
	if os.Getpid() != 1 {
		_, _ = os.Stderr.WriteString("agentvm-guest is the init process of a virtual machine; it does nothing elsewhere\n")
		os.Exit(2)
	}
	guest.Boot()
}
