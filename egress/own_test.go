package egress

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestHostsOwnAddresses: a public address of the host's interfaces leads to what listens on them all.
func TestHostsOwnAddresses(t *testing.T) {
	own := []netip.Prefix{netip.MustParsePrefix("203.0.112.77/26"), netip.MustParsePrefix("2001:db9::77/64"), netip.MustParsePrefix("192.168.1.77/24"), netip.MustParsePrefix("198.51.101.9/1")}
	for _, c := range []struct {
		policy  Policy
		address string
		reason  string // empty: dialled
	}{
		{Policy{}, "203.0.112.77:80", ReasonHostAddress},
		{Policy{}, "[::ffff:203.0.112.77]:80", ReasonHostAddress},
		{Policy{}, "[64:ff9b::203.0.112.77]:80", ReasonHostAddress},
		{Policy{}, "[2001:db9::77]:80", ReasonHostAddress},
		{Policy{}, "192.168.1.77:80", ReasonRestricted},
		{Policy{}, "203.0.112.78:80", ReasonHostNetwork},
		{Policy{}, "[64:ff9b::203.0.112.78]:80", ReasonHostNetwork},
		{Policy{}, "203.0.112.64:80", ReasonHostNetwork},
		{Policy{}, "203.0.112.63:80", ""},
		{Policy{}, "203.0.112.128:80", ""},
		{Policy{}, "[2001:db9::ffff:1]:80", ReasonHostNetwork},
		{Policy{}, "[2001:db9:0:1::1]:80", ""},
		{Policy{}, "198.51.101.9:80", ReasonHostAddress},
		{Policy{}, "198.51.101.8:80", ""},
		{Policy{Allow: rules(t, "203.0.112.0/24")}, "203.0.112.77:80", ReasonHostAddress},
		{Policy{Allow: rules(t, "203.0.112.0/24")}, "203.0.112.78:80", ReasonHostNetwork},
		{Policy{Allow: rules(t, "203.0.112.0/24")}, "203.0.112.200:80", ""},
		{Policy{Mode: Open}, "203.0.112.78:80", ""},
		{Policy{Deny: rules(t, "203.0.112.77")}, "203.0.112.77:80", ReasonDenyRule},
		{Policy{Mode: Open}, "203.0.112.77:80", ""},
		{Policy{Mode: None}, "203.0.112.77:80", ReasonNone},
	} {
		w := newWorld(t, Config{Policy: c.policy, HostOwn: func() ([]netip.Prefix, error) { return own, nil }})
		_, err := w.dialTCP(c.address)
		if c.reason != "" {
			denied(t, err, c.reason)
		}
		if dialled := len(w.dials()) > 0; dialled != (c.reason == "") {
			t.Errorf("%s, %s: dialled %v", c.policy, c.address, dialled)
		}
		addr := netip.MustParseAddrPort(c.address).Addr()
		if learned := w.gate.Answer("a.example", nil, addr, time.Minute) == nil; learned && c.reason != "" {
			t.Errorf("%s: the guest learned %s", c.policy, addr)
		}
	}
}

// TestHostsAddressesChange: a new address counts after a few seconds, and one that cannot be asked for stays.
func TestHostsAddressesChange(t *testing.T) {
	var own []netip.Prefix
	var failure error
	asked := 0
	w := newWorld(t, Config{HostOwn: func() ([]netip.Prefix, error) { asked++; return own, failure }})
	reason := func() string { return w.gate.Explain("203.0.112.77", 80, TCP).Reason }
	for _, step := range []struct {
		own     []netip.Prefix
		failure error
		pass    time.Duration
		want    string
		asked   int
	}{
		{nil, nil, 0, ReasonPublic, 1},
		{[]netip.Prefix{netip.MustParsePrefix("203.0.112.77/32")}, nil, ownAge - 1, ReasonPublic, 1},
		{[]netip.Prefix{netip.MustParsePrefix("203.0.112.77/32")}, nil, 1, ReasonHostAddress, 2},
		{nil, errors.New("no netlink"), ownAge, ReasonHostAddress, 3},
		{nil, nil, ownAge, ReasonPublic, 4},
	} {
		own, failure = step.own, step.failure
		w.clock.Advance(step.pass)
		if got := reason(); got != step.want || asked != step.asked {
			t.Errorf("%+v: %s, asked %d times", step, got, asked)
		}
	}
}

// TestPolicyCutsOwnAddress: what mode open reached is cut when the mode ends.
func TestPolicyCutsOwnAddress(t *testing.T) {
	own := []netip.Prefix{netip.MustParsePrefix("203.0.112.77/32")}
	w := newWorld(t, Config{Policy: Policy{Mode: Open}, HostOwn: func() ([]netip.Prefix, error) { return own, nil }})
	w.serve("203.0.112.77:80")
	c, err := w.dialTCP("203.0.112.77:80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if cut, err := w.gate.SetPolicy(Policy{}); cut != 1 || err != nil {
		t.Errorf("%d, %v", cut, err)
	}
	_, err = c.Read(make([]byte, 1))
	denied(t, err, ReasonHostAddress)
}

func TestInterfaceAddrs(t *testing.T) {
	addrs, err := interfaceAddrs()
	if err != nil {
		t.Skip(err)
	}
	if list, err := net.InterfaceAddrs(); err != nil || len(list) != len(addrs) || len(addrs) > 0 && !slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr().IsLoopback() && p.Bits() >= 8 }) {
		t.Errorf("%v of %v, %v", addrs, list, err)
	}
}
