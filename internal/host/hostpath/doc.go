// Package hostpath opens configured paths of the host in directories that a guest may be able to change.
//
// A guest with a writable mount can put a symbolic link, or another directory, at any name below it while it runs. Code that opens a
// path by name again later would follow it. So there is one contract for every configured path:
//
//  1. A path is resolved component by component, each in the directory that the one before has opened, and no component is opened
//     through a link. A link is read, noted, and its target walked in the same way. So no directory on the way can be exchanged
//     during the walk.
//  2. The links on the way are trusted when the path is configured ([Resolve]): /home may lead to /data/home. A link in a directory
//     that guests may change is not, and [Guard.Check] refuses it: the directory is a writable mount of the same machine, or was one
//     of any machine of the user, whatever its store ([Guard.Remember]).
//  3. The file that was found has an [Identity]: its path without links, its device and its inode. It is kept with the machine's
//     configuration. Every later opening ([Reopen]) walks the path without links, follows none, and requires the same identity.
//  4. Decisions are made about the open file. [Place.Root] and [Place.OpenFile] return that file and no other.
//
// Two directories are compared by device and inode all along their ways, and on Linux also by their places in their file systems, so
// that links, bind mounts and the case of letters make no difference ([Guard.Within]).
//
// The package does not protect against programs of the user, which may write to the host's directories anyway.
package hostpath
