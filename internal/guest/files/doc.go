// Package files is the guest's file service: it implements guestrpc.FilesHandler below a root directory, which is / in the
// supervisor and a temporary one in tests.
//
// It acts for the host as root of the guest. Programs in the guest may change anything at any time, so it finds files by
// directory descriptors and never assumes that a name leads to the same file twice. Symbolic links in the middle of a path
// are followed as by the kernel, even when a program in the guest made them: only the host knows whether it means them.
// Where a link is the last name, Stat, Open, Chmod and Chown follow it on request. Remove, Rename, Symlink, Pack, atomic
// writes and everything below a path never follow it.
//
// It never opens devices and FIFOs to read or write them, and bounds its memory. Methods may be called from several
// goroutines; those of an open file or directory from one at a time. It does not lock files, and does not keep extended
// attributes and ACLs. Blocks of zeros in new files become holes, wherever the holes of the original were.
package files
