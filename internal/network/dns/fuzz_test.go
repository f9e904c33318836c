package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// FuzzReply: whatever a guest sends, what it gets is a well-formed reply that fits, to its question or to none.
func FuzzReply(f *testing.F) {
	for _, b := range [][]byte{
		nil, make([]byte, 12), question("agentvm.internal", dns.TypeA), question("example.com", dns.TypeAAAA, withEDNS),
		question("1.0.0.10.in-addr.arpa", dns.TypePTR), question(`\000.\255.`, dns.TypeTXT), question("a.b", dns.TypeHTTPS),
		question("example.com", dns.TypeANY, withEDNS), question(".", dns.TypeNS),
		question("x", dns.TypeA, func(m *dns.Msg) {
			withEDNS(m)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 1, Data: []byte{1}}}
		}),
	} {
		f.Add(b, true)
		f.Add(b, false)
	}
	k := newKit(f, func(c *Config) {
		c.QueriesPerSecond = -1
		c.Upstreams = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}
		c.Dial = func(_ context.Context, network, _ string) (net.Conn, error) {
			if network == "tcp" {
				return nil, errors.New("nothing there")
			}
			return &echoing{}, nil
		}
	})
	f.Fuzz(func(t *testing.T, query []byte, datagram bool) {
		k.policy.asked, k.policy.told = nil, nil
		b := k.Reply(t.Context(), query, datagram)
		if b == nil {
			if len(query) >= headerLength && query[2]&0x80 == 0 {
				t.Error("no reply")
			}
			return
		}
		m := parse(t, b)
		if !m.Response || m.Id != uint16(query[0])<<8|uint16(query[1]) || len(k.policy.asked) != 1 {
			t.Errorf("reply %v, reports %q", m, k.policy.asked)
		}
		if datagram && len(b) > datagramSize {
			t.Errorf("%d bytes in a datagram", len(b))
		}
		if len(m.Question) == 0 && len(m.Answer)+len(m.Ns) > 0 {
			t.Errorf("records without a question: %v", m)
		}
	})
}

// echoing is an upstream that answers each question with the address 93.184.216.34.
type echoing struct {
	net.Conn
	reply []byte
}

func (e *echoing) Write(b []byte) (int, error) {
	query := new(dns.Msg)
	if err := query.Unpack(b); err != nil {
		return 0, err
	}
	m := new(dns.Msg).SetReply(query)
	m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: query.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(93, 184, 216, 34)}}
	var err error
	e.reply, err = m.Pack()
	return len(b), err
}

func (e *echoing) Read(b []byte) (int, error)  { return copy(b, e.reply), nil }
func (e *echoing) Close() error                { return nil }
func (e *echoing) SetDeadline(time.Time) error { return nil }

// FuzzResponse: whatever an upstream answers, what remains belongs to the question, packs, unpacks, and costs no more than a
// message.
func FuzzResponse(f *testing.F) {
	k := key{"www.example.com", dns.TypeA}
	asked := newQuestion(k, true)
	asked.Id = 0x1234
	for _, records := range [][]string{
		{"NXDOMAIN", "ns:example.com. 300 SOA ns.example.com. root.example.com. 1 2 3 4 30"},
		world["www.example.com. A"], {"www.example.com. 1 A 1.2.3.4", "www.example.com. 1 AAAA ::1", "extra:a. 1 A 1.2.3.4"},
		{"www.example.com. 1 CNAME www.example.com."}, {`www.example.com. 1 CNAME a\.b.`}, {"SERVFAIL"},
		{`www.example.com. 1 HTTPS 1 . alpn="h2" ipv4hint="10.0.0.1"`},
	} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeTXT} {
			asked.Question[0].Qtype = kind
			b, err := reply(asked, records...).Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b, kind)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, kind uint16) {
		k := key{"www.example.com", kind}
		asked := newQuestion(k, true)
		asked.Id = 0x1234
		m, err := parseResponse(b, asked)
		if err != nil || checkUsable(m) != nil {
			return
		}
		r, err := newResult(m, k, time.Unix(0, 0))
		if err != nil {
			return
		}
		if len(r.packed) > dns.MaxMsgSize {
			t.Errorf("%d bytes of %d", len(r.packed), len(b))
		}
		clean, err := r.unpack(time.Unix(0, 0))
		if err != nil {
			t.Fatalf("what was packed does not unpack: %v", err)
		}
		owner := k.name
		for _, rr := range clean.Answer {
			if plainName(rr.Header().Name) != owner {
				t.Errorf("a record of %s, not of %s", rr.Header().Name, owner)
			}
			if alias, ok := rr.(*dns.CNAME); ok && kind != dns.TypeCNAME {
				owner = plainName(alias.Target)
			} else if rr.Header().Rrtype != kind {
				t.Errorf("a record of type %d", rr.Header().Rrtype)
			}
		}
		if len(clean.Extra) > 0 || len(clean.Ns) > 1 {
			t.Errorf("other sections: %v", clean)
		}
	})
}
