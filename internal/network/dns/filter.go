package dns

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// maxAddresses bounds the addresses in a reply: the policy pins each of them.
const maxAddresses = 128

// question says whether a query may be looked up; when not, a is the answer.
func (s *Server) question(q *query) (a answer, ok bool) {
	if !isPlain(q.name) {
		return refuse(errOddName), false
	}
	if a, ok := questionType(q.kind); !ok {
		return a, false
	}
	if err := s.config.Policy.Question(q.name, q.kind); err != nil {
		return refuse(err), false
	}
	return answer{}, true
}

// questionType lets through the types that guests need. Of the others, those that ask for data get "there is none", which
// every client takes for an answer: with NOTIMP or REFUSED some wait for their time-out.
func questionType(kind uint16) (a answer, ok bool) {
	switch kind {
	case dns.TypeA, dns.TypeAAAA, dns.TypeCNAME, dns.TypeMX, dns.TypeTXT, dns.TypeSRV, dns.TypePTR, dns.TypeNS, dns.TypeSOA, dns.TypeCAA:
		return a, true
	case dns.TypeHTTPS, dns.TypeSVCB:
		// Every browser asks for them, so the denial is not reported. Their hints would be addresses (RFC 9460
		// section 7.3), their other parameters lead past this resolver (ECH, DoH).
		return answer{}, false
	}
	a = answer{reason: dns.ExtendedErrorCodeNotSupported, text: errType.Error(), problem: errType}
	if kind == dns.TypeOPT || kind >= 128 && kind <= 255 { // meta-types, RFC 6895 section 3.1: transfers, ANY
		a.rcode = dns.RcodeRefused
	}
	return a, false
}

// filter makes the guest's answer from a result, with the addresses that the policy allows now. When none is left the answer
// has no record at all, not even an alias: an empty answer is final for every client, after a dangling alias some clients ask again.
func (s *Server) filter(q *query, r *result) answer {
	m, err := r.unpack(s.config.Now())
	if err != nil {
		return failure(err)
	}
	a := answer{rcode: m.Rcode, authority: m.Ns}
	var chain []string
	var denied error
	withheld, told := 0, 0
	for _, rr := range m.Answer {
		if alias, ok := rr.(*dns.CNAME); ok {
			chain = append(chain, plainName(alias.Target))
		} else if addr, ok := addressOf(rr); ok {
			if err := s.mayTell(q.name, chain, addr, rr.Header().Ttl, told); err != nil {
				denied = first(denied, err)
				withheld++
				continue
			}
			told++
		}
		a.records = append(a.records, rr)
	}
	if withheld == 0 {
		return a
	}
	s.counts.filtered.Add(uint64(withheld))
	a.reason, a.text = dns.ExtendedErrorCodeFiltered, fmt.Sprintf("%d of %d addresses withheld: %v", withheld, withheld+told, denied)
	if told == 0 {
		s.counts.refused.Add(1)
		a.records, a.authority, a.problem = nil, nil, denied
		a.text = denied.Error()
	}
	return a
}

func (s *Server) mayTell(name string, chain []string, addr netip.Addr, ttl uint32, told int) error {
	if told >= maxAddresses {
		return errAddresses
	}
	return s.config.Policy.Answer(name, chain, addr, time.Duration(ttl)*time.Second)
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// addressOf returns the address of an A or AAAA record. IPv4 inside of an AAAA record stays in that form: it is the policy's
// to look through it.
func addressOf(rr dns.RR) (addr netip.Addr, ok bool) {
	switch rr := rr.(type) {
	case *dns.A:
		return netip.AddrFromSlice(rr.A.To4())
	case *dns.AAAA:
		return netip.AddrFromSlice(rr.AAAA.To16())
	}
	return netip.Addr{}, false
}
