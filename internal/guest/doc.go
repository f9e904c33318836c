// Package guest is the supervisor, PID 1 of the VM: it mounts the root, runs programs for the host and reaps every process
// that ends. It serves package guestrpc on the console port named agentvm.control.
//
// Boot needs to be PID 1 of a VM and may power it off. Supervisor, which runs programs, works in any Linux process, and most
// tests use it so. A program that runs longer than the host's hold time has goroutines of its own; one that ends sooner is
// served by the goroutine of the request alone.
//
// The package interprets no command line: the host names the program, usually a shell.
package guest
