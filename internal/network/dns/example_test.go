package dns_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"agentvm/internal/network/dns"

	wire "github.com/miekg/dns"
)

// noTrackers refuses some names and allows everything else.
type noTrackers struct{}

func (noTrackers) Question(name string, _ uint16) error {
	if strings.HasPrefix(name, "tracker.") {
		return fmt.Errorf("%s is a tracker", name)
	}
	return nil
}

func (noTrackers) Answer(string, []string, netip.Addr, time.Duration) error { return nil }

func (noTrackers) Asked(_ dns.Client, name string, _ uint16, answer string, _ error) {
	fmt.Println("asked:", name, "->", answer)
}

// A resolver with one local name and no server behind it. ServeConn and ServeDatagrams do the same for connections.
func Example() {
	server, err := dns.New(dns.Config{
		Policy: noTrackers{},
		Hosts:  map[string][]netip.Addr{"host.agentvm.internal": {netip.MustParseAddr("192.168.127.254")}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, name := range []string{"host.agentvm.internal.", "tracker.example."} {
		query, err := new(wire.Msg).SetQuestion(name, wire.TypeA).Pack()
		if err != nil {
			fmt.Println(err)
			return
		}
		reply := new(wire.Msg)
		if err := reply.Unpack(server.Reply(context.Background(), query, true)); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(wire.RcodeToString[reply.Rcode], len(reply.Answer))
	}
	// Output:
	// asked: host.agentvm.internal -> 192.168.127.254
	// NOERROR 1
	// asked: tracker.example -> NXDOMAIN: tracker.example is a tracker
	// NXDOMAIN 0
}
