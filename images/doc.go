// Package images finds, downloads, verifies and keeps the systems that VMs boot, and turns each into a root disk.
//
// An [Image] comes from Alpine's release server, from a tar archive, or from the BusyBox root that is built into
// the program. Its source is kept unchanged under its SHA-256, and from it a read-only EROFS disk is built in one
// pass. The same source gives the same disk, byte for byte.
//
// A [Store] is a directory. Any number of goroutines and processes may use one at the same time; of several that
// want the same image one fetches it while the others wait. Whatever stops a pull or an import (a signal, a full disk, a broken
// connection, a wrong checksum), no image appears that was not complete and verified.
//
// Archives are untrusted input. They are never unpacked on the host: their entries exist only inside the disk
// being built, and what they may take is bounded by [Limits].
//
// The package opens connections of its own, through the proxies of the environment, and never runs a VM.
package images
