// Package daemon keeps VMs alive between commands. Each named VM has a process of its own, the daemon, which boots the VM,
// runs its jobs and serves clients over a Unix socket, or a port of 127.0.0.1 where the system has no such sockets. The code is the
// same on every system, except for that and for starting a process that outlives its parent.
//
//	client ── socket, token, daemonrpc (control) ──► daemon process ── vm.VM in it
//	       └─ the same again (bulk: files) ──►    │
//	                                               └─ STORE/vms/NAME/: config, state, lock, log, disk, jobs
//
// Only the lock in its directory shows whether a daemon lives: the system releases it however the daemon dies. A [Store] starts
// daemons, finds them and cleans up after those that died; [Run] is the life of one; a [Client] is a connection to one. All their
// methods may be called from several goroutines and processes.
//
// A program that runs in a VM for a client is a job. A durable one outlives its client and its output is kept in a file; any
// other ends with its client, and waits when its client is slow to read.
//
// This package makes no decisions about the network, has no flags and prints nothing. docs/internals/daemon.md describes the protocol
// and the files.
package daemon
