package dns

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"

	"golang.org/x/sys/windows"
)

// SystemResolvers returns the recursive servers, at least one, and the search domains that the host uses: those of the
// adapters that are up, by metric.
func SystemResolvers() (servers []netip.AddrPort, search []string, err error) {
	first, err := adapters()
	if err != nil {
		return nil, nil, fmt.Errorf("find the host's DNS servers (or name some): %w", err)
	}
	var up []*windows.IpAdapterAddresses
	for a := first; a != nil; a = a.Next {
		if a.OperStatus == windows.IfOperStatusUp && a.IfType != windows.IF_TYPE_SOFTWARE_LOOPBACK {
			up = append(up, a)
		}
	}
	slices.SortStableFunc(up, func(a, b *windows.IpAdapterAddresses) int {
		return cmp.Compare(min(a.Ipv4Metric, a.Ipv6Metric), min(b.Ipv4Metric, b.Ipv6Metric))
	})
	for _, a := range up {
		for s := a.FirstDnsServerAddress; s != nil; s = s.Next {
			if addr, ok := netip.AddrFromSlice(s.Address.IP()); ok && !isPlaceholder(addr.Unmap()) {
				servers = append(servers, netip.AddrPortFrom(withZone(addr.Unmap(), a), port))
			}
		}
		search = append(search, windows.UTF16PtrToString(a.DnsSuffix))
	}
	servers, search = usableServers(servers), usableDomains(search)
	if len(servers) == 0 {
		return nil, search, errors.New("no network adapter has a DNS server: name one for the VM")
	}
	return servers, search, nil
}

// withZone says through which adapter a link-local address is reached.
func withZone(addr netip.Addr, a *windows.IpAdapterAddresses) netip.Addr {
	if !addr.IsLinkLocalUnicast() || addr.Is4() {
		return addr
	}
	return addr.WithZone(fmt.Sprint(a.Ipv6IfIndex))
}

// isPlaceholder recognizes the site-local addresses that Windows lists for adapters without a server.
func isPlaceholder(addr netip.Addr) bool {
	return netip.MustParsePrefix("fec0:0:0:ffff::/64").Contains(addr)
}

// adapters returns the first of a list that lies in memory of ours.
func adapters() (*windows.IpAdapterAddresses, error) {
	size := uint32(16 * 1024)
	for range 5 { // the list can grow between two calls
		// Eight-byte words, for the alignment of the structures.
		buffer := make([]uint64, (size+7)/8)
		first := (*windows.IpAdapterAddresses)(unsafe.Pointer(&buffer[0]))
		const flags = windows.GAA_FLAG_SKIP_UNICAST | windows.GAA_FLAG_SKIP_ANYCAST | windows.GAA_FLAG_SKIP_MULTICAST
		err := windows.GetAdaptersAddresses(windows.AF_UNSPEC, flags, 0, first, &size)
		if err == nil {
			return first, nil
		}
		if !errors.Is(err, windows.ERROR_BUFFER_OVERFLOW) {
			return nil, fmt.Errorf("GetAdaptersAddresses: %w", err)
		}
	}
	return nil, errors.New("GetAdaptersAddresses: the list of adapters keeps growing")
}
