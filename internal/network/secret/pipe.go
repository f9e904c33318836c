package secret

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// pipe is one end of a connection within this process whose directions can be closed one by one.
type pipe struct {
	net.Conn                       // what is read
	out      net.Conn              // what is written
	upstream net.Conn              // of the end that is the NAT's: addresses, and what Reset resets
	failure  atomic.Pointer[error] // of upstream, for the NAT's end
}

func newPipe(upstream net.Conn) (near, far *pipe) {
	nearIn, farOut := net.Pipe()
	farIn, nearOut := net.Pipe()
	return &pipe{Conn: nearIn, out: nearOut, upstream: upstream}, &pipe{Conn: farIn, out: farOut, upstream: upstream}
}

// Read returns why the connection to the host has ended, if that was a failure.
func (p *pipe) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	return n, p.reason(err)
}

func (p *pipe) Write(b []byte) (int, error) {
	n, err := p.out.Write(b)
	return n, p.reason(err)
}

func (p *pipe) reason(err error) error {
	if failure := p.failure.Load(); failure != nil && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe)) {
		return *failure
	}
	return err
}

func (p *pipe) CloseWrite() error { return p.out.Close() }

func (p *pipe) Close() error {
	_, _ = p.Conn.Close(), p.out.Close() // a net.Pipe's cannot fail
	return nil
}

// Reset ends the connection to the host as well, by RST.
func (p *pipe) Reset() error {
	if abort, ok := p.upstream.(interface{ Reset() error }); ok {
		return errors.Join(abort.Reset(), p.Close())
	}
	return errors.Join(p.upstream.Close(), p.Close())
}

func (p *pipe) SetDeadline(t time.Time) error {
	return errors.Join(p.Conn.SetReadDeadline(t), p.out.SetWriteDeadline(t))
}
func (p *pipe) SetWriteDeadline(t time.Time) error { return p.out.SetWriteDeadline(t) }
func (p *pipe) LocalAddr() net.Addr                { return p.upstream.LocalAddr() }
func (p *pipe) RemoteAddr() net.Addr               { return p.upstream.RemoteAddr() }

// noting is the connection to a host. It tells the guest's end why it has failed.
type noting struct {
	net.Conn
	of *pipe
}

func (n *noting) Read(b []byte) (int, error) {
	done, err := n.Conn.Read(b)
	return done, n.note(err)
}

func (n *noting) Write(b []byte) (int, error) {
	done, err := n.Conn.Write(b)
	return done, n.note(err)
}

func (n *noting) note(err error) error {
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
		n.of.failure.CompareAndSwap(nil, &err)
	}
	return err
}

func (n *noting) CloseWrite() error { return closeWrite(n.Conn) }
