// Package chaos does at the worst moments, as often as AGENTVM_CHAOS_ROUNDS says, what must not hurt: it kills daemons with SIGKILL while
// they fork, save and stop, and while guests save files, and whoever changes a file at each step of fork, snapshot and rm, or has it find
// the disk full there, and whatever makes a large file; it forks one VM up to fifty times at once, has guests end themselves with a start
// at once after that, runs up to 200 commands at once, and opens 400 connections at once to a published
// port. Nothing may hang, no VM, no file and no byte of a connection be lost, and nothing be left in the store. `make chaos`.
package chaos
