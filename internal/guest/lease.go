//go:build linux

package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/guest/netlink"
)

// Options of DHCP (RFC 2132) that askLease reads and writes, and its kinds of messages.
const (
	dhcpMask, dhcpRouters, dhcpServers, dhcpDomain, dhcpMTU = 1, 3, 6, 15, 26
	dhcpRequested, dhcpKind, dhcpServer, dhcpWants, dhcpEnd = 50, 53, 54, 55, 255

	dhcpDiscover, dhcpOffer, dhcpRequest, dhcpAck = 1, 2, 3, 5

	dhcpFixed = 240 // bytes before the options, the cookie included
	dhcpWait  = 20 * time.Second
)

var dhcpCookie = []byte{99, 130, 83, 99}

// lease is what a server gave.
type lease struct {
	kind   byte
	server []byte // its identifier
	guestrpc.NetworkParams
}

// askLease gets the parameters of a card that is switched on, by DHCP (RFC 2131). The lease is not renewed: a standalone machine runs one command.
func askLease(device string) (*guestrpc.NetworkParams, error) {
	card, err := linkOf(device)
	if err != nil {
		return nil, err
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(fd) }()
	err = errors.Join(
		syscall.BindToDevice(fd, device), // there is no route yet
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_BROADCAST, 1),
		syscall.Bind(fd, &syscall.SockaddrInet4{Port: 68}),
	)
	if err != nil {
		return nil, err
	}
	var transaction [4]byte
	if _, err := unix.Getrandom(transaction[:], 0); err != nil {
		return nil, os.NewSyscallError("getrandom", err)
	}
	asking := leaseRequest(card.MAC, transaction, nil)
	offered := false
	buffer := make([]byte, 1500)
	wait := 100 * time.Millisecond
	for end := time.Now().Add(dhcpWait); time.Now().Before(end); wait *= 2 {
		if err := syscall.Sendto(fd, asking, 0, &syscall.SockaddrInet4{Port: 67, Addr: [4]byte{255, 255, 255, 255}}); err != nil {
			return nil, fmt.Errorf("ask for an address: %w", err)
		}
		for until := time.Now().Add(wait); ; {
			left := unix.NsecToTimeval(int64(time.Until(until)))
			if left.Sec < 0 || left.Sec == 0 && left.Usec <= 0 {
				break
			}
			if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &left); err != nil {
				return nil, err
			}
			n, _, err := syscall.Recvfrom(fd, buffer, 0)
			if err != nil {
				continue // the time is over, or a signal came
			}
			l, ok := parseLease(buffer[:n], card.MAC, transaction)
			switch {
			case ok && l.kind == dhcpAck && offered:
				l.Device, l.MTU = device, min(l.MTU, card.MTU)
				return &l.NetworkParams, nil
			case ok && l.kind == dhcpOffer && !offered:
				offered, asking, wait = true, leaseRequest(card.MAC, transaction, &l), 50*time.Millisecond
				until = time.Now()
			}
		}
	}
	return nil, fmt.Errorf("no DHCP server answers within %v", dhcpWait)
}

func linkOf(device string) (netlink.Link, error) {
	router, err := netlink.DialRouter()
	if err != nil {
		return netlink.Link{}, err
	}
	defer func() { _ = router.Close() }()
	return router.Link(device)
}

// leaseRequest is what asks for any address, or for the one that was offered. The answer is to come by broadcast, for the card has no address.
func leaseRequest(mac [6]byte, transaction [4]byte, offer *lease) []byte {
	b := make([]byte, dhcpFixed, dhcpFixed+64)
	b[0], b[1], b[2] = 1, 1, 6 // a request of Ethernet's addresses of 6 bytes
	copy(b[4:], transaction[:])
	b[10] = 0x80
	copy(b[28:], mac[:])
	copy(b[dhcpFixed-len(dhcpCookie):], dhcpCookie)
	if offer == nil {
		b = append(b, dhcpKind, 1, dhcpDiscover)
	} else {
		b = append(append(b, dhcpKind, 1, dhcpRequest, dhcpRequested, 4), offer.Address.Addr().AsSlice()...)
		b = append(append(b, dhcpServer, byte(len(offer.server))), offer.server...)
	}
	return append(b, dhcpWants, 5, dhcpMask, dhcpRouters, dhcpServers, dhcpDomain, dhcpMTU, dhcpEnd)
}

// parseLease reads an answer; false: it is none to this transaction, or is damaged.
func parseLease(b []byte, mac [6]byte, transaction [4]byte) (l lease, ok bool) {
	if len(b) < dhcpFixed || b[0] != 2 || !bytes.Equal(b[4:8], transaction[:]) || !bytes.Equal(b[28:34], mac[:]) || !bytes.Equal(b[dhcpFixed-4:dhcpFixed], dhcpCookie) {
		return l, false
	}
	address, bits := netip.AddrFrom4([4]byte(b[16:20])), 24
	for rest := b[dhcpFixed:]; len(rest) > 0 && rest[0] != dhcpEnd; {
		if rest[0] == 0 { // a filling
			rest = rest[1:]
			continue
		}
		if len(rest) < 2 || len(rest) < 2+int(rest[1]) {
			return l, false
		}
		value := rest[2:][:rest[1]]
		switch rest[0] {
		case dhcpKind:
			if len(value) == 1 {
				l.kind = value[0]
			}
		case dhcpServer:
			l.server = slices.Clone(value)
		case dhcpMask:
			if len(value) == 4 {
				mask := ^binary.BigEndian.Uint32(value)
				for bits = 32; mask != 0; mask >>= 1 {
					bits--
				}
			}
		case dhcpRouters:
			if len(value) >= 4 {
				l.Gateway = netip.AddrFrom4([4]byte(value))
			}
		case dhcpServers:
			for server := range slices.Chunk(value, 4) {
				if len(server) == 4 {
					l.DNS = append(l.DNS, netip.AddrFrom4([4]byte(server)))
				}
			}
		case dhcpDomain:
			l.Search = strings.Fields(strings.TrimRight(string(value), "\x00"))
		case dhcpMTU:
			if len(value) == 2 {
				l.MTU = int(binary.BigEndian.Uint16(value))
			}
		}
		rest = rest[2+len(value):]
	}
	l.Address = netip.PrefixFrom(address, bits)
	return l, !address.IsUnspecified()
}
