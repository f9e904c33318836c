//go:build unix

package hostfile

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Of returns what the host tells about a file that package os has looked at, or a FileInfo whose Sys is a *unix.Stat_t.
func Of(info fs.FileInfo) Stat {
	switch st := info.Sys().(type) {
	case *unix.Stat_t:
		return Stat{
			uint64(st.Dev), uint64(st.Ino), uint64(st.Nlink), uint64(st.Blksize), uint64(st.Blocks), st.Uid, st.Gid,
			time.Unix(st.Atim.Unix()), time.Unix(st.Ctim.Unix()),
		}
	case *syscall.Stat_t:
		accessed, changed := times(st)
		return Stat{
			uint64(st.Dev), uint64(st.Ino), uint64(st.Nlink), uint64(st.Blksize), uint64(st.Blocks), st.Uid, st.Gid,
			time.Unix(accessed.Unix()), time.Unix(changed.Unix()),
		}
	}
	return unknown(info)
}

// Control lends the descriptor to use, in a way that a concurrent Close cannot give its number to another file.
func Control(file *os.File, use func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var useErr error
	err = raw.Control(func(fd uintptr) { useErr = use(int(fd)) })
	return errors.Join(err, useErr)
}

// Uninterrupted repeats a call that a signal interrupted, as package os does.
func Uninterrupted(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// Touch sets the times of a file of the store to the current time.
func Touch(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	now := time.Now()
	return errors.Join(SetTimes(f, now, now), f.Close())
}
