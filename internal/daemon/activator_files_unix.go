//go:build linux || darwin

package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// passesFiles says whether the system passes open files between processes that have a Unix socket.
const passesFiles = knowsPeers

// maxFiles is how many the system passes at once: Linux 253. A VM has at most 64 published ports, and one port for previews.
const maxFiles = 128

func sendFiles(conn *net.UnixConn, files []*os.File) error {
	if len(files) == 0 || len(files) > maxFiles {
		return fmt.Errorf("%d sockets: want 1 to %d", len(files), maxFiles)
	}
	descriptors := make([]int, len(files))
	for i, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		if err := raw.Control(func(fd uintptr) { descriptors[i] = int(fd) }); err != nil {
			return err
		}
	}
	_, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(descriptors...), nil)
	return err
}

// receiveFiles receives what sendFiles has sent.
func receiveFiles(conn *net.UnixConn) ([]*os.File, error) {
	control := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, size, flags, _, err := conn.ReadMsgUnix(make([]byte, 1), control)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	messages, err := unix.ParseSocketControlMessage(control[:size])
	for _, m := range messages {
		descriptors, rightsErr := unix.ParseUnixRights(&m)
		err = errors.Join(err, rightsErr)
		for _, fd := range descriptors {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "socket"))
		}
	}
	if err == nil && (n != 1 || flags&unix.MSG_CTRUNC != 0 || len(files) == 0) {
		err = errors.New("no sockets have come, or not all")
	}
	if err != nil {
		closeFiles(files)
		return nil, err
	}
	return files, nil
}

// awaitConnection waits until a connection waits in the queue of a listening socket, and does not accept it. It returns an error when the
// file is closed.
func awaitConnection(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var pollErr error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			if !errors.Is(err, syscall.EINTR) {
				pollErr = err
				return n > 0 || err != nil
			}
		}
	})
	return errors.Join(err, pollErr)
}

// maxRefused bounds how many connections refuse closes at once: more than a queue has.
const maxRefused = 8192

// refuse closes all connections that wait in the queue of a listening socket, and returns how many.
func refuse(f *os.File) (n int) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		for ; n < maxRefused; n++ {
			conn, _, err := unix.Accept(int(fd))
			if err != nil {
				return
			}
			_ = unix.Close(conn)
		}
	})
	return n
}
