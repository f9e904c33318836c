package egress

import (
	"net/netip"
	"slices"
	"strings"
)

// Bounds of what a guest can make a Learner remember.
const (
	maxNeeds        = 8192 // of connections, and as many of look-ups
	maxBeyond       = 64
	maxLearnedNames = 8 // of an address, for reverse look-ups
)

// Learner makes of the events of a permissive run the smallest allowlist that would have let the same through:
//
//	events ── Add ──► needs (what was let through, by the name that it was asked for) ── Learned ──► grants ──► rules
//	                                                                     wildcards, only if asked ─────┘
//
// A connection is tied to the name that was asked for last of those that lead to its address; without one it is an address.
// What was let through counts whether or not the peer answered; names that do not exist need no rule, nor does what was denied.
// The zero Learner is ready. It is not for concurrent use, and keeps a bounded number of needs, whatever it is given.
type Learner struct {
	flows   map[needKey]*need
	lookups map[string]*need        // by name, canonical
	asked   map[string]int          // when a name was asked for last
	at      map[netip.Addr][]string // names that led to an address
	beyond  map[needKey]Request
	ports   map[uint16]struct{} // of the host
	clock   int
	local   bool // the guest asked for a name of the VM itself
	lost    uint64
	missed  int
}

// need is something that was let through. A rule lets it through if its host is one of names, or addr, and it is about the
// service; a look-up needs any rule that is about its host.
type need struct {
	service
	addr    netip.Addr // invalid: a look-up of a name
	names   []string   // that led to the address, sorted
	name    string     // of these, the one asked for last; empty: none
	reverse bool       // a look-up of the address
}

// service is a protocol and a port; with ICMP the port is 0. Zero: a look-up.
type service struct {
	protocol string
	port     uint16
}

type needKey struct {
	service
	addr  netip.Addr
	name  string
	names string // separated by spaces
}

// LearnOptions say what Learned may do more than it has to.
type LearnOptions struct {
	// Wildcards puts *.example.org in the place of several names below example.org, never of names that have only a public
	// suffix (co.uk, github.io) in common.
	Wildcards bool
}

// Learned is what a run needs.
type Learned struct {
	// Policy is the smallest: without any rule of it something would have been denied. Mode none: nothing was reached.
	Policy Policy `json:"policy"`
	// HostPorts are the host's ports that were used; no rule opens them.
	HostPorts []uint16 `json:"hostPorts,omitempty"`
	// Beyond are connections that only mode open lets through, at most 64: no rule opens their addresses.
	Beyond []Request `json:"beyond,omitempty"`
	// Missed is how many things no rule could be made for: there were too many, or the name is none that a rule can have.
	Missed int `json:"missed,omitempty"`
	// Lost is how many events the audit says it lost. More than 0: the policy may be too small.
	Lost uint64 `json:"lost,omitempty"`
}

// Add takes an event, in the order in which they happened.
func (l *Learner) Add(e Event) {
	l.init()
	e.Names = slices.Clone(e.Names) // other readers share the event
	e.bound()
	l.lost += e.Lost
	l.clock++
	switch {
	case e.Kind == KindDNS:
		l.addQuery(e)
	case e.Kind != TCP && e.Kind != UDP && e.Kind != ICMP:
	case e.Verdict == VerdictAllow && isOutward(e.Reason), e.Verdict == VerdictError && e.Reason == "":
		l.addFlow(e)
	}
}

func (l *Learner) init() {
	if l.flows != nil {
		return
	}
	l.flows, l.lookups, l.asked = map[needKey]*need{}, map[string]*need{}, map[string]int{}
	l.at = map[netip.Addr][]string{}
	l.beyond, l.ports = map[needKey]Request{}, map[uint16]struct{}{}
}

// isOutward tells the gate's own decisions from events about other things, such as port forwards.
func isOutward(reason string) bool {
	return reason == ReasonPublic || reason == ReasonOpen || reason == ReasonAllowRule || reason == ReasonHostPort
}

// addQuery notes a name that was found.
func (l *Learner) addQuery(e Event) {
	if e.Verdict != VerdictAllow || len(e.Names) == 0 {
		return
	}
	name := canonicalName(e.Names[0])
	if isLocalZone(name) {
		l.local = true
		return
	}
	addrs := addresses(e.Answer)
	switch {
	case !isAnswer(e.Answer), name == "localhost", strings.HasSuffix(name, ".localhost"): // nothing, or answered without a query
		return
	case len(addrs) > 0 && !slices.ContainsFunc(addrs, IsPublic):
		return // taken out of answers in every mode but open
	}
	one := &need{names: []string{name}, name: name}
	if addr, reverse := reverseAddr(name); reverse {
		if !IsPublic(addr) {
			return // an address in the VM's own network
		}
		one = &need{addr: addr, reverse: true}
	} else if !canBeRule(name) {
		l.missed++
		return
	}
	if l.lookups[name] == nil && len(l.lookups) >= maxNeeds {
		l.missed++
		return
	}
	l.lookups[name] = one
	l.asked[name] = l.clock
	for _, addr := range addrs {
		l.noteName(addr, name)
	}
}

// noteName remembers which names lead to an address, for reverse look-ups.
func (l *Learner) noteName(addr netip.Addr, name string) {
	known := l.at[addr]
	if known == nil && len(l.at) >= maxNeeds || len(known) >= maxLearnedNames || slices.Contains(known, name) {
		return
	}
	l.at[addr] = append(known, name)
}

// addresses are those in the text of an answer.
func addresses(answer string) (list []netip.Addr) {
	for word := range strings.FieldsFuncSeq(answer, func(r rune) bool { return r == ' ' || r == ',' }) {
		if addr, err := netip.ParseAddr(word); err == nil {
			list = append(list, addr.Unmap())
		}
	}
	return list
}

// IsPublic reports whether an address is none of a private network, of this host, or of another range that a VM reaches by a rule only.
func IsPublic(a netip.Addr) bool {
	_, _, restricted := restriction(a)
	return !restricted
}

// isAnswer tells records from what package dns says when there are none, which begins with a code: NXDOMAIN, NODATA, SERVFAIL.
func isAnswer(text string) bool { return text != "" && (text[0] < 'A' || text[0] > 'Z') }

func isLocalZone(name string) bool {
	return name == GatewayName || strings.HasSuffix(name, "."+GatewayName)
}

// canBeRule says whether a rule can name that, and means a name by it.
func canBeRule(name string) bool {
	r, err := ParseRule(name)
	return err == nil && r.Equal(Rule{host: hostName, name: name})
}

// addFlow notes a connection or an echo request.
func (l *Learner) addFlow(e Event) {
	to := unmap(e.Destination)
	names := canonicalNames(e.Names)
	s := service{e.Kind, to.Port()}
	if e.Kind == ICMP {
		s.port = 0
	}
	if e.Reason == ReasonHostPort || slices.Contains(names, HostName) {
		l.ports[s.port] = struct{}{}
		return
	}
	if !to.Addr().IsValid() || to.Addr().Zone() != "" || s.port == 0 && e.Kind != ICMP {
		return // no address that was dialled
	}
	if one := (Rule{host: hostPrefix, prefix: netip.PrefixFrom(to.Addr(), to.Addr().BitLen())}); one.opensHost() {
		l.addNeed(&need{service: s, addr: to.Addr()}) // only a rule for the address opens it
		return
	}
	if !IsPublic(to.Addr()) {
		l.addBeyond(Request{Protocol: e.Kind, To: to, Names: names})
		return
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !canBeRule(name) })
	latest := l.latest(names)
	slices.Sort(names)
	names = slices.Compact(names)
	for _, name := range names {
		l.noteName(to.Addr(), name)
	}
	l.addNeed(&need{service: s, addr: to.Addr(), names: names, name: latest})
}

func (l *Learner) addBeyond(r Request) {
	if len(l.beyond) < maxBeyond {
		l.beyond[needKey{service: service{r.Protocol, r.To.Port()}, addr: r.To.Addr()}] = r
	}
}

// latest is the name that was asked for last, or the first one.
func (l *Learner) latest(names []string) (latest string) {
	for _, name := range names {
		if latest == "" || l.asked[name] > l.asked[latest] {
			latest = name
		}
	}
	return latest
}

func (l *Learner) addNeed(n *need) {
	key := needKey{n.service, n.addr, n.name, strings.Join(n.names, " ")}
	if l.flows[key] != nil {
		return
	}
	if len(l.flows) >= maxNeeds {
		l.missed++
		return
	}
	l.flows[key] = n
}
