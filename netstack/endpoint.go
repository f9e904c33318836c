package netstack

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// linkConfig describes a linkEndpoint. Everything must be set unless its comment says otherwise.
type linkConfig struct {
	addresses  Addresses
	linkLocal  netip.Addr // the gateway's; zero: made of its MAC (RFC 4291, appendix A), as gVisor does
	mtu        int
	header     bool
	queueBytes int
	stall      time.Duration // how long a send waits at most (see queue); zero: defaultStall
	capture    io.Writer     // nil: no capture
	clock      tcpip.Clock
	logger     *slog.Logger

	// echo gets the echo requests to addresses that are not the gateway's own, on the goroutine that reads frames: it
	// must not block. nil: they are dropped.
	echo func(echoRequest)
}

// echoRequest is an ICMP or ICMPv6 echo request of the guest's. The payload is only valid during the call.
type echoRequest struct {
	source, destination netip.Addr
	id, sequence        uint16
	ttl                 uint8
	payload             []byte
}

// linkEndpoint is the gateway's end of the Ethernet link to the guest, as gVisor sees it.
type linkEndpoint struct {
	config   linkConfig
	counters linkCounters

	mu         sync.RWMutex
	dispatcher stack.NetworkDispatcher
}

var (
	_ stack.LinkEndpoint = (*linkEndpoint)(nil)
	_ stack.GSOEndpoint  = (*linkEndpoint)(nil)
)

// newLink returns an endpoint that queues a bounded amount until run.
func newLink(config linkConfig) *linkEndpoint {
	return &linkEndpoint{config: config}
}

// run moves frames until the link or ctx ends or close is called. It may be called once.
func (e *linkEndpoint) run(ctx context.Context, link io.ReadWriter) error { return nil }

// close ends run and every waiting send. What is sent afterwards is dropped.
func (e *linkEndpoint) close() {}

// sendFrame queues one complete Ethernet frame for the guest. All its checksums must be there. It never waits: a full
// queue drops the frame. The frame stays the caller's.
func (e *linkEndpoint) sendFrame(frame []byte) bool { return false }

// stats gives the link's part of the network's Stats.
func (e *linkEndpoint) stats() Stats { return e.counters.snapshot() }

func (e *linkEndpoint) WritePackets(packets stack.PacketBufferList) (int, tcpip.Error) { return 0, nil }
func (e *linkEndpoint) MTU() uint32                                                    { return uint32(e.config.mtu) }
func (e *linkEndpoint) SetMTU(uint32)                                                  {}
func (e *linkEndpoint) MaxHeaderLength() uint16                                        { return header.EthernetMinimumSize }
func (e *linkEndpoint) LinkAddress() tcpip.LinkAddress {
	return tcpip.LinkAddress(e.config.addresses.GatewayMAC)
}
func (e *linkEndpoint) SetLinkAddress(tcpip.LinkAddress) {}
func (e *linkEndpoint) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityResolutionRequired
}
func (e *linkEndpoint) Attach(dispatcher stack.NetworkDispatcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dispatcher = dispatcher
}
func (e *linkEndpoint) IsAttached() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.dispatcher != nil
}
func (e *linkEndpoint) Wait()                                   {}
func (e *linkEndpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }
func (e *linkEndpoint) AddHeader(packet *stack.PacketBuffer)    {}
func (e *linkEndpoint) ParseHeader(packet *stack.PacketBuffer) bool {
	_, ok := packet.LinkHeader().Consume(header.EthernetMinimumSize)
	return ok
}
func (e *linkEndpoint) Close()                           {}
func (e *linkEndpoint) SetOnCloseAction(func())          {}
func (e *linkEndpoint) GSOMaxSize() uint32               { return 65535 }
func (e *linkEndpoint) SupportedGSO() stack.SupportedGSO { return stack.GSONotSupported }
