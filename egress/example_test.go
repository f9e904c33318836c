package egress_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"agentvm/egress"
)

// A gate for a VM that may reach one name, and what its resolver and its NAT ask it.
func Example() {
	rule, err := egress.ParseRule("pypi.org:443")
	if err != nil {
		fmt.Println(err)
		return
	}
	gate, err := egress.New(egress.Config{
		Policy: egress.Policy{Allow: []egress.Rule{rule}},
		Dial: func(_ context.Context, network, address string) (net.Conn, error) {
			fmt.Println("dialling", network, address)
			return nil, syscall.ECONNREFUSED
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer gate.Close()

	const a = 1 // the DNS type
	fmt.Println(gate.Question("evil.example", a))

	address := netip.MustParseAddr("151.101.0.223")
	fmt.Println(gate.Question("pypi.org", a), gate.Answer("pypi.org", nil, address, time.Minute))

	guest := netip.MustParseAddrPort("192.168.127.3:40000")
	_, err = gate.DialTCP(context.Background(), guest, netip.AddrPortFrom(address, 443))
	fmt.Println(err)
	_, err = gate.DialTCP(context.Background(), guest, netip.AddrPortFrom(address, 22))
	fmt.Println(errors.Is(err, syscall.EACCES), err)
	// Output:
	// denied by the network policy: evil.example is not in the allowlist; run with --allow evil.example
	// <nil> <nil>
	// dialling tcp 151.101.0.223:443
	// connection refused
	// true denied by the network policy: pypi.org (151.101.0.223) port 22/tcp is not in the allowlist, which has it only as pypi.org:443; run with --allow pypi.org:22
}

func ExampleParseRule() {
	for _, text := range []string{"PyPI.org:443", "*.alpine*.org:443", "10.1.2.3/8"} {
		rule, err := egress.ParseRule(text)
		fmt.Println(rule, err)
	}
	// Output:
	// pypi.org:443 <nil>
	//  "*.alpine*.org:443" column 9: a star stands only for whole leading labels, as in *.alpinelinux.org
	//  "10.1.2.3/8" column 1: not a network: bits are set behind the first 8; probably 10.0.0.0/8 is meant, or the one address 10.1.2.3
}

func ExamplePolicy_Explain() {
	policy, err := egress.ParsePolicy("policy.toml", []byte("allow = [\"*.alpinelinux.org:443\"]\ndeny = [\"*:25\"]\n"))
	if err != nil {
		fmt.Println(err)
		return
	}
	decision := policy.Explain("dl-cdn.alpinelinux.org", 80, egress.TCP)
	fmt.Println(decision.Allowed, decision.Reason)
	for _, line := range decision.Applies {
		fmt.Println(line)
	}
	// Output:
	// false not-in-allowlist
	// mode allowlist
	// allow rule *.alpinelinux.org:443 is about this host, but not about this port and protocol
	// the name is taken to lead to a public address; addresses in restricted ranges would be taken out of the answer
}

// A permissive run teaches the smallest allowlist with which it would have passed.
func ExampleLearner() {
	at := netip.MustParseAddrPort("140.82.112.3:443")
	var l egress.Learner
	for _, e := range []egress.Event{ // as Config.Audit gets them
		{Kind: egress.KindDNS, Verdict: egress.VerdictAllow, Names: []string{"github.com"}, Query: "A", Answer: "140.82.112.3"},
		{Kind: egress.KindTCP, Verdict: egress.VerdictAllow, Reason: egress.ReasonPublic, Destination: at, Names: []string{"github.com"}},
	} {
		l.Add(e)
	}
	fmt.Println(l.Learned(egress.LearnOptions{}).Policy)
	// Output: mode allowlist; allow github.com:443/tcp
}
