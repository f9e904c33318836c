//go:build linux

// Package netlink sends requests to the kernel over a netlink socket. It has as much of the protocol (linux/netlink.h) as the
// supervisor needs to configure a network card and to list sockets.
//
// A Conn belongs to one goroutine. Requests are answered in turn; an answer that does not come within a second is an error.
// It does not subscribe to groups, and sends only what its callers have built.
package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// answerTimeout bounds, in seconds, the wait for a part of an answer. The kernel answers before the request's system call returns.
const answerTimeout = 1

// maxMessages bounds a dump, so that it ends whatever the kernel sends.
const maxMessages = 1 << 20

// Message is one message's payload; it is valid until the next one is received.
type Message struct {
	Type uint16
	Body []byte
}

// Conn is a netlink socket.
type Conn struct {
	fd       int
	sequence uint32
	buffer   [32 << 10]byte // the kernel fills at most this much of a dump at once
}

// Dial opens a socket of a netlink family, such as unix.NETLINK_ROUTE.
func Dial(family int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerTimeout}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return &Conn{fd: fd}, nil
}

// Close frees the socket.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Do sends a request and waits until the kernel has done it. Refusals are errnos.
func (c *Conn) Do(kind, flags uint16, body []byte) error {
	return c.exchange(kind, flags|unix.NLM_F_ACK, body, func(Message) error { return nil })
}

// Get sends a request and passes what answers it to each: one message, or all of a dump when flags has unix.NLM_F_DUMP.
// An error of each ends it and is returned.
func (c *Conn) Get(kind, flags uint16, body []byte, each func(Message) error) error {
	if flags&unix.NLM_F_DUMP == 0 {
		flags |= unix.NLM_F_ACK // so that the answer has an end
	}
	return c.exchange(kind, flags, body, each)
}

func (c *Conn) exchange(kind, flags uint16, body []byte, each func(Message) error) error {
	c.sequence++
	request := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+len(body))
	binary.NativeEndian.PutUint32(request, uint32(unix.NLMSG_HDRLEN+len(body)))
	binary.NativeEndian.PutUint16(request[4:], kind)
	binary.NativeEndian.PutUint16(request[6:], flags|unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(request[8:], c.sequence)
	if err := unix.Send(c.fd, append(request, body...), 0); err != nil {
		return fmt.Errorf("netlink request: %w", err)
	}
	for seen := 0; seen < maxMessages; {
		n, _, err := unix.Recvfrom(c.fd, c.buffer[:], 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("netlink answer: %w", err)
		}
		done, err := answer(c.buffer[:n], c.sequence, each, &seen)
		if done || err != nil {
			return err
		}
	}
	return errors.New("netlink answer without an end")
}

// answer reads one datagram; done reports that nothing follows. Messages of earlier requests are skipped.
func answer(b []byte, sequence uint32, each func(Message) error, seen *int) (done bool, err error) {
	for len(b) > 0 {
		var m Message
		var of uint32
		if m, of, b, err = split(b); err != nil {
			return true, err
		}
		*seen++
		if of != sequence {
			continue
		}
		switch m.Type {
		case unix.NLMSG_NOOP:
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			return true, outcome(m.Body)
		default:
			if err := each(m); err != nil {
				return true, err
			}
		}
	}
	return false, nil
}

// outcome reads the number that ends an answer: 0 or a negative errno.
func outcome(body []byte) error {
	if len(body) < 4 {
		return nil // an old kernel's end of a dump
	}
	if n := int32(binary.NativeEndian.Uint32(body)); n < 0 {
		return syscall.Errno(-n)
	}
	return nil
}

var errShort = errors.New("netlink message is cut off")

// split takes the first message off b. Lengths are in the header, and what follows begins at a multiple of 4.
func split(b []byte) (m Message, sequence uint32, rest []byte, err error) {
	if len(b) < unix.NLMSG_HDRLEN {
		return m, 0, nil, errShort
	}
	size := binary.NativeEndian.Uint32(b)
	if size < unix.NLMSG_HDRLEN || uint64(size) > uint64(len(b)) {
		return m, 0, nil, errShort
	}
	m = Message{Type: binary.NativeEndian.Uint16(b[4:]), Body: b[unix.NLMSG_HDRLEN:size]}
	return m, binary.NativeEndian.Uint32(b[8:]), b[min(align(int(size)), len(b)):], nil
}

func align(n int) int { return (n + 3) &^ 3 }

// AppendAttribute adds an attribute to a request's body, whose length is a multiple of 4 and stays one.
func AppendAttribute(b []byte, kind uint16, value []byte) []byte {
	size := unix.SizeofRtAttr + len(value)
	b = binary.NativeEndian.AppendUint16(b, uint16(size))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, align(size)-size)...)
}

// Attribute finds an attribute among those in b; nil when there is none, or before it one that is cut off.
func Attribute(b []byte, kind uint16) []byte {
	for len(b) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:]) == kind {
			return b[unix.SizeofRtAttr:size]
		}
		b = b[min(align(size), len(b)):]
	}
	return nil
}
