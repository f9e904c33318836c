// Package changes compares what guests have made of copy-on-write mounts with the host's directories, and takes it over or drops it.
//
//	guest's layer ── entries ──► listing ── compared with mount.Original ──► []Change ──► Diff, Apply, Discard
//
// The guest is the adversary: what it says of its layer is bounded and checked here, and what is done on the host is contained by package
// mount.
//
//	guest                                                        host
//	/src ── overlay ─┬─ lower: virtio-fs, read-only ──────────── mount.Server (ReadOnly, Bases)
//	                 └─ upper: cow/KEY/data on the disk               │ the directory
//	                       ▲                                          │
//	supervisor: Files.layer┘── bulk port ── changes.Set ──────── mount.Original (as a writable mount)
//
// # Why an overlay in the guest?
//
// The layer is then where all other changes of the guest are, and survives stop, snapshot, export and fork with them; the quota is the
// disk's. The server that the guest talks to is that of a read-only mount, and a confined daemon has no right to write there. The process
// that asks for it applies, with package mount's containment.
//
// The layer's directories are not below the guest's root; the supervisor reaches them by a descriptor.
//
// # How does agentvm know what a file was when the guest changed it?
//
// overlayfs copies a file, with its extended attributes, before its first change. In a copy-on-write mount the server gives each file the
// attribute trusted.agentvm.base: inode, size, times, mode and path (mount.Base). So the copy has it, through renames, restarts, snapshots
// and forks, without a table on the host. It is the version at the last open, since the kernel copies the contents before the attributes.
//
//   - A file without a base, or with another path's, stands in the place of something that the guest has deleted. A rename is a file whose
//     base has the path of a deleted file.
//   - A deletion has no attributes. So the layer has one, trusted.agentvm.began, and a change of the host's file after that time is a
//     conflict. The host says it when it asks for the mount or the discard that the layer begins with: the guest's clock may be any. What the
//     host changes between that and the mount is a conflict too, though the guest sees it. File systems stamp by a clock that is a step behind,
//     up to 10 ms, in which a change counts as one of before; a guest has seen it unless it mounts and looks within that step. An apply that
//     leaves nothing out sets the attribute to the last ctime of what it has applied and of the directories of that.
//   - Apply sets the base of each file to that of the new file on the host.
//
// The guest can forge all this and gains nothing: it can as well write its own text. The user decides by the differences.
//
// # Why do nodes stay the same when the host replaces a file?
//
// overlayfs answers ESTALE when FUSE says that a dentry is not valid any more, and a host replaces files by renames all the time. So in a
// session with Bases a node is a name and not a file, as long as the type is the same. A name that is gone is still found by LOOKUP while
// the kernel has it; GETATTR and OPEN then say ENOENT.
//
// redirect_dir and metacopy are off: each entry of a layer stands for itself. index is off, so that a restored VM can mount the layer that
// its kept programs still have.
//
// # What is bounded?
//
// A layer's list: a million entries and 128 MiB of text; a path 4095 bytes, each in a directory that was listed before. Files are streamed,
// 16 GiB in one apply. Lines are compared up to 4 MiB a file. Of what is deleted, a million files and 1024 levels are looked at. Discard
// unmounts the share and mounts it again, because overlayfs does not see changes below it, and refuses while a program uses it.
package changes
