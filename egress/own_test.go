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
	own := []netip.Addr{netip.MustParseAddr("203.0.113.77"), netip.MustParseAddr("2001:db8::77"), netip.MustParseAddr("192.168.1.77")}
	for _, c := range []struct {
		policy  Policy
		address string
		reason  string // empty: dialled
	}{
		{Policy{}, "203.0.113.77:80", ReasonHostAddress},
		{Policy{}, "[::ffff:203.0.113.77]:80", ReasonHostAddress},
		{Policy{}, "[64:ff9b::203.0.113.77]:80", ReasonHostAddress},
		{Policy{}, "[2001:db8::77]:80", ReasonHostAddress},
		{Policy{}, "192.168.1.77:80", ReasonRestricted},
		{Policy{}, "203.0.113.78:80", ""},
		{Policy{Allow: rules(t, "203.0.113.0/24")}, "203.0.113.77:80", ReasonHostAddress},
		{Policy{Allow: rules(t, "203.0.113.0/24")}, "203.0.113.78:80", ""},
		{Policy{Deny: rules(t, "203.0.113.77")}, "203.0.113.77:80", ReasonDenyRule},
		{Policy{Mode: Open}, "203.0.113.77:80", ""},
		{Policy{Mode: None}, "203.0.113.77:80", ReasonNone},
	} {
		w := newWorld(t, Config{Policy: c.policy, HostOwn: func() ([]netip.Addr, error) { return own, nil }})
		_, err := w.dialTCP(c.address)
		if c.reason != "" {
			denied(t, err, c.reason)
		}
		if dialled := len(w.dials()) > 0; dialled != (c.reason == "") {
			t.Errorf("%s, %s: dialled %v", c.policy, c.address, dialled)
		}
		addr := netip.MustParseAddrPort(c.address).Addr()
		if told := w.gate.Answer("a.example", nil, addr, time.Minute) == nil; told && c.reason != "" {
			t.Errorf("%s: %s was told", c.policy, addr)
		}
	}
}

// TestHostsAddressesChange: a new address counts after a few seconds, and one that cannot be asked for stays.
func TestHostsAddressesChange(t *testing.T) {
	var own []netip.Addr
	var failure error
	asked := 0
	w := newWorld(t, Config{HostOwn: func() ([]netip.Addr, error) { asked++; return own, failure }})
	reason := func() string { return w.gate.Explain("203.0.113.77", 80, TCP).Reason }
	for _, step := range []struct {
		own     []netip.Addr
		failure error
		pass    time.Duration
		want    string
		asked   int
	}{
		{nil, nil, 0, ReasonPublic, 1},
		{[]netip.Addr{netip.MustParseAddr("203.0.113.77")}, nil, ownAge - 1, ReasonPublic, 1},
		{[]netip.Addr{netip.MustParseAddr("203.0.113.77")}, nil, 1, ReasonHostAddress, 2},
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
	own := []netip.Addr{netip.MustParseAddr("203.0.113.77")}
	w := newWorld(t, Config{Policy: Policy{Mode: Open}, HostOwn: func() ([]netip.Addr, error) { return own, nil }})
	w.serve("203.0.113.77:80")
	c, err := w.dialTCP("203.0.113.77:80")
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
	if list, err := net.InterfaceAddrs(); err != nil || len(list) != len(addrs) || len(addrs) > 0 && !slices.ContainsFunc(addrs, netip.Addr.IsLoopback) {
		t.Errorf("%v of %v, %v", addrs, list, err)
	}
}
