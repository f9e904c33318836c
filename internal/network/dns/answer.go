package dns

import (
	"fmt"
	"strings"

	"github.com/miekg/dns"
)

// largestText bounds the text of an extended error and of a report: both can quote the guest and upstreams.
const largestText = 240

// answer is what a query gets, before it is packed.
type answer struct {
	rcode         int
	records       []dns.RR
	authority     []dns.RR
	authoritative bool
	reason        uint16 // RFC 8914 code, when text is not empty
	text          string
	problem       error // why there is no answer: a denial or a failure
}

// refusal is a denial that this package decides.
type refusal string

func (r refusal) Error() string { return string(r) }

// Denied marks the error as a decision, not a failure.
func (r refusal) Denied() bool { return true }

// refusals are a refusal of several queries.
type refusals struct {
	refusal
	queries int
}

// Count is how many queries were refused.
func (r refusals) Count() int { return r.queries }

const (
	errRate      = refusal("more DNS queries a second than this VM may ask")
	errOddName   = refusal("the name has bytes that no host name has")
	errType      = refusal("records of this type are not looked up")
	errAddresses = refusal("more addresses than one reply may have")
)

// refuse is the answer to a question that must not be asked. See the package comment for the choice of NXDOMAIN.
func refuse(err error) answer {
	return answer{rcode: dns.RcodeNameError, reason: dns.ExtendedErrorCodeBlocked, text: err.Error(), problem: err}
}

// failure is the answer when no upstream gave one.
func failure(err error) answer {
	return answer{rcode: dns.RcodeServerFailure, reason: dns.ExtendedErrorCodeNetworkError, text: err.Error(), problem: err}
}

// opt is the OPT record of a reply. The extended RCODE's upper bits are set by Pack.
func (a answer) opt() *dns.OPT {
	opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
	opt.SetUDPSize(datagramSize)
	if a.text != "" {
		opt.Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: a.reason, ExtraText: clip(a.text)}}
	}
	return opt
}

// String is the answer in a line, for reports.
func (a answer) String() string {
	text := dns.RcodeToString[a.rcode]
	switch {
	case a.rcode == dns.RcodeSuccess && len(a.records) == 0:
		text = "NODATA"
	case a.rcode == dns.RcodeSuccess:
		text = describe(a.records)
	}
	if a.text != "" {
		text += ": " + a.text
	}
	return clip(text)
}

// describe lists the first addresses, and counts other records.
func describe(records []dns.RR) string {
	const most = 4
	var words []string
	addresses, others := 0, 0
	for _, rr := range records {
		if addr, ok := addressOf(rr); ok {
			if addresses++; addresses <= most {
				words = append(words, addr.String())
			}
		} else if rr.Header().Rrtype != dns.TypeCNAME || len(records) == 1 {
			others++
		}
	}
	if addresses > most {
		words = append(words, fmt.Sprintf("and %d more", addresses-most))
	}
	if others > 0 {
		words = append(words, fmt.Sprintf("%d %s", others, dns.TypeToString[records[len(records)-1].Header().Rrtype]))
	}
	return strings.Join(words, " ")
}

// clip turns text into one line of valid UTF-8, for fields that other programs show.
func clip(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) <= largestText {
		return text
	}
	return strings.ToValidUTF8(text[:largestText-3], "") + "..."
}
