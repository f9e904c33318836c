// Package guest is the supervisor, PID 1 of the virtual machine: it mounts the root, stays, runs programs for the host
// and reaps whatever dies. It speaks package rpc on the console port named agentvm.control.
//
// Boot is Linux on a machine made for it and may power that machine off. Supervisor, which runs programs, works in any
// Linux process and is tested so. One goroutine serves each program while it runs longer than the host's hold time;
// programs that end sooner are served by the goroutine of the request alone.
//
// It interprets no command line: the host names the program, usually a shell.
package guest
