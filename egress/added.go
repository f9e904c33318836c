package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// HostGateway stands, in the text of a Host, for the address at which the guest finds the host's opened ports.
const HostGateway = "host-gateway"

// MaxHosts bounds the names that a VM is given.
const MaxHosts = 1024

// Host is a name that a VM's resolver answers by itself with an address, instead of asking for it. It opens nothing: the policy decides about the
// address, and about the name as about one that was looked up.
type Host struct {
	Name string     // lower case, ASCII, no trailing dot
	Addr netip.Addr // zero: HostGateway
}

// ParseHost reads NAME:ADDRESS or NAME=ADDRESS, where ADDRESS is an IP address, in brackets or not, or HostGateway. Names that are
// the guest's or the VM's own are refused.
func ParseHost(text string) (Host, error) {
	fail := func(err error) (Host, error) { return Host{}, fmt.Errorf("%.300q: %w", text, err) }
	at := strings.IndexAny(text, ":=")
	if at <= 0 {
		return fail(errors.New("want NAME:ADDRESS, as db.test:192.0.2.7 or host.docker.internal:" + HostGateway))
	}
	if _, err := netip.ParseAddr(text[:at]); err == nil {
		return fail(errors.New("the name comes first: NAME:ADDRESS"))
	}
	name, err := asciiName(text[:at])
	if err != nil {
		return fail(fmt.Errorf("%q is not a name of a host", text[:at]))
	}
	h := Host{Name: name}
	if address := text[at+1:]; address != HostGateway {
		h.Addr, err = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(address, "["), "]"))
		if err != nil {
			return fail(fmt.Errorf("%q is no IP address, and not %s", address, HostGateway))
		}
		h.Addr = h.Addr.Unmap()
	}
	if err := h.Check(); err != nil {
		return fail(err)
	}
	return h, nil
}

// Check returns what is wrong with it.
func (h Host) Check() error {
	switch {
	case h.Name == "" || canonicalName(h.Name) != h.Name || !validName(h.Name):
		return fmt.Errorf("%.300q is not a name of a host", h.Name)
	case h.Name == "localhost" || strings.HasSuffix(h.Name, ".localhost"):
		return errors.New("localhost is always the guest itself")
	case h.Name == GatewayName || strings.HasSuffix(h.Name, "."+GatewayName):
		return fmt.Errorf("%s and the names below it are the VM's own", GatewayName)
	case h.Addr.Zone() != "":
		return errors.New("an address with a zone means nothing in the VM")
	case h.Addr.IsUnspecified() || h.Addr.IsMulticast():
		return fmt.Errorf("%s is no address of a host", h.Addr)
	}
	return nil
}

// String is what ParseHost reads.
func (h Host) String() string {
	if !h.Addr.IsValid() {
		return h.Name + ":" + HostGateway
	}
	return h.Name + ":" + h.Addr.String()
}

// MarshalText is String.
func (h Host) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText is ParseHost.
func (h *Host) UnmarshalText(text []byte) (err error) {
	*h, err = ParseHost(string(text))
	return err
}

// addedNames is the names of each address of hosts.
func addedNames(hosts map[string][]netip.Addr) map[netip.Addr][]string {
	names := make(map[netip.Addr][]string)
	for name, addresses := range hosts {
		for _, a := range addresses {
			names[a.Unmap()] = append(names[a.Unmap()], name)
		}
	}
	return names
}
