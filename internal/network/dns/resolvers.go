package dns

import (
	"bufio"
	"io"
	"net/netip"
	"slices"
	"strings"
)

const (
	port = 53
	// maxResolvers and maxSearched bound what a host's configuration brings in. glibc takes three servers and, by now, any
	// number of domains.
	maxResolvers = 8
	maxSearched  = 16
)

// parseResolvConf reads resolv.conf(5). It skips lines that it does not know or understand.
func parseResolvConf(r io.Reader) (servers []netip.AddrPort, search []string, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(fields[1]); err == nil {
				servers = append(servers, netip.AddrPortFrom(a.Unmap(), port))
			}
		case "search":
			search = fields[1:] // the last line wins, as does a domain line
		case "domain":
			search = fields[1:2]
		}
	}
	return usableServers(servers), usableDomains(search), lines.Err()
}

// usableServers drops repetitions, and addresses that cannot be a server's.
func usableServers(servers []netip.AddrPort) (usable []netip.AddrPort) {
	for _, s := range servers {
		a := s.Addr()
		if len(usable) == maxResolvers || slices.Contains(usable, s) || a.IsUnspecified() || a.IsMulticast() {
			continue
		}
		usable = append(usable, s)
	}
	return usable
}

func usableDomains(domains []string) (usable []string) {
	for _, domain := range domains {
		domain = plainName(domain)
		if len(usable) == maxSearched || slices.Contains(usable, domain) || !isHostName(domain) {
			continue
		}
		usable = append(usable, domain)
	}
	return usable
}

// isHostName is strict because a search domain ends in files of the guest.
func isHostName(name string) bool {
	if len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}
