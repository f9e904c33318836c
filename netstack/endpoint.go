package netstack

import (
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
	stall      time.Duration // after which a send into a full queue gives up, see sendQueue; zero: defaultStall
	capture    io.Writer     // nil: no capture
	clock      tcpip.Clock
	logger     *slog.Logger

	// echo gets the echo requests to addresses that are not the gateway's own, and solicited the sources of router
	// solicitations (which the stack sees too). Both are called on the goroutine that reads frames: they must not
	// block. nil: such echo requests are dropped.
	echo      func(echoRequest)
	solicited func(source netip.Addr)

	// expired gets the beginnings of packets to other hosts that have no hops left, on the same goroutine, for its call. nil: they
	// are dropped without a word.
	expired func(quote []byte)

	// datagram says whether there is room for a UDP datagram, on the same goroutine. nil: for all.
	datagram func(from, to netip.AddrPort) bool
}

// echoRequest is an ICMP or ICMPv6 echo request of the guest. Payload and quote are only valid during the call.
type echoRequest struct {
	source, destination netip.Addr
	id, sequence        uint16
	ttl                 uint8
	payload             []byte
	quote               []byte // of the packet, for an error about it
}

// linkEndpoint is the gateway's end of the Ethernet link to the guest, as gVisor sees it: link.go moves its frames. It
// speaks Ethernet itself, and asks gVisor for link address resolution.
type linkEndpoint struct {
	config     linkConfig
	headerSize int // of the virtio_net_hdr; 0 without
	counters   linkCounters
	queue      *sendQueue
	capture    *capture // nil without
	filter     *filter  // the reading goroutine's

	mu         sync.RWMutex
	dispatcher stack.NetworkDispatcher // nil before and after the stack
	stop       func(error)             // ends run; nil before it
	started    bool
	closed     bool
}

var (
	_ stack.LinkEndpoint = (*linkEndpoint)(nil)
	_ stack.GSOEndpoint  = (*linkEndpoint)(nil)
)

// newLink returns an endpoint that queues a bounded amount until run.
func newLink(config linkConfig) *linkEndpoint {
	e := &linkEndpoint{
		config: config,
		filter: newFilter(&config),
		queue:  newSendQueue(config.queueBytes, config.stall, config.clock),
	}
	if config.header {
		e.headerSize = virtioHeaderSize
	}
	if config.capture != nil {
		e.capture = newCapture(config.capture, config.clock, config.logger)
	}
	return e
}

// stats gives the link's part of the network's Stats.
func (e *linkEndpoint) stats() Stats {
	s := e.counters.snapshot()
	if e.capture != nil {
		s.CapturedFrames, s.LostCaptures = e.capture.frames.Load(), e.capture.lost.Load()
	}
	return s
}

// WritePackets queues packets for the guest, waiting while the queue is full (see sendQueue). It copies them.
func (e *linkEndpoint) WritePackets(packets stack.PacketBufferList) (int, tcpip.Error) {
	for i, packet := range packets.AsSlice() {
		if err := e.writePacket(packet); err != nil {
			return i, err
		}
	}
	return packets.Len(), nil
}

func (e *linkEndpoint) writePacket(packet *stack.PacketBuffer) tcpip.Error {
	size := packet.Size()
	to, why := e.reserve(size, true)
	if why != "" {
		return dropError(why)
	}
	if e.headerSize > 0 {
		putVirtioHeader(to[prefixSize:], packet)
	}
	frame := to[prefixSize+e.headerSize:]
	copyPacket(frame, packet)
	e.commit(parseOffload(to[prefixSize:prefixSize+e.headerSize]), frame)
	return nil
}

// copyPacket copies headers and data, which lie in several views.
func copyPacket(to []byte, packet *stack.PacketBuffer) {
	views, skip := packet.AsViewList()
	for v := views.Front(); v != nil; v = v.Next() {
		b := v.AsSlice()
		n := min(skip, len(b))
		skip -= n
		to = to[copy(to, b[n:]):]
	}
}

// sendFrame queues one complete Ethernet frame for the guest. All its checksums must be there. It never waits: a full
// queue drops the frame. It reports whether the frame was queued; the frame stays the caller's.
func (e *linkEndpoint) sendFrame(frame []byte) bool {
	to, why := e.reserve(len(frame), false)
	if why != "" {
		return false
	}
	if e.headerSize > 0 {
		clear(to[prefixSize : prefixSize+virtioHeaderSize])
		to[prefixSize+virtioFlags] = flagDataValid
	}
	copy(to[prefixSize+e.headerSize:], frame)
	e.commit(offload{}, to[prefixSize+e.headerSize:])
	return true
}

// reserve makes room in the queue, which stays locked until commit, and writes the prefix. It counts what is dropped.
func (e *linkEndpoint) reserve(frame int, wait bool) ([]byte, DropReason) {
	if frame < frameMin || frame > frameMax {
		e.counters.drop(DropSendOversized)
		return nil, DropSendOversized
	}
	to, waited, why := e.queue.reserve(prefixSize+e.headerSize+frame, wait)
	if waited {
		e.counters.waits.Add(1)
	}
	if why != "" {
		e.counters.drop(why)
		return nil, why
	}
	putPrefix(to, e.headerSize+frame)
	return to, ""
}

// commit counts and captures the frame that was reserved, under the queue's lock: the capture has the link's order.
func (e *linkEndpoint) commit(o offload, frame []byte) {
	e.counters.framesOut.Add(1)
	e.counters.bytesOut.Add(uint64(len(frame)))
	if e.capture != nil {
		e.capture.record(o, frame)
	}
	e.queue.commit()
}

// dropError is the error that gVisor gets.
func dropError(why DropReason) tcpip.Error {
	switch why {
	case DropClosed:
		return &tcpip.ErrClosedForSend{}
	case DropSendOversized:
		return &tcpip.ErrMessageTooLong{}
	}
	return &tcpip.ErrNoBufferSpace{}
}

// MTU is the largest IP packet, as gVisor wants it.
func (e *linkEndpoint) MTU() uint32 { return uint32(e.config.mtu) }

// SetMTU does nothing: the guest learned one MTU, and it stays.
func (e *linkEndpoint) SetMTU(uint32) {}

// MaxHeaderLength is what AddHeader needs. The virtio_net_hdr is written when the packet is copied.
func (e *linkEndpoint) MaxHeaderLength() uint16 { return header.EthernetMinimumSize }

// LinkAddress is the gateway's MAC.
func (e *linkEndpoint) LinkAddress() tcpip.LinkAddress {
	return tcpip.LinkAddress(e.config.addresses.GatewayMAC)
}

// SetLinkAddress does nothing: the guest learned one gateway.
func (e *linkEndpoint) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities: with offload, the filter has checked what gVisor then does not. See putVirtioHeader for transmit
// checksums.
func (e *linkEndpoint) Capabilities() stack.LinkEndpointCapabilities {
	if e.config.header {
		return stack.CapabilityResolutionRequired | stack.CapabilityRXChecksumOffload
	}
	return stack.CapabilityResolutionRequired
}

// SupportedGSO lets TCP send packets of up to GSOMaxSize bytes, which the guest's driver takes whole.
func (e *linkEndpoint) SupportedGSO() stack.SupportedGSO {
	if e.config.header {
		return stack.HostGSOSupported
	}
	return stack.GSONotSupported
}

// GSOMaxSize is what fits into an IP packet.
func (e *linkEndpoint) GSOMaxSize() uint32 { return gsoMaxPacket }

// Attach sets where frames from the guest go; nil while the stack is taken down.
func (e *linkEndpoint) Attach(dispatcher stack.NetworkDispatcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dispatcher = dispatcher
}

// IsAttached says whether Attach was called with something.
func (e *linkEndpoint) IsAttached() bool { return e.attached() != nil }

func (e *linkEndpoint) attached() stack.NetworkDispatcher {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.dispatcher
}

// ARPHardwareType is Ethernet.
func (e *linkEndpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// AddHeader writes the Ethernet header.
func (e *linkEndpoint) AddHeader(packet *stack.PacketBuffer) {
	header.Ethernet(packet.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: packet.EgressRoute.LocalLinkAddress,
		DstAddr: packet.EgressRoute.RemoteLinkAddress,
		Type:    packet.NetworkProtocolNumber,
	})
}

// ParseHeader takes the Ethernet header off.
func (e *linkEndpoint) ParseHeader(packet *stack.PacketBuffer) bool {
	_, ok := packet.LinkHeader().Consume(header.EthernetMinimumSize)
	return ok
}

// Wait does nothing: run's goroutines are waited for by run.
func (e *linkEndpoint) Wait() {}

// Close is gVisor's way to say that the stack is gone.
func (e *linkEndpoint) Close() { e.close() }

// SetOnCloseAction does nothing: there is no device.
func (e *linkEndpoint) SetOnCloseAction(func()) {}
