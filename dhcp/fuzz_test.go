package dhcp

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/gopacket/gopacket/layers"
)

// FuzzReply: no bytes make the server panic, reply to or lease to anybody but the guest, or write more than a frame.
func FuzzReply(f *testing.F) {
	for _, m := range []*packet{
		from(layers.DHCPMsgTypeDiscover),
		from(layers.DHCPMsgTypeRequest, withServer("192.168.127.1"), withRequested("192.168.127.3")),
		from(layers.DHCPMsgTypeRequest, withClient("192.168.127.3")),
		from(layers.DHCPMsgTypeRequest, withRequested("10.0.0.1")),
		from(layers.DHCPMsgTypeInform, withClient("192.168.127.3"), withOption(layers.DHCPOptParamsRequest, 119)),
		from(layers.DHCPMsgTypeDecline, withRequested("192.168.127.3")),
		from(layers.DHCPMsgTypeRelease, withClient("192.168.127.3")),
		from(layers.DHCPMsgTypeDiscover, withOption(layers.DHCPOptClientID, 1, 2), withOption(layers.DHCPOptMaxMessageSize, 5, 220)),
		from(layers.DHCPMsgTypeDiscover, withMAC(make([]byte, 16))),
	} {
		f.Add(m.bytes())
	}
	s := newServer(f, func(c *Config) { c.Search, c.MTU = []string{"example.com", "example"}, 9000 })
	f.Fuzz(func(t *testing.T, request []byte) {
		if m, err := parseMessage(request); err == nil {
			again, err := parseMessage(m.bytes())
			if diff := cmp.Diff(m, again, cmp.AllowUnexported(message{}), cmpopts.EquateEmpty()); diff != "" || err != nil {
				t.Errorf("what is written is not what was read: %v\n%s", err, diff)
			}
		}
		if b, _, _ := s.Reply(request); len(b) > usualMTU-28 {
			t.Errorf("%d bytes", len(b))
		}
		reply, to := ask(t, s, request)
		if reply == nil {
			return
		}
		if reply.ClientHWAddr.String() != guestMAC.String() || !(reply.YourClientIP.Equal(guest.AsSlice()) || reply.YourClientIP.IsUnspecified()) {
			t.Errorf("a lease for another: %v", reply.YourClientIP)
		}
		if to != broadcast && to.Addr() != guest || to.Port() != 68 {
			t.Errorf("sent to %v", to)
		}
	})
}
