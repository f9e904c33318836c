package wasi

import (
	"io/fs"
	"time"
)

// filestatOf translates what the host knows about a file. The platform adds device, inode, links and further times.
func filestatOf(info fs.FileInfo) Filestat {
	mtim := nanoseconds(info.ModTime())
	st := Filestat{Type: filetypeOf(info.Mode()), Nlink: 1, Size: uint64(info.Size()), Atim: mtim, Mtim: mtim, Ctim: mtim}
	platformStat(&st, info)
	return st
}

// nanoseconds returns t since the Unix epoch; earlier times are zero, since preview 1 has no negative ones.
func nanoseconds(t time.Time) uint64 { return uint64(max(t.UnixNano(), 0)) }

// filetypeOf returns the kind of file that mode says.
func filetypeOf(mode fs.FileMode) Filetype {
	switch mode.Type() {
	case 0:
		return FiletypeRegularFile
	case fs.ModeDir:
		return FiletypeDirectory
	case fs.ModeSymlink:
		return FiletypeSymbolicLink
	case fs.ModeDevice:
		return FiletypeBlockDevice
	case fs.ModeDevice | fs.ModeCharDevice:
		return FiletypeCharacterDevice
	case fs.ModeSocket:
		return FiletypeSocketStream
	}
	return FiletypeUnknown
}
