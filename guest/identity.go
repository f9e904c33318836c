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

	"agentvm/guest/sockets"
	"agentvm/rpc"
)

// machineID is where programs look for a number that no other machine has: 32 hexadecimal digits and a newline
// (machine-id(5)). D-Bus has had its own place before; where an image has a file there, it gets the same.
const (
	machineID     = "/etc/machine-id"
	machineIDDBus = "/var/lib/dbus/machine-id"
)

// identify makes the machine one of its own. What fails is no reason not to start: the host is told.
// With begun, what it is says its disk.
func (s *Supervisor) identify(r *rpc.Restored, begun bool) {
	if r == nil || !r.NewIdentity || begun {
		if err := giveMachineID("", false); err != nil {
			s.tasks.Go(func() { s.note(slog.LevelDebug, fmt.Sprintf("no machine-id in the VM: %v", err)) })
		}
		return
	}
	err := giveMachineID("", true)
	if hasChildren() { // without programs there is nobody who would miss a connection
		if reset := sockets.Reset(); reset != nil {
			err = errors.Join(err, fmt.Errorf("connections of before are not reset: %w", reset))
		}
	}
	if err != nil {
		s.tasks.Go(func() { s.note(slog.LevelDebug, fmt.Sprintf("identity of the VM: %v", err)) })
	}
}

// hasChildren says whether this process, to which orphans are left, has any.
func hasChildren() bool {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != unix.ECHILD
}

// giveMachineID writes a new machine-id below root: with anew in any case, else where there is none yet. A share's is left alone.
func giveMachineID(root string, anew bool) error {
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

// hasMachineID says whether the file has one. It may be anything that a program of the guest has made of it.
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

// newMachineID is a random UUID of version 4 (RFC 9562 section 5.4), as systemd makes it.
func newMachineID() ([]byte, error) {
	var b [16]byte
	if _, err := unix.Getrandom(b[:], 0); err != nil {
		return nil, fmt.Errorf("random number: %w", err)
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return append(hex.AppendEncode(nil, b[:]), '\n'), nil
}

// placeMachineID writes the file in place where it has the right size, which is cheap and as good as atomic for 33 bytes, else
// replaces it, and what a link there leads to stays as it is.
func placeMachineID(root, path string, id []byte) error {
	dir, name := filepath.Split(root + path)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no such directory: nobody will look for it
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

// overwrite replaces the contents of a regular file of the same size, with one name.
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
