package dhcp

import (
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"agentvm/internal/test/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	guestMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	gateway   = netip.MustParseAddr("192.168.127.1")
	guest     = netip.MustParseAddr("192.168.127.3")
	broadcast = netip.MustParseAddrPort("255.255.255.255:68")
)

func usual() Config {
	return Config{Server: gateway, Guest: guest, GuestMAC: guestMAC, Subnet: netip.MustParsePrefix("192.168.127.0/24")}
}

func newServer(t testing.TB, change func(*Config)) *Server {
	t.Helper()
	config := usual()
	if change != nil {
		change(&config)
	}
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// packet is a message as another implementation reads and writes it.
type packet struct{ layers.DHCPv4 }

type modifier func(*packet)

// from makes a request of the guest's as its client would.
func from(kind layers.DHCPMsgType, modifiers ...modifier) *packet {
	p := &packet{layers.DHCPv4{Operation: layers.DHCPOpRequest, HardwareType: layers.LinkTypeEthernet, Xid: 0x1234fedc, ClientHWAddr: guestMAC}}
	withOption(layers.DHCPOptMessageType, byte(kind))(p)
	for _, modify := range modifiers {
		modify(p)
	}
	return p
}

func (p *packet) bytes() []byte {
	buffer := gopacket.NewSerializeBuffer()
	if err := p.SerializeTo(buffer, gopacket.SerializeOptions{FixLengths: true}); err != nil {
		panic(err)
	}
	return buffer.Bytes()
}

func read(b []byte) (*packet, error) {
	p := &packet{}
	return p, p.DecodeFromBytes(b, gopacket.NilDecodeFeedback)
}

// values returns the options, those in several parts joined.
func (p *packet) values() map[layers.DHCPOpt]string {
	values := map[layers.DHCPOpt]string{}
	for _, o := range p.Options {
		if o.Type != layers.DHCPOptPad {
			values[o.Type] += string(o.Data)
		}
	}
	return values
}

func (p *packet) kind() layers.DHCPMsgType {
	if value := p.values()[layers.DHCPOptMessageType]; len(value) == 1 {
		return layers.DHCPMsgType(value[0])
	}
	return layers.DHCPMsgTypeUnspecified
}

// serverID returns option 54 as text.
func (p *packet) serverID() string { return net.IP(p.values()[layers.DHCPOptServerID]).String() }

func withOption(code layers.DHCPOpt, value ...byte) modifier {
	return func(p *packet) { p.Options = append(p.Options, layers.NewDHCPOption(code, value)) }
}

func withRequested(a string) modifier {
	return withOption(layers.DHCPOptRequestIP, net.ParseIP(a).To4()...)
}

func withServer(a string) modifier {
	return withOption(layers.DHCPOptServerID, net.ParseIP(a).To4()...)
}

func withClient(a string) modifier { return func(p *packet) { p.ClientIP = net.ParseIP(a) } }

func withMAC(mac []byte) modifier { return func(p *packet) { p.ClientHWAddr = mac } }

func withBroadcast(p *packet) { p.Flags |= 0x8000 }

// ask returns the parsed reply, nil when there is none.
func ask(t testing.TB, s *Server, request []byte) (*packet, netip.AddrPort) {
	t.Helper()
	b, to, ok := s.Reply(request)
	if !ok {
		if b != nil || to.IsValid() {
			t.Errorf("not ok, and yet %d bytes for %v", len(b), to)
		}
		return nil, to
	}
	if len(b) < 300 {
		t.Errorf("the reply has %d bytes", len(b))
	}
	reply, err := read(b)
	if err != nil {
		t.Fatalf("the reply does not parse: %v", err)
	}
	return reply, to
}
