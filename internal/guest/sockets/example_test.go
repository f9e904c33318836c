//go:build linux

package sockets_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/guest/sockets"
)

// Who listens there?
func Example() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = l.Close() }()
	found, err := sockets.Find(guestrpc.SocketQuery{Network: "tcp", Local: netip.MustParseAddrPort(l.Addr().String())})
	if err != nil || len(found) == 0 {
		fmt.Println("not found", err)
		return
	}
	fmt.Println(found[0].State, found[0].PID == os.Getpid())
	// Output:
	// LISTEN true
}
