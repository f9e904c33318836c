// Package project reads agentvm.toml, the file in which a project keeps what its virtual machines are started with.
//
// The file is found upwards from a directory. Parse checks shapes, sizes, durations and modes, and knows the place of each value
// for whoever checks the rest. It is stateless and safe for concurrent use.
//
// The package does not know the grammar of mounts, network rules and ports, starts nothing, and does not say whether a file
// is to be trusted: a guest with a writable mount of the project can write one.
package project
