package dhcp

import (
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// FuzzReply: no bytes make the server panic, reply to or lease to anybody but the guest, or write more than a frame.
func FuzzReply(f *testing.F) {
	for _, m := range []*dhcpv4.DHCPv4{
		message(dhcpv4.MessageTypeDiscover),
		message(dhcpv4.MessageTypeRequest, withServer("192.168.127.1"), withRequested("192.168.127.3")),
		message(dhcpv4.MessageTypeRequest, withClient("192.168.127.3")),
		message(dhcpv4.MessageTypeRequest, withRequested("10.0.0.1")),
		message(dhcpv4.MessageTypeInform, withClient("192.168.127.3"), dhcpv4.WithRequestedOptions(dhcpv4.OptionDNSDomainSearchList)),
		message(dhcpv4.MessageTypeDecline, withRequested("192.168.127.3")),
		message(dhcpv4.MessageTypeRelease, withClient("192.168.127.3")),
		message(dhcpv4.MessageTypeDiscover, withOption(dhcpv4.OptClientIdentifier([]byte{1, 2})), withOption(dhcpv4.OptMaxMessageSize(1500))),
		message(dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(make([]byte, 16))),
	} {
		f.Add(m.ToBytes())
	}
	s := newServer(f, func(c *Config) { c.Search, c.MTU = []string{"example.com", "example"}, 9000 })
	f.Fuzz(func(t *testing.T, request []byte) {
		reply, to := ask(t, s, request)
		if reply == nil {
			return
		}
		if len(reply.ToBytes()) > usualMTU-28 {
			t.Errorf("%d bytes", len(reply.ToBytes()))
		}
		if reply.ClientHWAddr.String() != guestMAC.String() || !(reply.YourIPAddr.Equal(guest.AsSlice()) || reply.YourIPAddr.IsUnspecified()) {
			t.Errorf("a lease for another: %v", reply.Summary())
		}
		if to != broadcast && to.Addr() != guest || to.Port() != 68 {
			t.Errorf("sent to %v", to)
		}
	})
}
