// Package settings reads agentvm.toml, the file in which a project keeps the settings of its VMs.
//
// The file is found upwards from a directory. Parse checks shapes, sizes, durations and modes, and knows the place of each value
// for callers that check the rest. It is stateless and safe for concurrent use.
//
// The package does not know the grammar of mounts, network rules and ports, starts nothing, and does not decide whether a file
// can be trusted: a guest with a writable mount of the project can write one.
package settings
