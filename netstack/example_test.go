package netstack_test

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// A guest connects to an address of its choice. Whoever runs the network decides, and here answers it.
func Example() {
	network, err := netstack.New(netstack.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer network.Close()
	network.HandleTCP(16, func(r *netstack.TCPRequest) {
		if r.Destination.Port() != 80 {
			r.Reset()
			return
		}
		conn, err := r.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "hello, %s, this is %s", r.Source.Addr(), r.Destination)
	})

	guest := netstacktest.New(netstacktest.Config{}) // in earnest: a machine's stream
	defer guest.Close()
	go network.Run(context.Background(), guest.Link())

	conn, err := guest.Dial(context.Background(), netip.MustParseAddrPort("203.0.113.7:80"))
	if err != nil {
		fmt.Println(err)
		return
	}
	answer, err := io.ReadAll(conn)
	fmt.Println(string(answer), err)
	_, err = guest.Dial(context.Background(), netip.MustParseAddrPort("203.0.113.7:81"))
	fmt.Println(err)
	// Output:
	// hello, 192.168.127.3, this is 203.0.113.7:80 <nil>
	// guest: dial 203.0.113.7:81: connection refused
}
