package dhcp

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/rfc1035label"
)

// largestClientID bounds what is sent back of option 61. A DUID has at most 130 bytes, with type and IAID 135 (RFC 4361, RFC
// 8415 section 11.1).
const largestClientID = 135

// build makes a reply by the table of RFC 2131 section 4.3.1.
func (s *Server) build(r *request, kind dhcpv4.MessageType) []byte {
	reply := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootReply, HWType: r.HWType, ClientHWAddr: r.ClientHWAddr,
		TransactionID: r.TransactionID, Flags: r.Flags, GatewayIPAddr: net.IPv4zero,
		Options: dhcpv4.OptionsFromList(
			dhcpv4.OptMessageType(kind),
			dhcpv4.OptServerIdentifier(s.config.Server.AsSlice()),
		),
	}
	// RFC 6842 section 3: the client's identifier goes back as it came.
	if id := r.Options.Get(dhcpv4.OptionClientIdentifier); len(id) > 0 && len(id) <= largestClientID {
		reply.UpdateOption(dhcpv4.OptClientIdentifier(id))
	}
	if kind == dhcpv4.MessageTypeNak {
		reply.UpdateOption(dhcpv4.OptMessage("this network has one address: " + s.config.Guest.String()))
		return reply.ToBytes()
	}
	if kind == dhcpv4.MessageTypeAck {
		reply.ClientIPAddr = r.ClientIPAddr
	}
	if r.kind != dhcpv4.MessageTypeInform {
		reply.YourIPAddr = s.config.Guest.AsSlice()
		reply.UpdateOption(dhcpv4.OptIPAddressLeaseTime(s.config.Lease))
	}
	s.addNetwork(reply)
	s.addSearch(reply, r)
	return reply.ToBytes()
}

// addNetwork adds what a client needs whether it asks or not: some take the defaults of another network for granted.
func (s *Server) addNetwork(reply *dhcpv4.DHCPv4) {
	c := &s.config
	reply.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(c.Subnet.Bits(), 32)))
	reply.UpdateOption(dhcpv4.OptRouter(addresses(c.Routers)...))
	reply.UpdateOption(dhcpv4.OptDNS(addresses(c.DNS)...))
	reply.UpdateOption(dhcpv4.OptBroadcastAddress(broadcastOf(c.Subnet).AsSlice()))
	if c.MTU != usualMTU {
		reply.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, binary.BigEndian.AppendUint16(nil, uint16(c.MTU))))
	}
}

// addSearch adds the search domains for clients that ask for them, the list (RFC 3397) only as long as the reply has room.
func (s *Server) addSearch(reply *dhcpv4.DHCPv4, r *request) {
	asked := func(code dhcpv4.OptionCode) bool { return r.wants == nil || r.wants[code.Code()] }
	search := s.config.Search
	if len(search) > 0 && asked(dhcpv4.OptionDomainName) {
		reply.UpdateOption(dhcpv4.OptDomainName(search[0]))
		if len(reply.ToBytes()) > r.size {
			reply.DeleteOption(dhcpv4.OptionDomainName)
		}
	}
	for n := len(search); n > 0 && asked(dhcpv4.OptionDNSDomainSearchList); n-- {
		reply.UpdateOption(dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: search[:n]}))
		if len(reply.ToBytes()) <= r.size {
			return
		}
		reply.DeleteOption(dhcpv4.OptionDNSDomainSearchList)
	}
}

func addresses(list []netip.Addr) []net.IP {
	ips := make([]net.IP, len(list))
	for i, a := range list {
		ips[i] = a.AsSlice()
	}
	return ips
}
