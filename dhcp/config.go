package dhcp

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
)

// usualMTU is Ethernet's, which a client assumes by default.
const usualMTU = 1500

// Config describes a Server.
type Config struct {
	// Server is the server's own address, option 54. Guest is the address that is leased. Both are IPv4 in Subnet.
	Server, Guest netip.Addr
	// GuestMAC is the only client: six bytes.
	GuestMAC net.HardwareAddr
	// Subnet gives the mask and the broadcast address, options 1 and 28.
	Subnet netip.Prefix
	// Routers and DNS are options 3 and 6, at most eight each. Empty: Server.
	Routers, DNS []netip.Addr
	// MTU is option 26 when it is not 1500. 0: 1500.
	MTU int
	// Search are the domains to complete names with, options 119 and 15, the first one first. They are sent to clients
	// that ask for them or for nothing in particular, as far as a reply has room.
	Search []string
	// Lease is how long an address may be used, option 51, in whole seconds. 0: 24 h.
	Lease time.Duration
	// Logger gets what is remarkable about requests, at most a line a minute. nil discards.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if len(c.Routers) == 0 {
		c.Routers = []netip.Addr{c.Server}
	}
	if len(c.DNS) == 0 {
		c.DNS = []netip.Addr{c.Server}
	}
	if c.MTU == 0 {
		c.MTU = usualMTU
	}
	if c.Lease == 0 {
		c.Lease = 24 * time.Hour
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	search := make([]string, len(c.Search))
	for i, domain := range c.Search {
		search[i] = strings.TrimSuffix(domain, ".")
	}
	c.Search = search
	return c, c.check()
}

func (c Config) check() error {
	switch {
	case !c.Subnet.Addr().Is4() || c.Subnet.Bits() > 30:
		return fmt.Errorf("dhcp: subnet %v is not IPv4 with room for two hosts", c.Subnet)
	case !c.isHost(c.Server) || !c.isHost(c.Guest) || c.Server == c.Guest:
		return fmt.Errorf("dhcp: server %v and guest %v have to be two hosts of %v", c.Server, c.Guest, c.Subnet)
	case len(c.GuestMAC) != 6:
		return fmt.Errorf("dhcp: the guest's hardware address %q has not six bytes", c.GuestMAC)
	case c.MTU < 68 || c.MTU > 65535: // RFC 2132 section 5.1
		return fmt.Errorf("dhcp: MTU %d is not within 68..65535", c.MTU)
	case c.Lease < time.Second || c.Lease/time.Second > 1<<32-1:
		return fmt.Errorf("dhcp: lease of %v is not within a second and 136 years", c.Lease)
	case len(c.Routers) > 8 || len(c.DNS) > 8:
		return errors.New("dhcp: more than eight routers or DNS servers")
	}
	for _, a := range slices.Concat(c.Routers, c.DNS) {
		if !a.Is4() {
			return fmt.Errorf("dhcp: router or DNS server %v is not an IPv4 address", a)
		}
	}
	for _, domain := range c.Search {
		if !isDomain(domain) {
			return fmt.Errorf("dhcp: search domain %q is not a domain name", domain)
		}
	}
	return nil
}

// isHost says whether a may be a host's address: neither the subnet's first nor its last.
func (c Config) isHost(a netip.Addr) bool {
	return a.Is4() && c.Subnet.Contains(a) && a != c.Subnet.Masked().Addr() && a != broadcastOf(c.Subnet)
}

func broadcastOf(subnet netip.Prefix) netip.Addr {
	a := subnet.Masked().Addr().As4()
	mask := net.CIDRMask(subnet.Bits(), 32)
	for i := range a {
		a[i] |= ^mask[i]
	}
	return netip.AddrFrom4(a)
}

// isDomain is strict because the name ends in files and command lines of the guest.
func isDomain(name string) bool {
	if len(name) > 253 {
		return false
	}
	matched, err := regexp.MatchString(`^([a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9_])?)(\.[a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9_])?)*$`, name)
	return err == nil && matched
}
