//go:build linux

package guest

import (
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/capnprpc"
)

// pipe moves bytes from a connection to a console port without a copy: the pages in which the kernel received them go into the pipe,
// and from there into the port's queue.
//
//	TCP socket == splice(2) ==> pipe == splice(2) ==> virtio console ==> the host copies
type pipe struct {
	from syscall.RawConn
	r, w int
}

// pipeSize is a pipe's capacity, in bytes, when each of its pages is full. Pages of sockets are not full, so a send is smaller.
const pipeSize = 256 << 10

// Pipe implements capnprpc.Piped.
func (c *localConn) Pipe() capnprpc.Pipe {
	from, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil
	}
	_, _ = unix.FcntlInt(uintptr(ends[1]), unix.F_SETPIPE_SZ, pipeSize) // a failure leaves the pipe smaller, which works too
	return &pipe{from: from, r: ends[0], w: ends[1]}
}

// Fill implements capnprpc.Pipe. The pipe is empty, so EAGAIN means that the connection has no bytes.
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

// Close implements capnprpc.Pipe.
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

// spliceParameter exists when the kernel's driver takes pages without a copy, and leaves in the pipe what its queue has no room for
// (internal/machine/kernel/copy.patch). Other drivers copy each page, at worst byte by byte, and lose what they have no room for.
const spliceParameter = "/sys/module/virtio_console/parameters/splice_by_reference"

func canSplice() bool {
	_, err := os.Stat(spliceParameter)
	return err == nil
}

// TakesPipes implements capnprpc.PipePort.
func (p *port) TakesPipes() bool { return p.splices }

// WritePipe implements capnprpc.PipePort.
func (p *port) WritePipe(from capnprpc.Pipe, size int) (n int, err error) {
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
	_ capnprpc.Piped    = (*localConn)(nil)
	_ capnprpc.PipePort = (*port)(nil)
)
