package dhcp

import (
	"bytes"
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
)

// fixedPart is the length of a message up to its options, the magic cookie included (RFC 2131 section 2).
const fixedPart = 240

// request is what matters of a message of the guest. Addresses that are missing or 0.0.0.0 are invalid.
type request struct {
	*dhcpv4.DHCPv4
	kind      dhcpv4.MessageType
	client    netip.Addr // ciaddr: the address that the client has
	requested netip.Addr // option 50
	server    netip.Addr // option 54
	wants     map[uint8]bool
	size      int // the largest reply without IP and UDP headers
}

// parse reads a message. nil: it is not for us, and counted.
func (s *Server) parse(message []byte) *request {
	if len(message) < fixedPart || len(message) > largestRequest {
		s.counts.malformed.Add(1)
		return nil
	}
	m, err := dhcpv4.FromBytes(message)
	if err != nil || m.OpCode != dhcpv4.OpcodeBootRequest || m.HWType != iana.HWTypeEthernet {
		s.counts.malformed.Add(1)
		return nil
	}
	if !bytes.Equal(m.ClientHWAddr, s.config.GuestMAC) || !m.GatewayIPAddr.Equal(net.IPv4zero) {
		s.counts.foreign.Add(1)
		return nil
	}
	r := &request{DHCPv4: m, kind: m.MessageType(), wants: wants(m), size: replySize(m)}
	r.client, _ = addressOf(m.ClientIPAddr)
	var wellFormed [2]bool
	r.requested, wellFormed[0] = optionalAddress(m, dhcpv4.OptionRequestedIPAddress)
	r.server, wellFormed[1] = optionalAddress(m, dhcpv4.OptionServerIdentifier)
	if !wellFormed[0] || !wellFormed[1] {
		s.counts.malformed.Add(1)
		return nil
	}
	return r
}

// optionalAddress returns an option's address, invalid when there is none. ok is false when the option has another length.
func optionalAddress(m *dhcpv4.DHCPv4, code dhcpv4.OptionCode) (a netip.Addr, ok bool) {
	if !m.Options.Has(code) {
		return a, true
	}
	return addressOf(m.Options.Get(code))
}

func addressOf(b []byte) (a netip.Addr, ok bool) {
	if len(b) != 4 {
		return a, false
	}
	if a = netip.AddrFrom4([4]byte(b)); a.IsUnspecified() {
		return netip.Addr{}, true
	}
	return a, true
}

// wants returns the parameter request list (option 55), nil when the client asks for nothing in particular.
func wants(m *dhcpv4.DHCPv4) map[uint8]bool {
	list := m.Options.Get(dhcpv4.OptionParameterRequestList)
	if len(list) == 0 {
		return nil
	}
	set := make(map[uint8]bool, len(list))
	for _, code := range list {
		set[code] = true
	}
	return set
}

// replySize is what a client has to be able to take, 576 bytes with headers (RFC 2131 section 2), or what it says that it
// takes (option 57), within what fits into a usual frame.
func replySize(m *dhcpv4.DHCPv4) int {
	size, err := m.MaxMessageSize()
	if err != nil {
		size = 0
	}
	return min(max(int(size), 576), usualMTU) - 20 - 8
}
