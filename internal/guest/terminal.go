//go:build linux

package guest

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
)

// openTerminal makes a pseudo terminal, whose slave is all three of the child's descriptors.
func (p *program) openTerminal(child *[3]int, size guestrpc.Size, u account) error {
	fd, err := syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	master := newQuietFile(fd)
	slave, err := openSlave(fd, size, u)
	if err != nil {
		_ = master.Close()
		return err
	}
	*child = [3]int{slave, slave, slave}
	p.terminal = master
	return nil
}

func openSlave(master int, size guestrpc.Size, u account) (int, error) {
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return 0, os.NewSyscallError("number of the terminal", err)
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return 0, os.NewSyscallError("unlock the terminal", err)
	}
	if err := setSize(master, size); err != nil {
		return 0, err
	}
	path := "/dev/pts/" + strconv.Itoa(n)
	if u.uid != 0 {
		if err := os.Chown(path, int(u.uid), int(u.gid)); err != nil {
			return 0, err
		}
	}
	slave, err := syscall.Open(path, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return slave, nil
}

func setSize(fd int, size guestrpc.Size) error {
	err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: size.Columns, Row: size.Rows})
	return os.NewSyscallError("size of the terminal", err)
}

// Resize changes the terminal's size; the kernel then sends SIGWINCH.
func (p *program) Resize(size guestrpc.Size) error {
	if p.terminal == nil {
		return &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.ENOTTY, Message: "the program has no terminal"}
	}
	return p.terminal.control(func(fd int) error { return setSize(fd, size) })
}
