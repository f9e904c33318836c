package dns

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

// TestExchange has what a single server may do to a question.
func TestExchange(t *testing.T) {
	tampered := func(change func(*dns.Msg)) handler {
		return func(network string, q *dns.Msg) *dns.Msg {
			m := answers(network, q)
			change(m)
			return m
		}
	}
	for _, c := range []struct {
		name   string
		handle handler
		want   string // of the reply
		asked  string // networks
	}{
		{"answers", answers, good, "udp"},
		{"truncates", func(network string, q *dns.Msg) *dns.Msg {
			m := answers(network, q)
			m.Truncated = network == "udp"
			return m
		}, good, "udp tcp"},
		{"truncates TCP too", tampered(func(m *dns.Msg) { m.Truncated = true }), "SERVFAIL", "udp tcp"},
		{"does not know EDNS", func(network string, q *dns.Msg) *dns.Msg {
			if q.IsEdns0() != nil {
				return &dns.Msg{MsgHdr: dns.MsgHdr{Id: q.Id, Response: true, Rcode: dns.RcodeFormatError}}
			}
			return answers(network, q)
		}, good, "udp udp"},
		{"never understands", failsWith(dns.RcodeFormatError), "SERVFAIL", "udp udp"},
		{"fails", failsWith(dns.RcodeServerFailure), "SERVFAIL", "udp"},
		{"refuses", failsWith(dns.RcodeRefused), "SERVFAIL", "udp"},
		{"refers to others", func(_ string, q *dns.Msg) *dns.Msg {
			m := reply(q, "ns:com. 60 NS a.gtld-servers.net.")
			m.RecursionAvailable = false
			return m
		}, "SERVFAIL", "udp"},
		{"answers in capitals", tampered(func(m *dns.Msg) { m.Question[0].Name = strings.ToUpper(m.Question[0].Name) }), good, "udp"},
		{"is silent", silent, "SERVFAIL", "udp udp udp udp"},
		{"answers another ID", tampered(func(m *dns.Msg) { m.Id++ }), "SERVFAIL", "udp udp udp udp"},
		{"answers another name", tampered(func(m *dns.Msg) { m.Question[0].Name = "b.example." }), "SERVFAIL", "udp udp udp udp"},
		{"answers another type", tampered(func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAAAA }), "SERVFAIL", "udp udp udp udp"},
		{"answers another class", tampered(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), "SERVFAIL", "udp udp udp udp"},
		{"answers two questions", tampered(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }), "SERVFAIL", "udp udp udp udp"},
		{"answers no question", tampered(func(m *dns.Msg) { m.Question = nil }), "SERVFAIL", "udp udp udp udp"},
		{"asks back", tampered(func(m *dns.Msg) { m.Response = false }), "SERVFAIL", "udp udp udp udp"},
		{"answers without data", func(_ string, q *dns.Msg) *dns.Msg {
			m := reply(q)
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "a.example.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 9}}}
			return m
		}, "NOERROR", "udp"},
		{"answers for another name only", tampered(func(m *dns.Msg) { m.Answer[0].Header().Name = "b.example." }), "NOERROR", "udp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				servers := newPiped(c.handle)
				k := newKit(t, func(config *Config) { config.Dial = dialPipes(servers) }, servers...)
				began := time.Now()
				if got := summary(k.get(t, "a.example", dns.TypeA)); got != c.want {
					t.Errorf("got %s, want %s", got, c.want)
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("it took %v", took)
				}
				var networks []string
				for _, line := range servers[0].asked() {
					network, _, _ := strings.Cut(line, " ")
					networks = append(networks, network)
				}
				if diff := cmp.Diff(c.asked, strings.Join(networks, " ")); diff != "" {
					t.Errorf("asked over (-want +got)\n%s", diff)
				}
			})
		})
	}
}

// TestSpoofedDatagrams: a reply that is found among garbage is the one that counts.
func TestSpoofedDatagrams(t *testing.T) {
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 2000)
		n, from, err := packets.ReadFrom(buffer)
		if err != nil {
			return
		}
		query := new(dns.Msg)
		if query.Unpack(buffer[:n]) != nil {
			return
		}
		for i := range maxStrays - 1 {
			m := reply(query, "a.example. 60 A 6.6.6.6")
			m.Id += uint16(i + 1)
			b, _ := m.Pack()
			switch i % 3 {
			case 0:
				b = b[:min(i, len(b))]
			case 1:
				b = append(b[:12], 0xff)
			}
			packets.WriteTo(b, from)
		}
		b, _ := answers("udp", query).Pack()
		packets.WriteTo(b, from)
	}()
	k := newKit(t, func(c *Config) { c.Upstreams = []netip.AddrPort{packets.LocalAddr().(*net.UDPAddr).AddrPort()} })
	if got := summary(k.get(t, "a.example", dns.TypeA)); got != good {
		t.Errorf("got %s", got)
	}
	packets.Close()
	<-ended
}

// TestQuestionHasNothingOfTheGuests: the name and type only, in lower case, with an ID and a port that change.
func TestQuestionHasNothingOfTheGuests(t *testing.T) {
	seen := make(chan *dns.Msg, 3)
	upstream := newUpstream(t, func(network string, q *dns.Msg) *dns.Msg { seen <- q; return answers(network, q) })
	k := newKit(t, func(c *Config) { patient(c); c.CacheEntries = -1 }, upstream)
	for range 3 {
		k.get(t, "SeCrEt.ExAmPle", dns.TypeA, func(m *dns.Msg) {
			m.SetEdns0(4000, true)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 65001, Data: []byte("smuggled")}, &dns.EDNS0_COOKIE{Code: 10, Cookie: "0011223344556677"}}
			m.CheckingDisabled, m.AuthenticatedData, m.Zero, m.Id = true, true, true, 7
		})
	}
	ids := map[uint16]bool{}
	for range 3 {
		m := <-seen
		ids[m.Id] = true
		want := new(dns.Msg)
		want.SetQuestion("secret.example.", dns.TypeA)
		want.SetEdns0(datagramSize, false)
		want.Id = m.Id
		if diff := cmp.Diff(want.String(), m.String()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	if len(ids) < 2 {
		t.Errorf("IDs %v", ids)
	}
}

// TestCutReply: the records of a truncated reply may end anywhere. They are not read, what counts is the bit.
func TestCutReply(t *testing.T) {
	asked := newQuestion(key{"a.example", dns.TypeA}, true)
	m := answers("udp", asked)
	m.Truncated = true
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	for _, length := range []int{len(b), len(b) - 1, len(b) - 10} {
		if m, err := parseResponse(b[:length], asked); err != nil || !m.Truncated || len(m.Answer) != 0 {
			t.Errorf("%d of %d bytes: %v, %v", length, len(b), m, err)
		}
	}
	if _, err := parseResponse(b[:20], asked); err == nil {
		t.Error("a reply that is cut in its question was accepted")
	}
	b[2] &^= 2
	if _, err := parseResponse(b[:len(b)-1], asked); err == nil {
		t.Error("a cut reply without the bit was accepted")
	}
}

// TestTooManyRecords: a message that announces more records than any answer needs is not parsed.
func TestTooManyRecords(t *testing.T) {
	asked := newQuestion(key{"a.example", dns.TypeA}, true)
	for n, ok := range map[int]bool{maxRecords: true, maxRecords + 1: false} {
		m := reply(asked)
		for range n {
			m.Answer = append(m.Answer, answers("tcp", asked).Answer...)
		}
		m.Compress = true
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseResponse(b, asked); (err == nil) != ok {
			t.Errorf("%d records: %v", n, err)
		}
	}
}
