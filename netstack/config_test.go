package netstack_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/netstack"
)

func TestAddresses(t *testing.T) {
	mac := func(s string) net.HardwareAddr {
		m, err := net.ParseMAC(s)
		mustDo(t, err)
		return m
	}
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	macs := netstack.Addresses{GatewayMAC: mac("5a:94:ef:e4:0c:dd"), GuestMAC: mac("02:00:00:00:00:01")}
	tests := []struct {
		name   string
		config netstack.Config
		want   netstack.Addresses
	}{
		{"defaults", netstack.Config{}, netstack.Addresses{
			Gateway: gateway, Guest: guestIP, Host: hostIP, Gateway6: gateway6, Host6: addr("fd5a:94ef:e40c::fe"),
			Subnet: prefix("192.168.127.0/24"), Subnet6: prefix("fd5a:94ef:e40c::/64"),
		}},
		{"the smallest subnet, no IPv6", netstack.Config{Subnet: prefix("10.1.2.13/29"), DisableIPv6: true}, netstack.Addresses{
			Gateway: addr("10.1.2.9"), Guest: addr("10.1.2.11"), Host: addr("10.1.2.14"), Subnet: prefix("10.1.2.8/29"),
		}},
		{"a guest's own address", netstack.Config{Subnet: prefix("10.1.2.0/24"), Guest: addr("10.1.2.77"), DisableIPv6: true}, netstack.Addresses{
			Gateway: addr("10.1.2.1"), Guest: addr("10.1.2.77"), Host: addr("10.1.2.254"), Subnet: prefix("10.1.2.0/24"),
		}},
		{"a large subnet", netstack.Config{Subnet: prefix("10.0.0.0/8"), Subnet6: prefix("fd00:1::5/64")}, netstack.Addresses{
			Gateway: addr("10.0.0.1"), Guest: addr("10.0.0.3"), Host: addr("10.255.255.254"),
			Gateway6: addr("fd00:1::1"), Host6: addr("fd00:1::fe"), Subnet: prefix("10.0.0.0/8"), Subnet6: prefix("fd00:1::/64"),
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.want.GatewayMAC, test.want.GuestMAC = macs.GatewayMAC, macs.GuestMAC
			got := newNetwork(t, test.config).Addresses()
			if diff := cmp.Diff(test.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
				cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestBadConfigs(t *testing.T) {
	prefix := netip.MustParsePrefix
	for name, c := range map[string]netstack.Config{
		"a /30":                 {Subnet: prefix("10.0.0.0/30")},
		"a /4":                  {Subnet: prefix("10.0.0.0/4")},
		"IPv6 as IPv4":          {Subnet: prefix("fd00::/64")},
		"loopback":              {Subnet: prefix("127.0.0.0/24")},
		"multicast":             {Subnet: prefix("224.0.0.0/24")},
		"a guest elsewhere":     {Guest: netip.MustParseAddr("10.9.9.9")},
		"the gateway's address": {Guest: netip.MustParseAddr("192.168.127.1")},
		"the host's address":    {Guest: netip.MustParseAddr("192.168.127.254")},
		"the network's address": {Guest: netip.MustParseAddr("192.168.127.0")},
		"the last address":      {Guest: netip.MustParseAddr("192.168.127.255")},
		"a guest of IPv6":       {Guest: netip.MustParseAddr("fd00::3")},
		"IPv4 as IPv6":          {Subnet6: prefix("10.0.0.0/24")},
		"a /48":                 {Subnet6: prefix("fd00::/48")},
		"link-local":            {Subnet6: prefix("fe80::/64")},
		"MTU below IPv6's":      {MTU: 1279},
		"MTU below IPv4's":      {MTU: 67, DisableIPv6: true},
		"MTU beyond virtio-net": {MTU: 65521},
		"negative MTU":          {MTU: -1},
		"negative queue":        {QueueBytes: -1},
		"a group as MAC":        {GuestMAC: net.HardwareAddr{1, 0, 0, 0, 0, 1}},
		"a short MAC":           {GatewayMAC: net.HardwareAddr{2, 0, 0}},
		"no MAC":                {GatewayMAC: make(net.HardwareAddr, 6)},
		"two of one MAC":        {GatewayMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}},
	} {
		if n, err := netstack.New(c); err == nil {
			n.Close()
			t.Errorf("%s: no error", name)
		}
	}
}
