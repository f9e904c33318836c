package dns

import "net/netip"

// SystemResolvers returns the recursive servers and search domains that the host uses.
func SystemResolvers() (servers []netip.AddrPort, search []string, err error) { return nil, nil, nil }
