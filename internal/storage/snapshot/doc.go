// Package snapshot saves machines in files: the linear memory at one moment, a description of the machine, and its writable disk
// if it had one.
//
// A file is written once, under a temporary name, gets its final name when everything is on the disk, and never changes
// afterwards. So a File may be used by several goroutines, mapped while others read it, and removed or replaced while it is
// open. Equal contents give equal files on every architecture.
//
// Hashes find damage. They do not show who made a file: anyone who can write a file can write one with correct hashes, and
// restoring it runs the code in it. Seals show it, see File.Own. The package neither makes nor restores machines, knows
// nothing about the contents of their memory, and does not encrypt.
//
// # Format
//
// This is version 2. The bytes are where they are written: header and sections in header.go, tables in table.go, meta in Meta, the exported
// stream in export.go.
//
// A snapshot file (NAME.snap) is made to be mapped. An exported snapshot is the same in one compressed stream; each makes the other, byte
// for byte.
//
// All numbers are unsigned and little-endian. Hashes are SHA-256. A page has 4096 bytes, a chunk 256 pages, a unit of the memory 16 pages
// (the largest page of systems that map files), one of the disk a page. Reserved bytes, what is between the parts, and pages of a unit that
// are not the file's own are zeros. A reader refuses every file that a writer would not have made: it takes the lengths and hashes from the
// header, computes the rest from them, and compares the bytes.
//
// The header's hash is the file's ID. It stands for everything in the file and for its base, and is written as 64 lower-case hexadecimal
// digits.
//
// Meta is a JSON object of at most 1 MiB; a new field raises the version. A disk with Beside is in that directory next to the file, as
// disk.img with layers (package disk), and the file has no disk section.
//
// The same file restores on amd64 and arm64.
//
// # Layers
//
// A file whose header names a base has only what differs from it. The base has the same length of memory and no base itself; every page
// taken from it is an own page there.
//
// The base is found by its ID, in the same directory, ../bases and ../snapshots. It is not removed or replaced while something is layered
// on it.
//
// Each run of pages costs a mapping, so a writer copies runs of fewer than 8 pages of the base, and all but 4 runs of a chunk.
//
// An exported snapshot has no base: a layered one is exported as the file it would be without one, which has another ID. Its Zstandard
// window has at most 8 MiB. A reader verifies header and tables first and knows from them how many pages will come.
//
// # Writing and reading
//
// snapshot.Write writes beside the final name, with a lock on the file, syncs it, renames it and syncs the directory, so a name has a whole
// file or none, also after kill -9 and a power failure. Files of dead writers have no lock and are removed.
//
// snapshot.Open checks header, tables, meta and the size, not the contents; File.Verify does. Hashes find damage, not intent: seals say
// which files a store has written itself (docs/internals/saved-machines.md).
//
// # The store
//
// store.go lists the files of a store. A seal beside a file is an HMAC of its ID with the store's key, which is never
// exported: this store has written the file. It is written before its file gets its name, and removed after the file, because readers take
// no lock; a reader whose file's seal does not fit looks at the name once more.
//
// # Versions
//
// A machine continues from a file only when Meta.Machine is the digest of the module.
//
// Version 1 is read, and not written any more. In it memory and disk are as long as the linear memory and the disk, each byte at its own
// place (65536 + a for the memory), with holes. Export and import make it version 2, with another ID. A file and its base may be of
// different versions (TestVersion1).
package snapshot
