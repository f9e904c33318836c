//go:build linux

package guest

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/guest/sockets"
)

// machineID has a number that no other machine has: 32 hexadecimal digits and a newline (machine-id(5)). D-Bus has an older
// place of its own; an image that has a file there gets the same number in it.
const (
	machineID     = "/etc/machine-id"
	machineIDDBus = "/var/lib/dbus/machine-id"
)

// setIdentity gives the machine an identity of its own. A failure does not prevent the start; the host's log receives it. With
// diskAttached, the machine keeps the identity that its disk has.
func (s *Supervisor) setIdentity(r *guestrpc.Restored, diskAttached bool) {
	if r == nil || !r.NewIdentity || diskAttached {
		if err := renewMachineID("", false); err != nil {
			s.tasks.Go(func() { s.logToHost(slog.LevelDebug, fmt.Sprintf("no machine-id in the VM: %v", err)) })
		}
		return
	}
	err := renewMachineID("", true)
	if hasChildren() { // without programs there is no connection to reset
		if reset := sockets.Reset(); reset != nil {
			err = errors.Join(err, fmt.Errorf("connections of before are not reset: %w", reset))
		}
	}
	if err != nil {
		s.tasks.Go(func() { s.logToHost(slog.LevelDebug, fmt.Sprintf("identity of the VM: %v", err)) })
	}
}

// hasChildren reports whether this process has children. As PID 1 it is the parent of all orphans.
func hasChildren() bool {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != unix.ECHILD
}

// renewMachineID writes a new machine-id below root. Without anew it keeps one that exists. It never writes into a share.
func renewMachineID(root string, anew bool) error {
	if !anew && hasMachineID(root+machineID) {
		return nil
	}
	id, err := newMachineID()
	if err != nil {
		return err
	}
	err = placeMachineID(root, machineID, id)
	if _, missing := os.Lstat(root + machineIDDBus); missing == nil {
		err = errors.Join(err, placeMachineID(root, machineIDDBus, id))
	}
	return err
}

// hasMachineID reports whether the file has one. Programs in the guest may have made anything of it.
func hasMachineID(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	var b [64]byte
	n, err := unix.Read(fd, b[:])
	id := bytes.TrimSpace(b[:max(n, 0)])
	return err == nil && len(id) > 0 && string(id) != "uninitialized"
}

// newMachineID returns a random UUID of version 4 (RFC 9562 section 5.4), as systemd makes it.
func newMachineID() ([]byte, error) {
	var b [16]byte
	if _, err := unix.Getrandom(b[:], 0); err != nil {
		return nil, fmt.Errorf("random number: %w", err)
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return append(hex.AppendEncode(nil, b[:]), '\n'), nil
}

// placeMachineID overwrites a file of the right size, which is cheap and, for 33 bytes, practically atomic. Any other file is
// replaced; a link is replaced too, and its target does not change.
func placeMachineID(root, path string, id []byte) error {
	dir, name := filepath.Split(root + path)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // without the directory, no program reads the file
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if !sameFileSystem(fd, root+"/") {
		return fmt.Errorf("%s is on a share and left alone", path)
	}
	if overwrite(fd, name, id) {
		return nil
	}
	return replaceFile(fd, name, id)
}

// overwrite replaces the contents of a regular file of the same size that has one name only. It reports whether it did.
func overwrite(dir int, name string, content []byte) bool {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != int64(len(content)) || st.Nlink != 1 {
		return false
	}
	n, err := unix.Pwrite(fd, content, 0)
	return err == nil && n == len(content)
}
