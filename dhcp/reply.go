package dhcp

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"time"
)

// largestClientID bounds what is sent back of option 61. A DUID has at most 130 bytes, with type and IAID 135 (RFC 4361, RFC
// 8415 section 11.1).
const largestClientID = 135

// build makes a reply by the table of RFC 2131 section 4.3.1.
func (s *Server) build(r *request, kind messageType) []byte {
	reply := &message{
		op: bootReply, hardware: r.hardware, transaction: r.transaction, flags: r.flags, mac: r.mac,
		options: map[optionCode][]byte{optionMessageType: {byte(kind)}, optionServer: s.config.Server.AsSlice()},
	}
	// RFC 6842 section 3: the client's identifier goes back as it came.
	if id := r.options[optionClientID]; len(id) > 0 && len(id) <= largestClientID {
		reply.options[optionClientID] = id
	}
	if kind == typeNak {
		reply.options[optionText] = []byte("this network has one address: " + s.config.Guest.String())
		return reply.bytes()
	}
	if kind == typeAck {
		reply.client = r.message.client
	}
	if r.kind != typeInform {
		reply.yours = s.config.Guest.As4()
		reply.options[optionLease] = binary.BigEndian.AppendUint32(nil, uint32(s.config.Lease/time.Second))
	}
	s.addNetwork(reply)
	s.addSearch(reply, r)
	return reply.bytes()
}

// addNetwork adds what a client needs whether it asks or not: some take the defaults of another network for granted.
func (s *Server) addNetwork(reply *message) {
	c := &s.config
	reply.options[optionSubnetMask] = net.CIDRMask(c.Subnet.Bits(), 32)
	reply.options[optionRouters] = addresses(c.Routers)
	reply.options[optionDNS] = addresses(c.DNS)
	reply.options[optionBroadcast] = broadcastOf(c.Subnet).AsSlice()
	if c.MTU != usualMTU {
		reply.options[optionMTU] = binary.BigEndian.AppendUint16(nil, uint16(c.MTU))
	}
}

// addSearch adds the search domains for clients that ask for them, the list (RFC 3397) only as long as the reply has room.
func (s *Server) addSearch(reply *message, r *request) {
	asked := func(code optionCode) bool { return len(r.wants) == 0 || bytes.IndexByte(r.wants, byte(code)) >= 0 }
	search := s.config.Search
	if len(search) > 0 && asked(optionDomainName) {
		reply.options[optionDomainName] = []byte(search[0])
		if len(reply.bytes()) > r.size {
			delete(reply.options, optionDomainName)
		}
	}
	for n := len(search); n > 0 && asked(optionSearch); n-- {
		reply.options[optionSearch] = labels(search[:n])
		if len(reply.bytes()) <= r.size {
			return
		}
		delete(reply.options, optionSearch)
	}
}

func addresses(list []netip.Addr) (value []byte) {
	for _, a := range list {
		value = append(value, a.AsSlice()...)
	}
	return value
}

// labels encodes domain names, not compressed (RFC 1035 section 3.1). Config has none that is empty or has a label above 63 bytes.
func labels(domains []string) (value []byte) {
	for _, domain := range domains {
		for label := range strings.SplitSeq(domain, ".") {
			value = append(append(value, byte(len(label))), label...)
		}
		value = append(value, 0)
	}
	return value
}
