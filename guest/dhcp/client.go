package dhcp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
)

// Forever is the length of a lease that does not end, 2^32-1 s on the wire.
const Forever = (1<<32 - 1) * time.Second

// shortest is the shortest lease that is believed, so that no server can make a client work without a pause.
const shortest = time.Minute

const (
	serverPort = 67
	firstWait  = 100 * time.Millisecond // then twice as long each time
)

// Lease is what a server grants to a client, and what it says about the network.
type Lease struct {
	Address   netip.Prefix // the client's address and the length of its subnet's prefix
	Broadcast netip.Addr   // invalid: not told
	Server    netip.Addr
	Routers   []netip.Addr // best first
	DNS       []netip.Addr
	Search    []string // domains, made of letters, digits, '-', '_' and '.'
	MTU       int      // 0: not told
	Duration  time.Duration
	Renew     time.Duration // from its begin: when to ask the server to extend it
	Rebind    time.Duration // from its begin: when to ask any server
}

// Link carries datagrams between port 68 of one network card and servers.
type Link interface {
	// Send sends b to an address that may be the broadcast address.
	Send(b []byte, to netip.AddrPort) error
	// Receive waits for a datagram until the given time; then its error is os.ErrDeadlineExceeded.
	Receive(b []byte, until time.Time) (int, error)
}

// Client asks for leases. All fields are to be set.
type Client struct {
	Link  Link
	MAC   [6]byte
	Nonce func() uint32 // a random number for each exchange
}

// broadcast reaches every server of the link.
var broadcast = netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), serverPort)

// errNak is a server's refusal of an address.
var errNak = errors.New("the server refuses the address")

// Acquire gets a lease within limit. Questions are repeated after 0.1, 0.2, 0.4 s and so on.
//
//	DISCOVER ─► OFFER ─► REQUEST ─► ACK      (RFC 2131 section 3.1)
//	    │                    └────► NAK ─► from the beginning, once
//	    └─────► ACK with rapid commit        (RFC 4039)
func (c *Client) Acquire(limit time.Duration) (Lease, error) {
	deadline := time.Now().Add(limit)
	lease, err := c.acquire(deadline)
	if errors.Is(err, errNak) {
		lease, err = c.acquire(deadline)
	}
	if err != nil {
		return Lease{}, fmt.Errorf("DHCP: %w", err)
	}
	return lease, nil
}

func (c *Client) acquire(deadline time.Time) (Lease, error) {
	discover := message{kind: typeDiscover, xid: c.Nonce(), mac: c.MAC}
	r, err := c.ask(discover, broadcast, deadline)
	if err != nil {
		return Lease{}, err
	}
	offer, err := r.lease()
	if err != nil || r.kind == typeAck {
		return offer, err
	}
	request := message{kind: typeRequest, xid: discover.xid, mac: c.MAC, request: r.address, server: offer.Server}
	if r, err = c.ask(request, broadcast, deadline); err != nil {
		return Lease{}, err
	}
	return r.lease()
}

// Extend asks for the lease once more, within limit: its own server or, when rebind is set, any.
func (c *Client) Extend(l Lease, rebind bool, limit time.Duration) (Lease, error) {
	to := netip.AddrPortFrom(l.Server, serverPort)
	if rebind {
		to = broadcast
	}
	r, err := c.ask(message{kind: typeRequest, xid: c.Nonce(), mac: c.MAC, current: l.Address.Addr()}, to, time.Now().Add(limit))
	if err != nil {
		return Lease{}, fmt.Errorf("DHCP renewal: %w", err)
	}
	return r.lease()
}

// ask sends m again and again until it is answered or deadline has passed. A card that is only just up may refuse to send.
func (c *Client) ask(m message, to netip.AddrPort, deadline time.Time) (reply, error) {
	b := m.encode()
	for wait := firstWait; ; wait *= 2 {
		refused := c.Link.Send(b, to)
		until := time.Now().Add(wait)
		if until.After(deadline) {
			until = deadline
		}
		r, err := c.await(m, until)
		switch {
		case err == nil || !errors.Is(err, os.ErrDeadlineExceeded):
			return r, err
		case !time.Now().Before(deadline) && refused != nil:
			return reply{}, refused
		case !time.Now().Before(deadline):
			return reply{}, fmt.Errorf("no answer from a server: %w", err)
		}
	}
}

// await reads datagrams until one answers m; others, which are none of this client's, are skipped.
func (c *Client) await(m message, until time.Time) (reply, error) {
	var b [maxSize]byte
	for {
		n, err := c.Link.Receive(b[:], until)
		if err != nil {
			return reply{}, err
		}
		r, err := parseReply(append([]byte(nil), b[:n]...), m.xid, c.MAC)
		if err != nil {
			continue
		}
		switch {
		case r.kind == typeNak && m.kind == typeRequest:
			return reply{}, errNak
		case r.answers(m):
			return r, nil
		}
	}
}

// answers says that r is what m asked for, with all that a lease needs.
func (r reply) answers(m message) bool {
	_, rapid := r.options[optionRapid]
	if m.kind == typeDiscover && r.kind != typeOffer && (r.kind != typeAck || !rapid) || m.kind == typeRequest && r.kind != typeAck {
		return false
	}
	l, err := r.lease()
	return err == nil && (!m.server.IsValid() || l.Server == m.server)
}
