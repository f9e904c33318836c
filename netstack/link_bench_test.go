package netstack

import (
	"fmt"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// BenchmarkLink moves bytes over one TCP connection between two gVisor stacks: over our path (framing, a wasi.Stream,
// filter), and over a pair of gVisor's channel endpoints that hand packets over without copying them, in the same run.
// The metric x-bare is our throughput divided by the bare pair's.
//
//	go test -run - -bench Link -benchtime 2s ./netstack
func BenchmarkLink(b *testing.B) {
	for _, mtu := range []int{DefaultMTU, maxMTU} {
		for _, offload := range []bool{true, false} {
			for _, up := range []bool{false, true} {
				name := fmt.Sprintf("mtu=%d/offload=%v/%s", mtu, offload, map[bool]string{false: "down", true: "up"}[up])
				b.Run(name, func(b *testing.B) { benchmarkLink(b, mtu, offload, up) })
			}
		}
	}
}

const benchChunk = 1 << 20 // bytes of one iteration

func benchmarkLink(b *testing.B, mtu int, offload, up bool) {
	config := linkDefaults(b)
	config.mtu, config.header = mtu, offload
	bare := newBarePair(b, mtu, offload, config.addresses)
	ours := newLinkPair(b, config)
	b.SetBytes(benchChunk)
	b.ReportAllocs()
	b.ResetTimer()
	start := time.Now()
	benchmarkTransfer(b, ours.gateway, ours.guest, config.addresses, up)
	took := time.Since(start)
	b.StopTimer()
	start = time.Now()
	benchmarkTransfer(b, bare.gateway, bare.guest, config.addresses, up)
	b.ReportMetric(time.Since(start).Seconds()/took.Seconds(), "x-bare")
}

// benchmarkTransfer sends b.N chunks from the gateway to the guest, or up.
func benchmarkTransfer(b *testing.B, gateway, guest *stack.Stack, a Addresses, up bool) {
	at := tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(a.Gateway.As4()), Port: 5001}
	listener, err := gonet.ListenTCP(gateway, at, ipv4.ProtocolNumber)
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		conn, err := listener.Accept()
		if err != nil {
			b.Error(err)
			return
		}
		defer conn.Close()
		benchmarkSide(b, conn, !up)
	})
	conn, err := gonet.DialTCP(guest, at, ipv4.ProtocolNumber)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	benchmarkSide(b, conn, up)
}

func benchmarkSide(b *testing.B, conn io.ReadWriter, sends bool) {
	chunk := make([]byte, benchChunk)
	for range b.N {
		var err error
		if sends {
			_, err = conn.Write(chunk)
		} else {
			_, err = io.ReadFull(conn, chunk)
		}
		if err != nil {
			b.Error(err)
			return
		}
	}
	if !sends {
		_, _ = conn.Write(chunk[:1])
	} else {
		_, _ = io.ReadFull(conn, chunk[:1])
	}
}

// barePair is two stacks on channel endpoints with the same capabilities as our link has.
type barePair struct{ gateway, guest *stack.Stack }

func newBarePair(b *testing.B, mtu int, offload bool, a Addresses) barePair {
	near, far := newBareEndpoint(mtu, offload), newBareEndpoint(mtu, offload)
	near.AddNotify(&bareNotify{near, far})
	far.AddNotify(&bareNotify{far, near})
	return barePair{
		gateway: newLinkStack(b, near, netip.PrefixFrom(a.Gateway, 24)),
		guest:   newLinkStack(b, far, netip.PrefixFrom(a.Guest, 24)),
	}
}

func newBareEndpoint(mtu int, offload bool) *channel.Endpoint {
	e := channel.New(4096, uint32(mtu), "")
	if offload {
		e.LinkEPCapabilities = stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload
		e.SupportedGSOKind = stack.HostGSOSupported
	}
	return e
}

// bareNotify hands packets over.
type bareNotify struct{ from, to *channel.Endpoint }

func (n *bareNotify) WriteNotify() {
	packet := n.from.Read()
	if packet == nil {
		return
	}
	inbound := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: packet.ToBuffer()})
	n.to.InjectInbound(packet.NetworkProtocolNumber, inbound)
	inbound.DecRef()
	packet.DecRef()
}
