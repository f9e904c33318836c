package dhcp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/layers"
)

// TestOptions compares the whole set of options, byte for byte, so that none comes by accident.
func TestOptions(t *testing.T) {
	type options = map[layers.DHCPOpt]string
	network := options{
		53: "\x02", 54: "\xc0\xa8\x7f\x01", 51: "\x00\x01\x51\x80",
		1: "\xff\xff\xff\x00", 3: "\xc0\xa8\x7f\x01", 6: "\xc0\xa8\x7f\x01", 28: "\xc0\xa8\x7f\xff",
	}
	with := func(base options, more options) options {
		all := options{}
		for _, m := range []options{base, more} {
			for code, value := range m {
				if value == "-" {
					delete(all, code)
				} else {
					all[code] = value
				}
			}
		}
		return all
	}
	search := func(c *Config) { c.Search = []string{"corp.example.", "example"} }
	list := "\x04corp\x07example\x00\x07example\x00"
	discover := func(m ...modifier) *packet { return from(layers.DHCPMsgTypeDiscover, m...) }
	asksFor := func(codes ...byte) modifier {
		return withOption(layers.DHCPOptParamsRequest, codes...)
	}
	for _, c := range []struct {
		name    string
		change  func(*Config)
		request *packet
		want    options
	}{
		{"defaults", nil, discover(), network},
		{"asks for one thing", nil, discover(asksFor(1)), network},
		{"asks for what is not there", nil, discover(asksFor(26, 42, 119, 121)), network},
		{"MTU", func(c *Config) { c.MTU = 65520 }, discover(asksFor(1)), with(network, options{26: "\xff\xf0"})},
		{"usual MTU", func(c *Config) { c.MTU = 1500 }, discover(), network},
		{"search", search, discover(), with(network, options{15: "corp.example", 119: list})},
		{"search when not asked", search, discover(asksFor(1, 3, 6)), network},
		{"domain when asked", search, discover(asksFor(15)), with(network, options{15: "corp.example"})},
		{"list when asked", search, discover(asksFor(119)), with(network, options{119: list})},
		{"lease", func(c *Config) { c.Lease = time.Hour }, discover(), with(network, options{51: "\x00\x00\x0e\x10"})},
		{"subnet", func(c *Config) {
			c.Server, c.Guest = netip.MustParseAddr("10.1.2.9"), netip.MustParseAddr("10.1.2.11")
			c.Subnet = netip.MustParsePrefix("10.1.2.8/29")
			c.DNS = []netip.Addr{netip.MustParseAddr("10.1.2.9"), netip.MustParseAddr("10.1.2.10")}
		}, discover(), with(network, options{54: "\x0a\x01\x02\x09", 1: "\xff\xff\xff\xf8", 3: "\x0a\x01\x02\x09",
			6: "\x0a\x01\x02\x09\x0a\x01\x02\x0a", 28: "\x0a\x01\x02\x0f"})},
		{"client identifier", nil, discover(withOption(layers.DHCPOptClientID, []byte("\x01me")...)), with(network, options{61: "\x01me"})},
		{"client identifier that is too long", nil, discover(withOption(layers.DHCPOptClientID, make([]byte, 136)...)), network},
		{"acknowledgement", nil, from(layers.DHCPMsgTypeRequest, withRequested("192.168.127.3")), with(network, options{53: "\x05"})},
		{"inform", nil, from(layers.DHCPMsgTypeInform, withClient("192.168.127.3")), with(network, options{53: "\x05", 51: "-"})},
		{"refusal", nil, from(layers.DHCPMsgTypeRequest, withRequested("10.0.0.1")),
			options{53: "\x06", 54: "\xc0\xa8\x7f\x01", 56: "this network has one address: 192.168.127.3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			reply, _ := ask(t, newServer(t, c.change), c.request.bytes())
			if reply == nil {
				t.Fatal("no reply")
			}
			if diff := cmp.Diff(c.want, reply.values()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestReplyFits: a search list is cut to what the client takes, between two domains.
func TestReplyFits(t *testing.T) {
	var domains []string
	for i := range 40 {
		domains = append(domains, fmt.Sprintf("d%02d.%s", i, strings.Repeat("a", 26))) // 32 bytes each on the wire
	}
	s := newServer(t, func(c *Config) { c.Search = domains })
	for _, c := range []struct {
		says    uint16
		largest int
	}{{0, 548}, {100, 548}, {576, 548}, {1000, 972}, {65535, 1472}} {
		request := from(layers.DHCPMsgTypeDiscover, withOption(layers.DHCPOptMaxMessageSize, byte(c.says>>8), byte(c.says)))
		b, _, _ := s.Reply(request.bytes())
		reply, err := read(b)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > c.largest || len(b) < c.largest-40 {
			t.Errorf("client takes %d: %d bytes, want just under %d", c.says, len(b), c.largest)
		}
		got := domainsOf(reply.values()[layers.DHCPOptDomainSearch])
		if len(got) == 0 || !slices.Equal(got, domains[:len(got)]) {
			t.Errorf("client takes %d: domains %q", c.says, got)
		}
	}
}

// domainsOf reads names that are not compressed.
func domainsOf(value string) (domains []string) {
	var labels []string
	for len(value) > 0 {
		n := int(value[0])
		if n == 0 {
			domains, labels = append(domains, strings.Join(labels, ".")), nil
		} else {
			labels = append(labels, value[1:1+n])
		}
		value = value[1+n:]
	}
	return domains
}
