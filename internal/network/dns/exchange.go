package dns

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// maxRecords is the most that a message from an upstream may announce. It bounds what parsing costs: 64 KiB of
	// compressed names can unfold to megabytes.
	maxRecords = 512
	// maxStrays is how many datagrams that are not the reply are read past, before waiting is given up.
	maxStrays = 64
)

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// exchange asks one server: by UDP with EDNS, without EDNS when the server does not know it (RFC 6891 section 7), by TCP
// when the answer is too long. Each question has a socket, so also a port, of its own, which stays open until ctx ends: an
// answer counts until then. Whenever again says so, a datagram is sent once more, the same from the same socket.
func exchange(ctx context.Context, dial dialer, address string, k key, again <-chan struct{}) (*dns.Msg, error) {
	m, err := exchangeOnce(ctx, dial, address, k, true, again)
	if err == nil && (m.Rcode == dns.RcodeFormatError || m.Rcode == dns.RcodeNotImplemented) {
		m, err = exchangeOnce(ctx, dial, address, k, false, again)
	}
	if err != nil {
		return nil, err
	}
	return m, checkUsable(m)
}

func exchangeOnce(ctx context.Context, dial dialer, address string, k key, edns bool, again <-chan struct{}) (*dns.Msg, error) {
	m, err := askOver(ctx, dial, "udp", address, newQuestion(k, edns), again, receiveDatagram)
	if err == nil && m.Truncated {
		m, err = askOver(ctx, dial, "tcp", address, newQuestion(k, edns), nil, receiveStream)
	}
	return m, err
}

// checkUsable rejects answers that say nothing about the name, so that another server is asked.
func checkUsable(m *dns.Msg) error {
	switch {
	case m.Truncated:
		return lameError("the answer is truncated over TCP too")
	case m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError:
		return lameError("it answered " + dns.RcodeToString[m.Rcode])
	case !m.RecursionAvailable && m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0 && len(m.Ns) > 0 && m.Ns[0].Header().Rrtype == dns.TypeNS:
		return lameError("it referred to other servers: it is not a recursive server")
	}
	return nil
}

// newQuestion makes a message that has nothing from the guest except a name and a type.
func newQuestion(k key, edns bool) *dns.Msg {
	var id [2]byte
	rand.Read(id[:]) // never fails
	m := new(dns.Msg)
	m.Id = binary.BigEndian.Uint16(id[:])
	m.RecursionDesired = true
	m.Question = []dns.Question{{Name: dns.Fqdn(k.name), Qtype: k.kind, Qclass: dns.ClassINET}}
	if edns {
		m.SetEdns0(datagramSize, false)
	}
	return m
}

type receiver func(conn net.Conn, question *dns.Msg) (*dns.Msg, error)

func askOver(ctx context.Context, dial dialer, network, address string, question *dns.Msg, again <-chan struct{}, receive receiver) (*dns.Msg, error) {
	conn, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	var repeats sync.WaitGroup
	defer repeats.Wait() // after the connection is closed, which ends a blocked Write
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	b, err := question.Pack()
	if err != nil {
		return nil, fmt.Errorf("the question cannot be sent: %w", err)
	}
	if network == "tcp" {
		b = append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
	}
	if _, err := conn.Write(b); err != nil {
		return nil, err
	}
	answered := make(chan struct{})
	defer close(answered)
	repeats.Go(func() { repeat(conn, b, again, answered) })
	return receive(conn, question)
}

// repeat sends b whenever again says so, until answered is closed. A repetition that cannot be sent is one that got lost.
func repeat(conn net.Conn, b []byte, again, answered <-chan struct{}) {
	for {
		select {
		case <-again:
			conn.Write(b)
		case <-answered:
			return
		}
	}
}

// receiveDatagram waits for the reply and reads past others: forged ones may come before the true one.
func receiveDatagram(conn net.Conn, question *dns.Msg) (*dns.Msg, error) {
	buffer := make([]byte, 4096) // some servers send more than the size they were given
	var problem error
	for range maxStrays {
		n, err := conn.Read(buffer)
		if err != nil {
			return nil, err
		}
		m, err := parseResponse(buffer[:n], question)
		if err == nil {
			return m, nil
		}
		problem = err
	}
	return nil, problem
}

func receiveStream(conn net.Conn, question *dns.Msg) (*dns.Msg, error) {
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	buffer := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, buffer); err != nil {
		return nil, err
	}
	return parseResponse(buffer, question)
}

// parseResponse accepts only the reply to a question. Of a truncated one it reads no records: they may be cut anywhere.
func parseResponse(b []byte, question *dns.Msg) (*dns.Msg, error) {
	if len(b) < headerLength || binary.BigEndian.Uint16(b) != question.Id || b[2]&0x80 == 0 || b[2]>>3&0xF != dns.OpcodeQuery {
		return nil, errors.New("a message that is not the reply")
	}
	truncated, rcode := b[2]&2 != 0, int(b[3]&0xF)
	count := func(section int) int { return int(binary.BigEndian.Uint16(b[4+2*section:])) }
	// A server that understands nothing may leave the question out.
	if count(0) == 0 && rcode != dns.RcodeSuccess && rcode != dns.RcodeNameError {
		return &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Rcode: rcode}}, nil
	}
	if count(0) != 1 || count(1)+count(2)+count(3) > maxRecords {
		return nil, errors.New("a reply of too many records")
	}
	if truncated {
		b = append([]byte(nil), b...)
		clear(b[6:headerLength])
	}
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		return nil, fmt.Errorf("a malformed reply: %w", err)
	}
	asked := question.Question[0]
	if len(m.Question) != 1 {
		return nil, errors.New("a reply without its question")
	}
	if got := m.Question[0]; plainName(got.Name) != plainName(asked.Name) || got.Qtype != asked.Qtype || got.Qclass != asked.Qclass {
		return nil, errors.New("a reply to another question")
	}
	return m, nil
}
