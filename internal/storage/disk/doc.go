// Package disk makes and opens the writable disks of named VMs: an ext4 file system, which the guest grows to the disk's size when it
// mounts it, in layers of which only the top one is written to. A copy shares all layers and has a new top, so that on every file
// system it takes only the space of later changes.
//
// A Disk may be used by several goroutines. From Open to Close it is locked against other processes and against a second
// Open in this one; the lock ends with the process. Writes are in the order of the calls, survive the death of the
// process, and are durable after Sync.
//
// The contents of a disk are the guest's. The package reads only the superblock's magic number and size, and does not mount, check,
// grow or copy file systems.
//
// # A disk's files
//
// disk.img names the layers of a disk and is replaced as a whole; disk.img.layers/ID has each layer; disk.img.lock is locked, because on
// Windows a lock on the disk itself would keep other handles from reading. Only the top layer is written. A layer has slots of 64 KiB for
// clusters of the disk, and a map: a journal of records that say which cluster is in which slot. layer.go has the bytes, and
// how writes, flushes, discards and power failures keep them right.
//
//   - Freeze (fork, snapshot): while the VM runs, everything is synced and a new top and disk.img are written; while it stands still, the
//     old top is sealed and the new disk.img gets its name. The next start completes a freeze that
//     was killed.
//   - Copy: hard links to the layers, and a top of its own, so removing one disk never harms another. Where files have one name only (FAT,
//     exFAT) layers are copied without what is zeros.
//   - Merge: with more than 8 layers below the top, a freeze merges the newest small ones.
//   - Damage in disk.img, headers or maps is a *DamagedError. Layers that a snapshot keeps have hashes of their contents (ID.sum, see sum.go).
//
// # The file system
//
// Create unpacks an empty ext4 of 64 MiB (template.blocks.zst), or of DefaultSize for a disk that has room for it (default.blocks.zst). The guest
// grows it at the first mount.
//
//   - blocks of 4 KiB, groups of 128 MiB: a page, and the largest group with such blocks
//   - has_journal, 16 MiB: a journal cannot grow later
//   - resize_inode, descriptors for 1 TiB: it grows while mounted
//   - uninit_bg, no metadata_csum: growing writes little; CRC-32C in software for each change is slow
//   - nothing reserved for root, errors remount read-only: a damaged file system does not get worse
//   - it grows with noinit_itable, after a first mount has replayed the journal (internal/guest/grow.go): else 160 MiB of zeros would be
//     written for 10 GiB; Linux 6.12 counts the groups before it replays
//   - trimmed (internal/guest/trim.go) at the VM's end after 1 MiB, and once a minute after 64 MiB of changes: discard would name freed
//     blocks at each commit
package disk
