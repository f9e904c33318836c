package router

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"agentvm/egress"
)

func TestNetworkWithin(t *testing.T) {
	most := Network{
		Policy: egress.Policy{Mode: egress.Public}, HostPorts: []uint16{5432, 8080}, Networks: []string{"db"}, Proxy: "http://proxy.test:3128",
		Hosts: []egress.Host{{Name: "db.test", Addr: netip.MustParseAddr("192.0.2.7")}}, Resolvers: []netip.AddrPort{netip.MustParseAddrPort("9.9.9.9:53")},
	}
	for _, c := range []struct {
		name   string
		change func(*Network)
		beyond string // part of the error; "": within
	}{
		{"the same", func(*Network) {}, ""},
		{"less", func(n *Network) {
			n.Policy.Mode, n.HostPorts, n.Networks, n.Hosts = egress.Allowlist, []uint16{8080}, nil, nil
		}, ""},
		{"none", func(n *Network) { *n = Network{Disabled: true, HostPorts: []uint16{1}} }, ""},
		{"another address of its own", func(n *Network) { n.Address, n.MTU, n.DisableIPv6 = netip.MustParseAddr("192.168.127.9"), 1280, true }, ""},
		{"the policy", func(n *Network) { n.Policy.Mode = egress.Open }, "mode open"},
		{"a port of the host", func(n *Network) { n.HostPorts = []uint16{22} }, "port 22"},
		{"a network of VMs", func(n *Network) { n.Networks = []string{"web"} }, "web"},
		{"a name", func(n *Network) { n.Hosts = []egress.Host{{Name: "db.test", Addr: netip.MustParseAddr("192.0.2.8")}} }, "db.test"},
		{"the host's resolvers", func(n *Network) { n.Resolvers = nil }, "DNS"},
		{"no proxy", func(n *Network) { n.Proxy = "" }, "proxy"},
	} {
		n := most
		c.change(&n)
		err := n.Within(most)
		if c.beyond == "" && err != nil || c.beyond != "" && (err == nil || !strings.Contains(err.Error(), c.beyond)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.beyond)
		}
		if err := n.Limited(most).Within(most); err != nil {
			t.Errorf("%s, limited: %v", c.name, err)
		}
		if limited := n.Limited(Network{Disabled: true}); limited.Policy.Effective() != egress.None || limited.HostPorts != nil || limited.Networks != nil {
			t.Errorf("%s, limited to nothing: %+v", c.name, limited)
		}
	}
	if err := (Network{}).Within(Network{Disabled: true}); err == nil {
		t.Error("a network is within none")
	}
}

// TestWithinKnowsEachField fails for a new field of Network until it is said whether a VM reaches more by it.
func TestWithinKnowsEachField(t *testing.T) {
	reaches := map[string]Network{
		"Policy": {Policy: egress.Policy{Mode: egress.Open}}, "HostPorts": {HostPorts: []uint16{22}}, "Networks": {Networks: []string{"db"}}, "Proxy": {Proxy: "http://proxy.test:3128"},
		"Hosts": {Hosts: []egress.Host{{Name: "db.test", Addr: netip.MustParseAddr("192.0.2.7")}}}, "Resolvers": {Resolvers: []netip.AddrPort{netip.MustParseAddrPort("9.9.9.9:53")}},
	}
	own := map[string]string{
		"Disabled": "reaches nothing", "Forwards": "lead into the VM", "Search": "completes names that are looked up anyway", "Member": "what others call it",
		"Subnet": "its card", "Address": "its card", "MAC": "its card", "DisableIPv6": "its card", "MTU": "its card",
		"SendLimit": "how much", "ReceiveLimit": "how much", "Limits": "how many, and all of it in the host's memory for the VM",
		"Capture": "watches", "Audit": "watches", "AuditProcesses": "watches", "Dial": "of this process", "Listen": "of this process",
	}
	for i := range reflect.TypeFor[Network]().NumField() {
		name := reflect.TypeFor[Network]().Field(i).Name
		n, reaching := reaches[name]
		switch {
		case reaching == (own[name] != ""):
			t.Errorf("%s: does a VM reach more by it? Within has to know, and this test", name)
		case reaching && n.Within(Network{}) == nil:
			t.Errorf("%s: a VM reaches more by it, and Within says nothing", name)
		case reaching && n.Limited(Network{}).Within(Network{}) != nil:
			t.Errorf("%s is not limited", name)
		}
	}
}
