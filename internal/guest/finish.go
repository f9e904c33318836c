//go:build linux

package guest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
)

// finish takes the output of a program that has ended. It fails when another process still holds a stream; then the
// streams that remain are in p.streams.
//
// One poll shows whether there is anything to read, so that a program that wrote nothing costs no read.
func (p *program) finish() (guestrpc.Delivery, bool) {
	var output [2][]byte
	for {
		fds := [2]unix.PollFd{{Fd: int32(p.streams[0]), Events: unix.POLLIN}, {Fd: int32(p.streams[1]), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds[:], 0); err != nil && err != unix.EINTR {
			break
		}
		again := false
		for i := range fds {
			if fds[i].Revents&unix.POLLIN != 0 {
				again = true
				output[i] = appendReady(output[i], p.streams[i])
			} else if fds[i].Revents != 0 { // POLLHUP: the last writer has gone
				_ = syscall.Close(p.streams[i])
				p.streams[i] = -1
			}
		}
		if !again || len(output[0])+len(output[1]) > bufferLimit {
			break
		}
	}
	if p.streams == [2]int{-1, -1} {
		status := p.status
		p.retire()
		return guestrpc.Delivery{Stdout: output[0], Stderr: output[1], Exit: &status}, true
	}
	p.preload(output[0], output[1])
	return guestrpc.Delivery{}, false
}

// appendReady reads what a pipe holds; poll has said that there is something.
func appendReady(b []byte, fd int) []byte {
	n := 0
	if _, _, errno := syscall.RawSyscall(syscall.SYS_IOCTL, uintptr(fd), unix.TIOCINQ, uintptr(unsafe.Pointer(&n))); errno != 0 || n <= 0 {
		n = readSize
	}
	part := make([]byte, len(b)+n)
	copy(part, b)
	n, err := syscall.Read(fd, part[len(b):])
	if err != nil {
		n = 0
	}
	return part[:len(b)+n]
}

// refusal says that a program could not be executed. It becomes an exit status, as in a shell.
type refusal struct {
	code    int
	errno   syscall.Errno
	message string
}

func (r *refusal) Error() string { return r.message }

func (r *refusal) delivery() guestrpc.Delivery {
	return guestrpc.Delivery{
		Stderr: []byte("agentvm: " + r.message + "\n"),
		Exit:   &guestrpc.ExitStatus{Code: r.code, Cause: &capnprpc.Error{Kind: capnprpc.KindSystem, Errno: errno.Errno(r.errno), Message: r.message}},
	}
}

// searchPath finds a program as execvp does. A relative name with a slash is relative to dir, the program's own.
func searchPath(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	denied := false
	for _, d := range filepath.SplitList(path) {
		if d == "" {
			d = "."
		}
		full := d + "/" + name
		probe := full
		if !filepath.IsAbs(full) && dir != "" {
			probe = dir + "/" + full
		}
		var st syscall.Stat_t
		switch err := syscall.Stat(probe, &st); {
		case err == nil && st.Mode&syscall.S_IFMT == syscall.S_IFREG && st.Mode&0o111 != 0:
			return full, nil
		case err == nil || err == syscall.EACCES:
			denied = true
		}
	}
	if denied {
		return "", &refusal{126, syscall.EACCES, strconv.Quote(name) + " in PATH is not an executable file"}
	}
	return "", &refusal{127, syscall.ENOENT, "command not found: " + strconv.Quote(name)}
}

// explain turns an error of the fork, which is only a number, into one that names the program or directory.
func explain(err error, path string, r guestrpc.Request, dir string) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	if e := checkDir(dir, r); e != nil {
		return e
	}
	code := 126
	what := errno.Error()
	switch errno {
	case syscall.ENOENT:
		code = 127
		if _, e := os.Stat(resolve(path, dir)); e == nil {
			what = "the interpreter or loader it names is missing"
		}
	case syscall.ENOTDIR:
		code = 127
	case syscall.ENOMEM, syscall.EAGAIN, syscall.EMFILE, syscall.ENFILE:
		return os.NewSyscallError("start "+strconv.Quote(path), errno)
	}
	return &refusal{code, errno, "cannot execute " + strconv.Quote(path) + ": " + what}
}

func resolve(path, dir string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// checkDir says what is wrong with a working directory, if anything is.
func checkDir(dir string, r guestrpc.Request) error {
	if st, err := os.Stat(dir); err != nil {
		return err
	} else if !st.IsDir() {
		return &os.PathError{Op: "chdir", Path: dir, Err: syscall.ENOTDIR}
	}
	if r.User != "" && syscall.Access(dir, 1) != nil {
		return &os.PathError{Op: "chdir", Path: dir, Err: syscall.EACCES}
	}
	return nil
}

func isMissing(dir string) bool {
	_, err := os.Stat(dir)
	return errors.Is(err, os.ErrNotExist)
}
