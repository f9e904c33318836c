// Package files is the guest's file service: it implements rpc.FilesHandler below a root directory, which is / in the
// supervisor and a temporary one in tests.
//
// It acts as root of the guest on the host's word. Programs of the guest may change anything at any time, so it finds
// files by directory descriptors and never takes a name that it has looked at for the same file later. Symbolic links in
// the middle of a path are followed as the kernel does, also when a program of the guest has put them there: only the host
// knows whether it means them. Where a link is the last name it is followed by Stat, Open, Chmod and Chown if asked to,
// and never by Remove, Rename, Symlink, Pack, an atomic write, or anything below a path.
//
// It never opens devices and FIFOs to read or write them, and bounds what it remembers. Methods may be called from several
// goroutines; those of an open file or directory from one at a time. It does not lock files, and extended attributes, ACLs
// and the holes of sparse files are not kept.
package files
