//go:build unix

package dns

import (
	"fmt"
	"net/netip"
	"os"
)

const resolvConf = "/etc/resolv.conf"

// SystemResolvers returns the recursive servers, at least one, and the search domains that the host uses: those of
// resolv.conf(5). They may be on the host's loopback, as systemd-resolved's is.
func SystemResolvers() (servers []netip.AddrPort, search []string, err error) {
	file, err := os.Open(resolvConf)
	if err != nil {
		return nil, nil, fmt.Errorf("find the host's DNS servers (or name some): %w", err)
	}
	defer file.Close()
	servers, search, err = parseResolvConf(file)
	if err != nil {
		return nil, nil, fmt.Errorf("find the host's DNS servers (or name some): read %s: %w", resolvConf, err)
	}
	if len(servers) == 0 {
		return nil, search, fmt.Errorf("%s has no usable nameserver line: name a DNS server for the VM", resolvConf)
	}
	return servers, search, nil
}
