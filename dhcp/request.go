package dhcp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// request is what matters of a message of the guest. Addresses that are missing or 0.0.0.0 are invalid.
type request struct {
	message
	kind      messageType
	client    netip.Addr // ciaddr: the address that the client has
	requested netip.Addr // option 50
	server    netip.Addr // option 54
	wants     []byte     // the codes of option 55, empty when the client asks for nothing in particular
	size      int        // the largest reply without IP and UDP headers
}

// parse reads a message. nil: it is not for us, and counted.
func (s *Server) parse(b []byte) *request {
	m, err := parseMessage(b)
	if err != nil || len(b) > largestRequest || m.op != bootRequest || m.hardware != ethernet {
		s.counts.malformed.Add(1)
		return nil
	}
	if !bytes.Equal(m.mac, s.config.GuestMAC) || m.relay != [4]byte{} {
		s.counts.foreign.Add(1)
		return nil
	}
	r := &request{message: m, wants: m.options[optionParameters], size: replySize(m)}
	if kind := m.options[optionMessageType]; len(kind) == 1 {
		r.kind = messageType(kind[0])
	}
	r.client, _ = addressOf(m.client[:])
	var wellFormed [2]bool
	r.requested, wellFormed[0] = optionalAddress(m, optionRequested)
	r.server, wellFormed[1] = optionalAddress(m, optionServer)
	if !wellFormed[0] || !wellFormed[1] {
		s.counts.malformed.Add(1)
		return nil
	}
	return r
}

// optionalAddress returns an option's address, invalid when there is none. ok is false when the option has another length.
func optionalAddress(m message, code optionCode) (a netip.Addr, ok bool) {
	value, ok := m.options[code]
	if !ok {
		return a, true
	}
	return addressOf(value)
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

// replySize is what a client has to be able to take, 576 bytes with headers (RFC 2131 section 2), or what it says that it
// takes (option 57), within what fits into a usual frame.
func replySize(m message) int {
	size := 0
	if value := m.options[optionMaximumSize]; len(value) == 2 {
		size = int(binary.BigEndian.Uint16(value))
	}
	return min(max(size, 576), usualMTU) - 20 - 8
}
