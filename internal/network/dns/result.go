package dns

import (
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

const (
	// longestTTL bounds what upstreams say, and keeps the pins of the policy from living for ever.
	longestTTL = 24 * 60 * 60
	// longestNegativeTTL is within what RFC 2308 section 5 found to work well.
	longestNegativeTTL = 60 * 60
	// longestChain is how many aliases are followed.
	longestChain = 16
)

// key is what answers are kept and shared by. Everything else of a query does not change the question that goes out.
type key struct {
	name string
	kind uint16
}

// result is an upstream's answer, reduced to what belongs to the question. It is kept packed: that is small, its size is
// known, and each reader unpacks records of its own to count down. It does not change.
type result struct {
	packed           []byte
	fetched, expires time.Time
}

// newResult takes from a message the aliases from the question's name on, the records of the type at their end, and for a
// negative answer the SOA record. All else, additional records first of all, an upstream, or an attacker in its place,
// could use to answer what was not asked.
func newResult(m *dns.Msg, k key, now time.Time) (*result, error) {
	clean := dns.Msg{Compress: true}
	clean.Rcode = m.Rcode
	owner, err := follow(&clean, m.Answer, k)
	if err != nil {
		return nil, err
	}
	if m.Rcode == dns.RcodeSuccess {
		appendRecords(&clean, m.Answer, owner, k.kind)
	}
	ttl := lowest(clean.Answer)
	if len(clean.Answer) == 0 || m.Rcode == dns.RcodeNameError || onlyAliases(clean.Answer, k.kind) {
		ttl = min(ttl, appendSOA(&clean, m.Ns, owner))
	}
	packed, err := clean.Pack()
	if err != nil {
		return nil, fmt.Errorf("the answer cannot be packed again: %w", err)
	}
	return &result{packed: packed, fetched: now, expires: now.Add(time.Duration(ttl) * time.Second)}, nil
}

// follow appends the chain of aliases and returns the name at its end.
func follow(clean *dns.Msg, records []dns.RR, k key) (owner string, err error) {
	owner = k.name
	if k.kind == dns.TypeCNAME {
		return owner, nil
	}
	for range longestChain {
		alias := aliasOf(records, owner)
		if alias == nil {
			return owner, nil
		}
		if !isPlain(alias.Target) {
			return "", errors.New("an alias in the answer has bytes that no host name has")
		}
		alias.Hdr.Ttl = min(alias.Hdr.Ttl, longestTTL)
		clean.Answer = append(clean.Answer, alias)
		owner = plainName(alias.Target)
	}
	return "", fmt.Errorf("the answer has more than %d aliases, or they go in a circle", longestChain)
}

func aliasOf(records []dns.RR, owner string) *dns.CNAME {
	for _, rr := range records {
		if alias, ok := rr.(*dns.CNAME); ok && belongs(rr, owner) {
			return alias
		}
	}
	return nil
}

// belongs says that a record is of owner, in class IN, and has data. A record without is a construct of dynamic updates (RFC
// 2136), and the library takes it for a record of its type.
func belongs(rr dns.RR, owner string) bool {
	h := rr.Header()
	return h.Class == dns.ClassINET && h.Rdlength > 0 && plainName(h.Name) == owner
}

func appendRecords(clean *dns.Msg, records []dns.RR, owner string, kind uint16) {
	for _, rr := range records {
		h := rr.Header()
		if h.Rrtype != kind || !belongs(rr, owner) {
			continue
		}
		h.Ttl = min(h.Ttl, longestTTL)
		clean.Answer = append(clean.Answer, rr)
	}
}

// appendSOA adds the record that makes a negative answer cacheable and returns for how many seconds (RFC 2308 section 5), 0
// when there is none.
func appendSOA(clean *dns.Msg, records []dns.RR, owner string) uint32 {
	for _, rr := range records {
		soa, ok := rr.(*dns.SOA)
		if !ok || !isPlain(soa.Hdr.Name) || !isBelow(owner, plainName(soa.Hdr.Name)) || !belongs(rr, plainName(soa.Hdr.Name)) {
			continue
		}
		soa.Hdr.Ttl = min(soa.Hdr.Ttl, soa.Minttl, longestNegativeTTL)
		clean.Ns = append(clean.Ns, soa)
		return soa.Hdr.Ttl
	}
	return 0
}

func onlyAliases(records []dns.RR, kind uint16) bool {
	return kind != dns.TypeCNAME && records[len(records)-1].Header().Rrtype == dns.TypeCNAME
}

func lowest(records []dns.RR) uint32 {
	ttl := uint32(longestTTL)
	for _, rr := range records {
		ttl = min(ttl, rr.Header().Ttl)
	}
	return ttl
}

// unpack returns the message with the TTLs that are left at a time.
func (r *result) unpack(now time.Time) (*dns.Msg, error) {
	m := new(dns.Msg)
	if err := m.Unpack(r.packed); err != nil {
		return nil, fmt.Errorf("unpack a kept answer: %w", err)
	}
	age := uint32(max(0, now.Sub(r.fetched)/time.Second))
	for _, section := range [][]dns.RR{m.Answer, m.Ns} {
		for _, rr := range section {
			h := rr.Header()
			h.Ttl -= min(h.Ttl, age)
		}
	}
	return m, nil
}
