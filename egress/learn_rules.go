package egress

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// grant is the smallest thing that a rule can give: one host, one protocol, one port. With ICMP there is no port, and of a name
// that is only looked up it is all there is: every rule about a name lets it be looked up, and this one gives the least besides.
type grant struct {
	host string // as in a rule
	service
}

// Learned makes the policy of what was added so far.
func (l *Learner) Learned(o LearnOptions) Learned {
	l.init()
	needs := l.needs()
	grants := flowGrants(needs)
	if o.Wildcards {
		grants = withWildcards(grants)
	}
	lookupGrants(grants, needs)
	rules := grantedRules(minimal(grants, needs))
	missed := l.missed + max(len(rules)-maxRules, 0)
	learned := Learned{
		Policy:    Policy{Mode: Allowlist, Allow: rules[:min(len(rules), maxRules)]},
		HostPorts: slices.Sorted(maps.Keys(l.ports)), Missed: missed, Lost: l.lost,
	}
	if len(rules)+len(l.ports) == 0 && !l.local {
		learned.Policy.Mode = None
	}
	for _, key := range slices.SortedFunc(maps.Keys(l.beyond), compareKeys) {
		learned.Beyond = append(learned.Beyond, l.beyond[key])
	}
	return learned
}

// needs are all, in an order of their own.
func (l *Learner) needs() (list []*need) {
	for _, key := range slices.SortedFunc(maps.Keys(l.flows), compareKeys) {
		list = append(list, l.flows[key])
	}
	for _, name := range slices.Sorted(maps.Keys(l.lookups)) {
		one := *l.lookups[name]
		if one.reverse {
			one.names = l.at[one.addr]
		}
		list = append(list, &one)
	}
	return list
}

func compareKeys(a, b needKey) int {
	return cmp.Or(strings.Compare(a.name, b.name), a.addr.Compare(b.addr), compareServices(a.service, b.service), strings.Compare(a.names, b.names))
}

func compareServices(a, b service) int {
	return cmp.Or(strings.Compare(a.protocol, b.protocol), cmp.Compare(a.port, b.port))
}

func (n *need) isLookup() bool { return n.protocol == "" }

// flowGrants are one for each connection.
func flowGrants(needs []*need) map[grant]struct{} {
	grants := map[grant]struct{}{}
	for _, n := range needs {
		if !n.isLookup() {
			grants[grant{cmp.Or(n.name, addrText(n.addr)), n.service}] = struct{}{}
		}
	}
	return grants
}

func addrText(a netip.Addr) string { return prefixText(netip.PrefixFrom(a, a.BitLen())) }

// lookupGrants adds what look-ups need that no grant is about yet.
func lookupGrants(grants map[grant]struct{}, needs []*need) {
	for pass := range 2 { // reverse ones last: names that are only looked up may cover them
		covered := byHost(grants)
		for _, n := range needs {
			if n.isLookup() && n.reverse == (pass == 1) && len(n.coveredBy(covered)) == 0 {
				grants[grant{cmp.Or(n.name, addrText(n.addr)), service{protocol: ICMP}}] = struct{}{}
			}
		}
	}
}

func byHost(grants map[grant]struct{}) map[string][]grant {
	hosts := map[string][]grant{}
	for g := range grants {
		hosts[g.host] = append(hosts[g.host], g)
	}
	return hosts
}

// coveredBy lists the grants that let a need through.
func (n *need) coveredBy(hosts map[string][]grant) (list []grant) {
	take := func(host string) {
		for _, g := range hosts[host] {
			if n.isLookup() || g.service == n.service {
				list = append(list, g)
			}
		}
	}
	if n.addr.IsValid() {
		take(addrText(n.addr))
	}
	above := map[string]bool{}
	for _, name := range n.names {
		take(name)
		for _, below, found := strings.Cut(name, "."); found; _, below, found = strings.Cut(below, ".") {
			if host := "*." + below; !above[host] {
				above[host] = true
				take(host)
			}
		}
	}
	return list
}

// withWildcards replaces several names below one by a wildcard, where all of them have the same service.
func withWildcards(grants map[grant]struct{}) map[grant]struct{} {
	groups := map[grant][]string{} // by registrable domain and service
	out := map[grant]struct{}{}
	for g := range grants {
		if domain := registrable(g.host); domain != "" {
			key := grant{domain, g.service}
			groups[key] = append(groups[key], g.host)
			continue
		}
		out[g] = struct{}{}
	}
	for key, names := range groups {
		if len(names) == 1 {
			out[grant{names[0], key.service}] = struct{}{}
			continue
		}
		out[grant{"*." + commonParent(names), key.service}] = struct{}{}
	}
	return out
}

// registrable returns the registered domain above a name: example.co.uk of www.example.co.uk. It is empty for such a domain itself,
// for the names above it and for addresses.
func registrable(host string) string {
	if r, err := ParseRule(host); err != nil || r.host != hostName {
		return ""
	}
	domain, err := publicsuffix.EffectiveTLDPlusOne(host)
	if err != nil || domain == host {
		return ""
	}
	return domain
}

// commonParent is the longest name that all of the names are below.
func commonParent(names []string) string {
	_, common, _ := strings.Cut(names[0], ".")
	for _, name := range names[1:] {
		for !strings.HasSuffix(name, "."+common) {
			_, common, _ = strings.Cut(common, ".")
		}
	}
	return common
}

// minimal leaves out grants as long as every need is let through by another, those first that few needs have.
func minimal(grants map[grant]struct{}, needs []*need) []grant {
	hosts := byHost(grants)
	uses := map[grant][]*need{}
	count := map[*need]int{}
	for _, n := range needs {
		covering := n.coveredBy(hosts)
		count[n] = len(covering)
		for _, g := range covering {
			uses[g] = append(uses[g], n)
		}
	}
	order := slices.SortedFunc(maps.Keys(grants), func(a, b grant) int {
		return cmp.Or(cmp.Compare(len(uses[a]), len(uses[b])), compareGrants(a, b))
	})
	kept := order[:0]
	for _, g := range order {
		if slices.ContainsFunc(uses[g], func(n *need) bool { return count[n] == 1 }) {
			kept = append(kept, g)
			continue
		}
		for _, n := range uses[g] {
			count[n]--
		}
	}
	slices.SortFunc(kept, compareGrants)
	return kept
}

func compareGrants(a, b grant) int {
	return cmp.Or(strings.Compare(a.host, b.host), compareServices(a.service, b.service))
}

// grantedRules puts the grants, which are sorted, into as few rules: one for each host and protocol, or one for both protocols if
// their ports are the same.
func grantedRules(grants []grant) (rules []Rule) {
	for len(grants) > 0 {
		end := slices.IndexFunc(grants, func(g grant) bool { return g.host != grants[0].host })
		if end < 0 {
			end = len(grants)
		}
		rules = append(rules, hostRules(grants[:end])...)
		grants = grants[end:]
	}
	return rules
}

// hostRules are the rules about one host.
func hostRules(grants []grant) (rules []Rule) {
	host, err := ParseRule(grants[0].host)
	if err != nil {
		return nil // cannot be: see canBeRule
	}
	ports := map[string][]portRange{}
	for _, g := range grants {
		ports[g.protocol] = append(ports[g.protocol], portRange{g.port, g.port})
	}
	if _, echo := ports[ICMP]; echo {
		rules = append(rules, with(host, ICMP, nil))
	}
	if tcp := ports[TCP]; tcp != nil && slices.Equal(tcp, ports[UDP]) {
		return append(rules, portRules(host, "", tcp)...)
	}
	rules = append(rules, portRules(host, TCP, ports[TCP])...)
	return append(rules, portRules(host, UDP, ports[UDP])...)
}

func with(host Rule, protocol string, ports []portRange) Rule {
	host.protocol, host.ports = protocol, ports
	return host
}

// portRules are more than one only for very many ports.
func portRules(host Rule, protocol string, ports []portRange) (rules []Rule) {
	if len(ports) == 0 {
		return nil
	}
	for part := range slices.Chunk(mergePorts(ports), maxPorts) {
		rules = append(rules, with(host, protocol, slices.Clone(part)))
	}
	return rules
}
