package vmnet

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"agentvm/internal/host/errno"
)

// A frame has its kind and its length, in four bytes, before it.
const (
	kindData = 0
	kindEnd  = 1

	frameHeader = 4
	maxFrame    = 256 << 10
	maxDatagram = 64 << 10
	maxHeader   = 1 << 10
	readBuffer  = 64 << 10
	sendBuffer  = 1 << 20 // of the socket, as far as the system lets it be
)

// header is the first message of a connection.
type header struct {
	Key      string         `json:"key"`
	Protocol string         `json:"protocol"` // tcp, udp or icmp
	From     netip.AddrPort `json:"from"`     // whose address is a member's
	Port     uint16         `json:"port"`
}

// stream carries a TCP connection of guests, or the datagrams of one pair of sockets, of which each is a Write and a Read.
type stream struct {
	net.Conn  // a *net.UnixConn, and not embedded as such: package net would write past the frames
	from, to  net.Addr
	datagrams bool
	in        *bufio.Reader
	rest      int // of the frame that is being read
	ended     bool

	writing sync.Mutex // held for a frame, so that frames are written whole
}

func newStream(conn *net.UnixConn, protocol string, local, remote netip.AddrPort) *stream {
	if conn != nil {
		_ = conn.SetWriteBuffer(sendBuffer) // which only makes it faster
	}
	s := &stream{Conn: conn, datagrams: protocol == "udp", in: bufio.NewReaderSize(conn, readBuffer)}
	s.from, s.to = net.TCPAddrFromAddrPort(local), net.TCPAddrFromAddrPort(remote)
	if s.datagrams {
		s.from, s.to = net.UDPAddrFromAddrPort(local), net.UDPAddrFromAddrPort(remote)
	}
	return s
}

func (s *stream) LocalAddr() net.Addr  { return s.from }
func (s *stream) RemoteAddr() net.Addr { return s.to }

// Read reads from a chunk, or one datagram, of which the end is lost when p is too short.
func (s *stream) Read(p []byte) (int, error) {
	if s.ended {
		return 0, io.EOF
	}
	if s.rest == 0 {
		if err := s.next(); err != nil || len(p) == 0 || s.rest == 0 {
			return 0, err
		}
	}
	if !s.datagrams {
		n, err := s.in.Read(p[:min(len(p), s.rest)])
		s.rest -= n
		return n, s.broken(err)
	}
	n, err := io.ReadFull(s.in, p[:min(len(p), s.rest)])
	if err == nil {
		_, err = s.in.Discard(s.rest - n)
		s.rest = 0
	}
	return n, s.broken(err)
}

// next reads the beginning of a frame.
func (s *stream) next() error {
	var h [frameHeader]byte
	if _, err := io.ReadFull(s.in, h[:]); err != nil {
		return s.broken(err)
	}
	n := binary.BigEndian.Uint32(h[:])
	switch kind, size := n>>24, int(n&0xffffff); {
	case kind == kindEnd && size == 0:
		s.ended = true
		return io.EOF
	case kind != kindData || size > maxFrame || s.datagrams && size > maxDatagram || size == 0 && !s.datagrams:
		return errors.New("a frame from another VM's process is malformed")
	default:
		s.rest = size
		return nil
	}
}

// broken is the error of a connection that ended without a frame of kind end: its other end was reset.
func (s *stream) broken(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the other VM's end: %w", errno.ECONNRESET)
	}
	return err
}

// Write writes p in frames.
func (s *stream) Write(p []byte) (int, error) {
	if s.datagrams && len(p) > maxDatagram {
		return 0, errno.EMSGSIZE
	}
	b := net.Buffers{p}
	n, err := s.WriteBuffers(&b)
	return int(n), err
}

// WriteBuffers writes all of b in as few frames as it fits into. A datagram is one buffer.
func (s *stream) WriteBuffers(b *net.Buffers) (written int64, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	for first := true; len(*b) > 0 || first && s.datagrams; first = false {
		frame := net.Buffers{nil}
		size := 0
		for len(*b) > 0 && size < maxFrame {
			p := (*b)[0]
			n := min(len(p), maxFrame-size)
			frame = append(frame, p[:n])
			if size += n; n < len(p) {
				(*b)[0] = p[n:]
			} else {
				*b = (*b)[1:]
			}
		}
		if size == 0 && !s.datagrams {
			continue
		}
		frame[0] = binary.BigEndian.AppendUint32(nil, kindData<<24|uint32(size)) //nolint:gosec // at most maxFrame
		n, err := frame.WriteTo(s.Conn)
		written += max(n-frameHeader, 0)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// CloseWrite says that nothing more comes.
func (s *stream) CloseWrite() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, err := s.Conn.Write([]byte{kindEnd, 0, 0, 0})
	return err
}

// Reset closes the connection so that the other end sees a reset.
func (s *stream) Reset() error { return s.Close() }

// sendMessage and receiveMessage are for what comes before the stream.
func (s *stream) sendMessage(v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		_, err = s.Write(text)
	}
	return err
}

func (s *stream) receiveMessage(v any) error {
	if err := s.next(); err != nil {
		return err
	}
	if s.rest > maxHeader {
		return errors.New("a message from another VM's process is too long")
	}
	text := make([]byte, s.rest)
	if _, err := io.ReadFull(s.in, text); err != nil {
		return s.broken(err)
	}
	s.rest = 0
	return json.Unmarshal(text, v)
}
