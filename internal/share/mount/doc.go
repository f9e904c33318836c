// Package mount serves one host directory to a virtual machine over FUSE, whose requests come by virtio-fs: the protocol of Linux's
// include/uapi/linux/fuse.h, from version 7.31 on.
//
// The guest, its kernel included, is the adversary. Three layers keep it inside the directory: names in messages
// are single path elements and never "..", nothing is found below what is not a directory (symbolic links are shown
// as links, the guest resolves them in its own tree), and every path is resolved below the open directory without
// following links, even while another program swaps a directory or file for a link. Files other than regular files and directories
// are visible but cannot be opened, so that a FIFO or device never blocks the host; the ends of a FIFO or socket are in the guest's kernel.
//
// Masks hide names below the directory. They are looked at wherever a name of a message becomes a path, and a name above a
// mask cannot come to mean another directory. docs/guide/mounts.md says what they do not hide.
//
// A Server is safe for concurrent use. Each connection is a session of its own with its nodes and open files; requests of one
// session run concurrently, at most 16 at a time, and are answered in the order in which they finish. What needs no wait is answered in the guest's
// own call (serveDirect).
//
// The guest's kernel keeps what it gets. Names and attributes are valid for a second, and for a minute in directories of which the guest
// learns what others change (hostEvents). Contents are valid until an open, or new attributes, tell of another version (size and times); each
// open is asked for, and its reply says whether they still are. So does opendir's of the listing of a directory of that kind.
//
// The package does not do device nodes, extended attributes other than user.*, and does not limit how much of the host's disk a writable
// mount fills. docs/guide/mounts.md has the whole list.
package mount
