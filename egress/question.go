package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// The VM's own names. Its resolver answers them itself and never passes them on.
const (
	HostName    = "host.agentvm.internal" // Config.HostAddrs: the host's opened ports
	GatewayName = "agentvm.internal"      // the gateway
)

func isLocalName(name string) bool { return name == HostName || name == GatewayName }

// DNS types that may be asked for (row N9 of the requirements). All others are refused: they carry nothing that a program in a VM
// waits for, and the rest of the list is a channel with room for anything (NULL, private types, ANY). HTTPS and SVCB (RFC 9460) are
// among the refused, because their address hints would reach the guest without a check; programs fall back to A and AAAA.
const (
	typeA     = 1
	typeNS    = 2
	typeCNAME = 5
	typeSOA   = 6
	typePTR   = 12
	typeMX    = 15
	typeTXT   = 16
	typeAAAA  = 28
	typeSRV   = 33
	typeCAA   = 257
)

func typeAllowed(qtype uint16) bool {
	switch qtype {
	case typeA, typeNS, typeCNAME, typeSOA, typePTR, typeMX, typeTXT, typeAAAA, typeSRV, typeCAA:
		return true
	}
	return false
}

// typeName is a type as people write it; types without a name here are TYPEn (RFC 3597 section 5).
func typeName(qtype uint16) string {
	names := map[uint16]string{
		typeA: "A", typeNS: "NS", typeCNAME: "CNAME", typeSOA: "SOA", typePTR: "PTR", typeMX: "MX", typeTXT: "TXT", typeAAAA: "AAAA",
		typeSRV: "SRV", typeCAA: "CAA", 10: "NULL", 13: "HINFO", 35: "NAPTR", 43: "DS", 48: "DNSKEY", 64: "SVCB", 65: "HTTPS", 251: "IXFR",
		252: "AXFR", 255: "ANY",
	}
	if name := names[qtype]; name != "" {
		return name
	}
	return "TYPE" + strconv.Itoa(int(qtype))
}

// question decides whether a name may be asked for; name is canonical. pinned has the names that lead to an address, for reverse look-ups.
func (s *environment) question(p Policy, name string, qtype uint16, pinned func(netip.Addr) (names, aliases []string)) Decision {
	switch {
	case !validName(name):
		return deny(ReasonBadName, "%q is not a name that is looked up: letters, digits, hyphens and underscores, at most %d characters", shorten(name), maxName)
	case !typeAllowed(qtype):
		return deny(ReasonQueryType, "%s queries are not passed on: A, AAAA, CNAME, MX, TXT, SRV, PTR, NS, SOA and CAA are", typeName(qtype))
	case isLocalName(name) && p.Effective() != None:
		return s.localQuestion(p, name)
	}
	if addr, reverse := reverseAddr(name); reverse {
		names, aliases := pinned(addr)
		return s.mayLearn(p, Request{To: netip.AddrPortFrom(addr, 0), Names: names, Aliases: append(aliases, name)})
	}
	j := newEvaluator(s, p, Request{Names: []string{name}})
	j.anyPort, j.noAddr = true, true
	return nameReason(j.decide())
}

// localQuestion decides about the VM's own names, which only a deny rule takes away.
func (s *environment) localQuestion(p Policy, name string) Decision {
	j := newEvaluator(s, p, Request{Names: []string{name}})
	j.anyPort, j.noAddr = true, true
	if d, denied := j.checkDeny(); denied {
		return d
	}
	return allow(ReasonLocalName, "%s is the VM's own name", name)
}

// mayLearn decides whether the guest may learn an address, whatever the port: r has no protocol and no port.
func (s *environment) mayLearn(p Policy, r Request) Decision {
	j := newEvaluator(s, p, r)
	j.anyPort = true
	return j.decide()
}

// nameReason tells a name that is not looked up from an address that is not dialled.
func nameReason(d Decision) Decision {
	if d.Reason == ReasonNotAllowed {
		d.Reason = ReasonNameNotAllowed
	}
	return d
}

// maxChain is how many aliases an answer may lead through.
const maxChain = 16

// answer decides whether the guest may learn that a name (canonical) has an address. The VM's own names have only its addresses,
// and no other name has those.
func (s *environment) answer(p Policy, name string, chain []string, addr netip.Addr) Decision {
	addr = addr.Unmap()
	own := s.isHost(addr) || slices.ContainsFunc(s.local, func(l netip.Prefix) bool { return l.Contains(addr) })
	switch {
	case !validName(name):
		return deny(ReasonBadName, "%q is not a name that is looked up", shorten(name))
	case len(chain) > maxChain:
		return deny(ReasonLongChain, "%s leads through more than %d other names", name, maxChain)
	case own && p.Effective() == None: // mayLearn denies it
	case own && isLocalName(name):
		return s.localQuestion(p, name)
	case own:
		return deny(ReasonOwnNetwork, "%s was answered with %s, which is in the VM's own network", name, addr)
	}
	d := s.mayLearn(p, Request{To: netip.AddrPortFrom(addr, 0), Names: []string{name}, Aliases: chain})
	if !d.Allowed {
		d.Message = fmt.Sprintf("%s was answered with %s: %s", name, addr, d.Message)
	}
	return d
}

// shorten keeps what a guest made up from filling messages.
func shorten(name string) string {
	if len(name) > 80 {
		return name[:80] + "..."
	}
	return name
}

// reverseAddr reads the name of a reverse look-up (RFC 1035 section 3.5, RFC 3596 section 2.5).
func reverseAddr(name string) (netip.Addr, bool) {
	if rest, found := strings.CutSuffix(name, ".in-addr.arpa"); found {
		labels := strings.Split(rest, ".")
		slices.Reverse(labels)
		addr, err := netip.ParseAddr(strings.Join(labels, "."))
		return addr, err == nil && addr.Is4()
	}
	rest, found := strings.CutSuffix(name, ".ip6.arpa")
	labels := strings.Split(rest, ".")
	if !found || len(labels) != 32 {
		return netip.Addr{}, false
	}
	slices.Reverse(labels)
	var b [16]byte
	for i, label := range labels {
		nibble, err := strconv.ParseUint(label, 16, 4)
		if err != nil || len(label) != 1 {
			return netip.Addr{}, false
		}
		b[i/2] |= byte(nibble) << (4 * (1 - i%2))
	}
	return netip.AddrFrom16(b), true
}
