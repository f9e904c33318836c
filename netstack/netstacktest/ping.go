package netstacktest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Ping sends an echo request through one of the guest's ping sockets and waits for the reply with the same sequence
// number and payload.
func (g *Guest) Ping(ctx context.Context, to netip.Addr, sequence uint16, payload []byte) error {
	queue := new(waiter.Queue)
	transport, kind := icmp.ProtocolNumber4, byte(header.ICMPv4Echo)
	if to.Is6() {
		transport, kind = icmp.ProtocolNumber6, byte(header.ICMPv6EchoRequest)
	}
	endpoint, err := g.Stack.NewEndpoint(transport, protocolOf(to), queue)
	if err != nil {
		return errnoOf(err)
	}
	defer endpoint.Close()
	entry, changed := waiter.NewChannelEntry(waiter.ReadableEvents)
	queue.EventRegister(&entry)
	defer queue.EventUnregister(&entry)
	if err := endpoint.Connect(full(netip.AddrPortFrom(to, 0))); err != nil {
		return errnoOf(err)
	}
	request := append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, payload...)
	binary.BigEndian.PutUint16(request[6:], sequence)
	if _, err := endpoint.Write(bytes.NewReader(request), tcpip.WriteOptions{}); err != nil {
		return errnoOf(err)
	}
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("guest: ping %s: %w", to, ctx.Err())
		}
		if answered(endpoint, sequence, payload) {
			return nil
		}
	}
}

// answered reads what has come and looks for the reply.
func answered(endpoint tcpip.Endpoint, sequence uint16, payload []byte) bool {
	for {
		var reply bytes.Buffer
		if _, err := endpoint.Read(&reply, tcpip.ReadOptions{}); err != nil {
			return false
		}
		b := reply.Bytes()
		if len(b) >= 8 && binary.BigEndian.Uint16(b[6:]) == sequence && bytes.Equal(b[8:], payload) {
			return true
		}
	}
}
