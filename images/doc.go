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
//
// # The store of images
//
//	blobs/sha256/HEX            configurations of images, and archives until their disk is built, unchanged, by their SHA-256
//	blobs/sha256/.partial-HEX   a download that broke off, by the digest it should have
//	layers/HEX.tar.zst          plain archives in compressed chunks; HEX is the DiffID, or the digest of a root archive as it came
//	disks/HEX.zst               a root disk's own data, in the same form; HEX covers the source's digest and the builder's version
//	disks/HEX.zst.json          digest, sizes, architecture and layers; without it there is no disk
//	images/NAME.json            one image: name, origin, digests, size; written last; NAME+arm64.json is that of arm64
//	locks/                      lock files
//	*/.*.new-*                   being written, with a lock; the next process that opens the store removes those whose writer was killed
//
// A file is written under another name in the same directory, flushed and renamed. A .partial file is completed with a range request,
// verified as a whole, and removed after a day.
//
// What the guest reads as its root disk is EROFS without compression; the same archives give the same bytes. No file has these bytes: the
// disk's own data are its metadata, at most 64 MiB of short ends of files, and a map of which bytes are where in the own data or in a
// layer. Images with a common layer share its data. Inodes and directories are laid out level by level from the root, so that a boot reads
// few blocks. The writer is ours, because that of go-erofs has neither hard links nor holes.
//
// Layers and own data have the form of internal/storage/chunked: zstd frames of 128 KiB, verified by digest before they are unpacked; other tools
// read such a file as a zstd stream. Damage is an error where it is read, and the file is removed, so that the next start builds or fetches
// it again. A confined daemon may not remove it: image pull finds and repairs it. All VMs of a process share a cache of 16 MiB of unpacked
// chunks. docs/measurements/storage.md has what led to zstd at its fastest level and
// to that size.
//
// images/busybox/build.sh makes the built-in root from Debian's pinned busybox-static; usr/share/doc/busybox/changes in it names the four
// bytes that differ.
package images
