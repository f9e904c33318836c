//go:build linux

package guest

import (
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"agentvm/rpc"
)

// pipe takes what arrives on a connection to a console port, without a copy: the pages in which the kernel has received it go into
// the pipe, and from there into the port's queue.
//
//	TCP socket == splice(2) ==> pipe == splice(2) ==> virtio console ==> the host copies
type pipe struct {
	from syscall.RawConn
	r, w int
}

// pipeSize is what a pipe holds when each of its pages is full: more than a send has, because pages of sockets are not.
const pipeSize = 256 << 10

// Pipe implements rpc.Piped.
func (c *localConn) Pipe() rpc.Pipe {
	from, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil
	}
	_, _ = unix.FcntlInt(uintptr(ends[1]), unix.F_SETPIPE_SZ, pipeSize) // else smaller, which works as well
	return &pipe{from: from, r: ends[0], w: ends[1]}
}

// Fill implements rpc.Pipe. The pipe is empty, so that EAGAIN says that the connection is.
func (p *pipe) Fill(limit int) (n int, err error) {
	down := p.from.Read(func(fd uintptr) bool {
		n, err = splice(int(fd), p.w, limit)
		return err != syscall.EAGAIN
	})
	if err = errors.Join(down, err); err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

// Close implements rpc.Pipe.
func (p *pipe) Close() error { return errors.Join(unix.Close(p.r), unix.Close(p.w)) }

// splice moves at most size bytes, without waiting.
func splice(from, to, size int) (int, error) {
	for {
		n, err := unix.Splice(from, nil, to, nil, size, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		if err != syscall.EINTR {
			return max(int(n), 0), err
		}
	}
}

// spliceParameter is there when the kernel's driver takes pages as they are, and leaves in the pipe what its queue has no room for
// (kernel/copy.patch). Any other copies each page, byte by byte at worst, and loses what it has no room for.
const spliceParameter = "/sys/module/virtio_console/parameters/splice_by_reference"

func canSplice() bool {
	_, err := os.Stat(spliceParameter)
	return err == nil
}

// TakesPipes implements rpc.PipePort.
func (p *port) TakesPipes() bool { return p.splices }

// WritePipe implements rpc.PipePort.
func (p *port) WritePipe(from rpc.Pipe, size int) (n int, err error) {
	source, ok := from.(*pipe)
	if !ok {
		return 0, syscall.EINVAL
	}
	raw, err := p.SyscallConn()
	if err != nil {
		return 0, err
	}
	down := raw.Write(func(fd uintptr) bool {
		n, err = splice(source.r, int(fd), size)
		return err != syscall.EAGAIN
	})
	if err = errors.Join(down, err); err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

var (
	_ rpc.Piped    = (*localConn)(nil)
	_ rpc.PipePort = (*port)(nil)
)
