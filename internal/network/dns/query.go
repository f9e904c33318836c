package dns

import (
	"encoding/binary"
	"strings"

	"github.com/miekg/dns"
)

const (
	headerLength = 12
	// largestQuery is far more than a question with an OPT record and its options needs. It bounds the work of parsing.
	largestQuery = 4096
	// datagramSize is the most that is sent in a datagram, and what upstreams learn: it fits into any link's MTU (the "DNS
	// flag day 2020" figure).
	datagramSize = 1232
)

// query is a guest's message, checked.
type query struct {
	header   dns.MsgHdr
	question dns.Question // as asked; the reply repeats it. Empty when bad
	name     string       // lower case, without the final dot
	kind     uint16
	edns     bool
	size     int // what the client takes in a datagram
	bad      int // the RCODE for a message that is none we serve, 0 for one that is
}

// parseQuery returns nil for what must not be answered: fragments of a header, and replies, lest two servers talk for ever.
// Of a message that is bad only the header is taken, so that a reply reflects nothing else.
func parseQuery(b []byte) *query {
	if len(b) < headerLength || b[2]&0x80 != 0 {
		return nil
	}
	q := &query{size: dns.MinMsgSize}
	q.header.Id = binary.BigEndian.Uint16(b)
	q.header.Opcode = int(b[2]>>3) & 0xF
	q.header.RecursionDesired = b[2]&1 != 0
	q.header.CheckingDisabled = b[3]&0x10 != 0
	if q.header.Opcode != dns.OpcodeQuery {
		q.bad = dns.RcodeNotImplemented
		return q
	}
	q.bad = q.parseBody(b)
	if q.bad != dns.RcodeSuccess {
		q.question = dns.Question{}
	}
	return q
}

// parseBody returns the RCODE for what is wrong.
func (q *query) parseBody(b []byte) int {
	count := func(section int) int { return int(binary.BigEndian.Uint16(b[4+2*section:])) }
	// A query has one question, and besides it at most an OPT record and perhaps a signature, which cannot be checked here.
	if len(b) > largestQuery || count(0) != 1 || count(1) != 0 || count(2) != 0 || count(3) > 2 {
		return dns.RcodeFormatError
	}
	var m dns.Msg
	if m.Unpack(b) != nil || len(m.Question) != 1 {
		return dns.RcodeFormatError
	}
	if rcode := q.parseOPT(m.Extra); rcode != dns.RcodeSuccess {
		return rcode
	}
	q.question = m.Question[0]
	if q.question.Qclass != dns.ClassINET {
		return dns.RcodeNotImplemented
	}
	q.name, q.kind = plainName(q.question.Name), q.question.Qtype
	return dns.RcodeSuccess
}

// parseOPT follows RFC 6891 sections 6.1.1 and 6.1.3.
func (q *query) parseOPT(extra []dns.RR) int {
	for _, rr := range extra {
		opt, ok := rr.(*dns.OPT)
		if !ok {
			continue
		}
		if q.edns {
			return dns.RcodeFormatError
		}
		q.edns = true
		q.size = max(q.size, int(opt.UDPSize()))
		if opt.Version() != 0 {
			return dns.RcodeBadVers
		}
	}
	return dns.RcodeSuccess
}

// pack makes the reply's bytes.
func (q *query) pack(a answer, datagram bool) []byte {
	m := dns.Msg{MsgHdr: q.header, Answer: a.records, Ns: a.authority}
	m.Response, m.RecursionAvailable, m.Authoritative, m.Rcode = true, true, a.authoritative, a.rcode
	if q.question.Name != "" {
		m.Question = []dns.Question{q.question}
	}
	if q.edns {
		m.Extra = []dns.RR{a.opt()}
	}
	size := dns.MaxMsgSize
	if datagram {
		size = min(q.size, datagramSize)
	}
	m.Compress = true
	m.Truncate(size) // sets TC when it leaves something out
	b, err := m.Pack()
	if err == nil && len(b) <= size {
		return b
	}
	m = dns.Msg{MsgHdr: m.MsgHdr}
	m.Rcode = dns.RcodeServerFailure
	b, err = m.Pack()
	if err != nil {
		return nil // cannot happen: a header has a fixed form
	}
	return b
}

// plainName is the form of names in this package and for the policy: lower case, no final dot, the root is ".".
func plainName(name string) string {
	if name == "." {
		return name
	}
	return strings.ToLower(strings.TrimSuffix(name, "."))
}

// isPlain says that a name in presentation form has no escapes: a dot or another odd byte inside of a label could be read
// as something else by a policy or a program in the guest that compares names as text.
func isPlain(name string) bool { return !strings.ContainsRune(name, '\\') }

// isBelow says whether name is domain or below it. Both are plain.
func isBelow(name, domain string) bool {
	if domain == "." {
		return true
	}
	prefix, ok := strings.CutSuffix(name, domain)
	return ok && (prefix == "" || strings.HasSuffix(prefix, "."))
}
