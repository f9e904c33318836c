//go:build linux

package dhcp

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const clientPort = 68

// Socket is a Link: a UDP socket bound to one network card. Its Receive is woken by Close from another goroutine.
type Socket struct {
	file *os.File
	conn syscall.RawConn
}

// Open binds a socket to the named card, which must be up. Closing it frees it.
//
// It is an ordinary UDP socket: the kernel lets it broadcast from 0.0.0.0, and hands broadcast replies to a card that has no
// address yet. So neither headers nor checksums are ours, and no packet of other programs is looked at.
func Open(device string) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("DHCP: open a socket: %w", err)
	}
	if err := prepare(fd, device); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("DHCP: %w", err)
	}
	s := &Socket{file: os.NewFile(uintptr(fd), "dhcp")}
	if s.conn, err = s.file.SyscallConn(); err != nil {
		_ = s.file.Close()
		return nil, fmt.Errorf("DHCP: %w", err)
	}
	return s, nil
}

func prepare(fd int, device string) error {
	if err := unix.BindToDevice(fd, device); err != nil {
		return fmt.Errorf("bind to %s: %w", device, err)
	}
	for _, option := range []int{unix.SO_BROADCAST, unix.SO_REUSEADDR} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1); err != nil {
			return fmt.Errorf("socket option: %w", err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: clientPort}); err != nil {
		return fmt.Errorf("bind to port %d: %w", clientPort, err)
	}
	return nil
}

// Send does not wait: what does not fit into the socket's buffer is an error.
func (s *Socket) Send(b []byte, to netip.AddrPort) error {
	var err error
	if e := s.conn.Control(func(fd uintptr) {
		err = unix.Sendto(int(fd), b, 0, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	}); e != nil {
		return e
	}
	if err != nil {
		return fmt.Errorf("send to %v: %w", to, err)
	}
	return nil
}

// Receive reads one datagram; what is longer than b is cut.
func (s *Socket) Receive(b []byte, until time.Time) (int, error) {
	if err := s.file.SetReadDeadline(until); err != nil {
		return 0, err
	}
	n, err := s.file.Read(b)
	if errors.Is(err, io.EOF) { // an empty datagram
		err = nil
	}
	return n, err
}

// Close frees the socket.
func (s *Socket) Close() error { return s.file.Close() }
