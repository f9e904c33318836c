//go:build unix

package vm

import (
	"io/fs"
	"syscall"
)

// canKeepOwners reports whether the host's files have owners by number.
const canKeepOwners = true

func statOf(info fs.FileInfo) hostStat {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return hostStat{}
	}
	return hostStat{hostFile{uint64(st.Dev), st.Ino}, uint64(st.Nlink), Owner{UID: st.Uid, GID: st.Gid}}
}
