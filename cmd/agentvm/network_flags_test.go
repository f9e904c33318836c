package main

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"agentvm/egress"
	"agentvm/internal/settings"
	"agentvm/nat"
	"agentvm/vm"
)

// networkOf returns the network that the flags make.
func networkOf(t *testing.T, args ...string) (vm.Network, error) {
	t.Helper()
	var f networkFlags
	command := &cobra.Command{}
	f.register(command)
	if err := command.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	var c vm.Config
	err := f.change(settings.Config{Config: &c}, always)
	return c.Network, err
}

func TestNetworkFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.toml")
	policy := "mode = \"allowlist\"\nallow = [\"pypi.org:443\"]\ndeny = [\"*:25\"]\n"
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, args string // separated by spaces
		policy     string
		check      func(vm.Network) bool // of the rest; nil: nothing
	}{
		{"nothing", "", "mode public", nil},
		{"mode", "--net open", "mode open", nil},
		{"an allow rule makes it an allowlist", "--allow pypi.org", "mode allowlist; allow pypi.org", nil},
		{"a mode beside rules", "--net public --allow pypi.org", "mode public; allow pypi.org", nil},
		{"deny", "--deny *:25 --deny 8.8.8.8", "mode public; deny *:25, 8.8.8.8", nil},
		{"commas are a rule's own", "--allow pypi.org:80,443/tcp", "mode allowlist; allow pypi.org:80,443/tcp", nil},
		{"file", "--policy " + file, "mode allowlist; allow pypi.org:443; deny *:25", nil},
		{"flags add to the file", "--policy " + file + " --allow example.com --deny 1.1.1.1", "mode allowlist; allow pypi.org:443, example.com; deny *:25, 1.1.1.1", nil},
		{"and replace its mode", "--policy " + file + " --net none", "mode none; allow pypi.org:443; deny *:25", nil},
		{"host ports", "--host-port 5432 --host-port 80", "mode public", func(n vm.Network) bool { return slices.Equal(n.HostPorts, []uint16{5432, 80}) }},
		{"forward", "-p 8080:80 -p 127.0.0.1:53:53/udp", "mode public", func(n vm.Network) bool {
			return len(n.Forwards) == 2 && n.Forwards[0].GuestPort == 80 && n.Forwards[1] == nat.Forward{Protocol: "udp", Listen: netip.MustParseAddrPort("127.0.0.1:53"), GuestPort: 53}
		}},
		{"resolvers", "--dns 9.9.9.9 --dns 127.0.0.1:5353 --dns 2620:fe::fe --dns [2620:fe::fe]:5353", "mode public", func(n vm.Network) bool {
			want := []string{"9.9.9.9:53", "127.0.0.1:5353", "[2620:fe::fe]:53", "[2620:fe::fe]:5353"}
			for i, r := range n.Resolvers {
				if r.String() != want[i] {
					return false
				}
			}
			return len(n.Resolvers) == len(want)
		}},
		{"the rest", "--mtu 9000 --no-ipv6 --send-limit 500K --receive-limit 10M/s", "mode public", func(n vm.Network) bool {
			return n.MTU == 9000 && n.DisableIPv6 && n.SendLimit == 500<<10 && n.ReceiveLimit == 10<<20
		}},
		{"none", "--no-network", "mode public", func(n vm.Network) bool { return n.Disabled }},
		{"none as docker has it", "--network none", "mode public", func(n vm.Network) bool { return n.Disabled && len(n.Networks) == 0 }},
		{"a network of VMs", "--network lab", "mode public", func(n vm.Network) bool { return !n.Disabled && slices.Equal(n.Networks, []string{"lab"}) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			n, err := networkOf(t, strings.Fields(test.args)...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.policy, n.Policy.String()); diff != "" {
				t.Errorf("policy (-want +got):\n%s", diff)
			}
			if test.check != nil && !test.check(n) {
				t.Errorf("network %+v", n)
			}
		})
	}
}

func TestNetworkFlagsThatAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.toml")
	if err := os.WriteFile(file, []byte("mode = \"public\"\nallow = [\"pypi.org:99999\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, args, want string }{
		{"mode", "--net some", `--net "some": want public, allowlist, none or open`},
		{"rule", "--allow pypi.org:99999", "column 10"},
		{"rule's flag", "--deny http://pypi.org", "--deny"},
		{"rule in a file", "--policy " + file, file + ":2:"},
		{"file", "--policy " + file + ".missing", "policy file"},
		{"host port", "--host-port 0", `--host-port "0"`},
		{"host port's range", "--host-port 65536", `--host-port "65536"`},
		{"forward", "-p 8080", "column 5"},
		{"resolver", "--dns dns.example", `--dns "dns.example"`},
		{"resolver's port", "--dns 9.9.9.9:0", "--dns"},
		{"limit", "--send-limit fast", `--send-limit "fast"`},
		{"limit of nothing", "--receive-limit 0", "--receive-limit"},
		{"no network but rules", "--no-network --allow pypi.org", "--no-network"},
		{"no network but a capture", "--no-network --pcap x", "--no-network"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := networkOf(t, strings.Fields(test.args)...)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q in it", err, test.want)
			}
		})
	}
}

func TestParseTarget(t *testing.T) {
	tests := []struct {
		text string
		want destination // zero: refused
	}{
		{"pypi.org:443", destination{"pypi.org", 443, "tcp"}},
		{"pypi.org:443/tcp", destination{"pypi.org", 443, "tcp"}},
		{"192.0.2.1:53/udp", destination{"192.0.2.1", 53, "udp"}},
		{"[2606:4700::1111]:53/udp", destination{"2606:4700::1111", 53, "udp"}},
		{"pypi.org", destination{}},
		{":443", destination{}},
		{"pypi.org:https", destination{}},
		{"pypi.org:0", destination{}},
		{"pypi.org:443/sctp", destination{}},
		{"2606:4700::1111:53", destination{}},
		{"https://pypi.org", destination{}},
		{"", destination{}},
	}
	for _, test := range tests {
		t.Run(test.text, func(t *testing.T) {
			got, err := parseDestination(test.text)
			if got != test.want || (err == nil) != (test.want != destination{}) {
				t.Errorf("%+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}

func TestDenials(t *testing.T) {
	at := netip.MustParseAddrPort
	tests := []struct {
		name   string
		events []egress.Event
		want   string
	}{
		{"nothing", []egress.Event{{Verdict: "allow", Kind: "tcp"}, {Verdict: "deny", Kind: "policy"}}, ""},
		{
			"one name, asked for twice", []egress.Event{
				{Verdict: "deny", Kind: "dns", Names: []string{"pypi.org"}, Query: "A", Reason: egress.ReasonNameNotAllowed},
				{Verdict: "deny", Kind: "dns", Names: []string{"pypi.org"}, Query: "AAAA", Reason: egress.ReasonNameNotAllowed},
			}, "2 network requests were denied: pypi.org (not in the allowlist; --allow pypi.org)",
		},
		{
			"one event for many queries", []egress.Event{{Verdict: "deny", Kind: "dns", Names: []string{"a.example"}, Reason: egress.ReasonResolverRule, Count: 1315}},
			"1315 network requests were denied: a.example (a limit of the VM's DNS)",
		},
		{
			"one address", []egress.Event{{Verdict: "deny", Kind: "tcp", Destination: at("10.0.0.1:22"), Reason: egress.ReasonRestricted}},
			"1 network request was denied: 10.0.0.1:22 (not a public address; --allow 10.0.0.1:22)",
		},
		{
			"a private address with a name", []egress.Event{{Verdict: "deny", Kind: "udp", Names: []string{"db.corp"}, Destination: at("10.0.0.1:53"), Reason: egress.ReasonRestricted}},
			"1 network request was denied: db.corp:53/udp (not a public address; --allow 10.0.0.1:53/udp)",
		},
		{
			"credentials of a cloud", []egress.Event{{Verdict: "deny", Kind: "tcp", Destination: at("169.254.169.254:80"), Reason: egress.ReasonRestricted}},
			"1 network request was denied: 169.254.169.254:80 (not a public address; --net open)",
		},
		{
			"a name's port", []egress.Event{{Verdict: "deny", Kind: "udp", Names: []string{"pypi.org"}, Destination: at("192.0.2.1:443"), Reason: egress.ReasonNotAllowed}},
			"1 network request was denied: pypi.org:443/udp (not in the allowlist; --allow pypi.org:443/udp)",
		},
		{
			"IPv6 and a deny rule", []egress.Event{{Verdict: "deny", Kind: "tcp", Destination: at("[2001:db9::1]:25"), Reason: egress.ReasonDenyRule, Rule: "*:25"}},
			"1 network request was denied: [2001:db9::1]:25 (denied by *:25)",
		},
		{
			"the host's port", []egress.Event{{Verdict: "deny", Kind: "tcp", Names: []string{"host.agentvm.internal"}, Destination: at("192.168.127.254:5432"), Reason: egress.ReasonHostPortClosed}},
			"1 network request was denied: host.agentvm.internal:5432 (port not opened; --host-port 5432)",
		},
		{
			"what a terminal would interpret", []egress.Event{{Verdict: "deny", Kind: "dns", Names: []string{"a\x1b[2Jb"}, Reason: "something-new"}},
			"1 network request was denied: a?[2Jb (something-new)",
		},
		{
			"many", []egress.Event{
				{Verdict: "deny", Kind: "dns", Names: []string{"a"}, Reason: egress.ReasonNone}, {Verdict: "deny", Kind: "dns", Names: []string{"b"}, Reason: egress.ReasonNone},
				{Verdict: "deny", Kind: "dns", Names: []string{"c"}, Reason: egress.ReasonNone}, {Verdict: "deny", Kind: "dns", Names: []string{"d"}, Reason: egress.ReasonNone},
			},
			"4 network requests were denied: a (the network is off; --net public), b (the network is off; --net public), c (the network is off; --net public), and 1 more; --net-log FILE records all",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var d denials
			for _, e := range test.events {
				d.add(e)
			}
			if diff := cmp.Diff(test.want, d.line(false)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDenialsAreBounded(t *testing.T) {
	var d denials
	for i := range 1000 {
		d.add(egress.Event{Verdict: "deny", Kind: "tcp", Destination: netip.AddrPortFrom(netip.IPv6Loopback(), uint16(i+1))})
	}
	if len(d.list) != maxTargets || d.total != 1000 {
		t.Errorf("%d targets of %d denials", len(d.list), d.total)
	}
}

// TestPolicyFileIsBounded: a file that never ends is an error, and soon.
func TestPolicyFileIsBounded(t *testing.T) {
	endless := filepath.Join(t.TempDir(), "policy.toml")
	if err := os.WriteFile(endless, bytes.Repeat([]byte("# a comment\n"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	paths := []string{endless}
	if _, err := os.Stat("/dev/zero"); err == nil {
		paths = append(paths, "/dev/zero")
	}
	for _, path := range paths {
		if _, err := readPolicy(path); err == nil || !strings.Contains(err.Error(), "more than") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestReasonsHaveWords: users see each reason in words, not as the identifier that programs get.
func TestReasonsHaveWords(t *testing.T) {
	source, err := os.ReadFile("../../egress/event.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(source), "\n") {
		if _, value, found := strings.Cut(line, `= "`); found && strings.Contains(line, "// denied") {
			value, _, _ := strings.Cut(value, `"`)
			if value != egress.ReasonDenyRule && reasonWords[value] == "" {
				t.Errorf("no words for %q", value)
			}
		}
	}
}
