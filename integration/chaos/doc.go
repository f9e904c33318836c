// Package chaos interrupts agentvm at the worst moments, as often as AGENTVM_CHAOS_ROUNDS says. It kills daemons with SIGKILL while they
// fork, save and stop, and while guests save files. It kills the process that changes a file at each step of fork, snapshot and rm, or
// fills the disk there, and kills processes that make a large file. It forks one VM up to fifty times at once, lets guests end themselves
// just before a start, runs up to 200 commands at once, and opens 400 connections at once to a published port. Nothing may hang, no VM,
// file or byte of a connection may be lost, and nothing may be left in the store. `make chaos` runs it.
package chaos
