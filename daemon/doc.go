// Package daemon keeps VMs alive between commands. Each named VM has a process of its own, the daemon, which boots the VM,
// runs its jobs and serves clients over TCP on 127.0.0.1. The code is the same on every system; only starting a process
// that outlives its parent differs.
//
//	client ── TCP 127.0.0.1, token, rpc (control) ──► daemon process ── vm.VM in it
//	       └─ the same again (bulk: files) ─────────►    │
//	                                                      └─ STORE/vms/NAME/: config, state, lock, log, disk, jobs
//
// Whether a daemon lives is told by nothing but the lock in its directory, which the system releases however it dies. A
// [Store] starts daemons, finds them and cleans up after those that died; [Run] is the life of one; a [Client] speaks to
// one. All their methods may be called from several goroutines and processes.
//
// A program that runs in a VM for a client is a job. A durable one outlives its client and its output is kept in a file; any
// other ends with its client, and waits when its client is slow to read.
//
// This package decides nothing about the network, knows no flags and prints nothing. docs/daemon.md has the protocol and
// the files.
package daemon
