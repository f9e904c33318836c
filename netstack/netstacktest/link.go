package netstacktest

import (
	"bytes"
	"encoding/binary"
	"sync"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Fields of a virtio_net_hdr.
const (
	needsChecksum = 1
	gsoTCP4       = 1
	gsoTCP6       = 4
	gsoMax        = 65535 - header.EthernetMinimumSize
)

// transmitQueue is how many frames wait before senders do, like a driver's ring.
const transmitQueue = 1024

// link is the guest's network card.
type link struct {
	config  Config
	wire    *Wire
	in, out *lane
	queue   chan []byte
	over    chan struct{}
	once    sync.Once

	mu         sync.RWMutex
	dispatcher stack.NetworkDispatcher
}

var (
	_ stack.LinkEndpoint = (*link)(nil)
	_ stack.GSOEndpoint  = (*link)(nil)
)

func newLink(c Config, w *Wire) *link {
	l := &link{config: c, wire: w, queue: make(chan []byte, transmitQueue), over: make(chan struct{})}
	l.in = newLane(c.Impair, true, l.deliver)
	l.out = newLane(c.Impair, false, l.enqueue)
	return l
}

// receive moves frames from the wire to the stack until the wire ends.
func (l *link) receive() {
	for {
		frame, err := l.wire.Receive()
		if err != nil {
			return
		}
		l.in.pass(frame)
	}
}

// transmit moves frames from the stack to the wire until the link ends, as many at once as there are, like a device that
// looks at its ring. Without a wire they are lost.
func (l *link) transmit() {
	var batch []byte
	for {
		select {
		case frame := <-l.queue:
			batch = l.gather(appendFrame(batch[:0], frame))
			_ = l.wire.SendRaw(batch)
		case <-l.over:
			return
		}
	}
}

// gather appends what is queued, up to a quarter of what the wire holds.
func (l *link) gather(batch []byte) []byte {
	for len(batch) < wireBytes/4 {
		select {
		case frame := <-l.queue:
			batch = appendFrame(batch, frame)
		default:
			return batch
		}
	}
	return batch
}

func (l *link) enqueue(frame []byte) {
	select {
	case l.queue <- frame:
	case <-l.over:
	}
}

// end stops the card; frames under way are lost.
func (l *link) end() {
	l.once.Do(func() {
		close(l.over)
		l.in.end()
		l.out.end()
	})
}

// deliver gives the stack one frame.
func (l *link) deliver(frame []byte) {
	if l.config.Header {
		if frame = l.complete(frame); frame == nil {
			return
		}
	}
	if len(frame) < header.EthernetMinimumSize {
		return
	}
	l.mu.RLock()
	dispatcher := l.dispatcher
	l.mu.RUnlock()
	if dispatcher == nil {
		return
	}
	eth := header.Ethernet(frame)
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
	defer pkt.DecRef()
	pkt.PktType = l.packetType(eth.DestinationAddress())
	if pkt.PktType == tcpip.PacketOtherHost || !l.ParseHeader(pkt) {
		return
	}
	dispatcher.DeliverNetworkPacket(eth.Type(), pkt)
}

// complete takes the virtio_net_hdr off and stores the checksum that it leaves to the driver, so that the stack can check
// it like any other (Virtio 1.2, section 5.1.6.4). It returns nil for what no device may send.
func (l *link) complete(frame []byte) []byte {
	if len(frame) < HeaderSize {
		return nil
	}
	h, frame := frame[:HeaderSize], frame[HeaderSize:]
	if h[0]&needsChecksum == 0 || l.config.TrustChecksums {
		return frame
	}
	start := int(binary.LittleEndian.Uint16(h[6:]))
	at := start + int(binary.LittleEndian.Uint16(h[8:]))
	if at+2 > len(frame) {
		return nil
	}
	frame = bytes.Clone(frame) // a duplicate must not be completed twice
	binary.BigEndian.PutUint16(frame[at:], ^checksum.Checksum(frame[start:], 0))
	return frame
}

func (l *link) packetType(to tcpip.LinkAddress) tcpip.PacketType {
	switch {
	case to == l.LinkAddress():
		return tcpip.PacketHost
	case to == header.EthernetBroadcastAddress:
		return tcpip.PacketBroadcast
	case header.IsMulticastEthernetAddress(to):
		return tcpip.PacketMulticast
	default:
		return tcpip.PacketOtherHost
	}
}

// WritePackets sends frames of the guest's stack.
func (l *link) WritePackets(packets stack.PacketBufferList) (int, tcpip.Error) {
	for _, pkt := range packets.AsSlice() {
		l.out.pass(l.frame(pkt))
	}
	return packets.Len(), nil
}

// frame is pkt as it goes over the wire.
func (l *link) frame(pkt *stack.PacketBuffer) []byte {
	frame := make([]byte, 0, HeaderSize+pkt.Size())
	if l.config.Header {
		frame = append(frame, l.virtio(pkt)...)
	}
	for _, part := range pkt.AsSlices() {
		frame = append(frame, part...)
	}
	return frame
}

// virtio is the virtio_net_hdr of pkt.
func (l *link) virtio(pkt *stack.PacketBuffer) []byte {
	h, gso := make([]byte, HeaderSize), pkt.GSOOptions
	if gso.Type == stack.GSONone {
		return h
	}
	binary.LittleEndian.PutUint16(h[2:], uint16(pkt.HeaderSize()))
	if gso.NeedsCsum {
		h[0] = needsChecksum
		binary.LittleEndian.PutUint16(h[6:], header.EthernetMinimumSize+gso.L3HdrLen)
		binary.LittleEndian.PutUint16(h[8:], gso.CsumOffset)
	}
	if pkt.Data().Size() > int(gso.MSS) {
		h[1] = gsoTCP4
		if gso.Type == stack.GSOTCPv6 {
			h[1] = gsoTCP6
		}
		binary.LittleEndian.PutUint16(h[4:], gso.MSS)
	}
	return h
}

func (l *link) AddHeader(pkt *stack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: pkt.EgressRoute.LocalLinkAddress, DstAddr: pkt.EgressRoute.RemoteLinkAddress, Type: pkt.NetworkProtocolNumber,
	})
}

func (l *link) ParseHeader(pkt *stack.PacketBuffer) bool {
	_, ok := pkt.LinkHeader().Consume(header.EthernetMinimumSize)
	return ok
}

func (l *link) Attach(dispatcher stack.NetworkDispatcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dispatcher = dispatcher
}

func (l *link) IsAttached() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.dispatcher != nil
}

// SupportedGSO is on where frames have a header that can say it.
func (l *link) SupportedGSO() stack.SupportedGSO {
	if l.config.Header {
		return stack.HostGSOSupported
	}
	return stack.GSONotSupported
}

func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	if l.config.TrustChecksums {
		return stack.CapabilityResolutionRequired | stack.CapabilityRXChecksumOffload
	}
	return stack.CapabilityResolutionRequired
}

func (l *link) GSOMaxSize() uint32                      { return gsoMax }
func (l *link) MTU() uint32                             { return uint32(l.config.MTU) }
func (l *link) SetMTU(uint32)                           {}
func (l *link) MaxHeaderLength() uint16                 { return header.EthernetMinimumSize }
func (l *link) LinkAddress() tcpip.LinkAddress          { return tcpip.LinkAddress(l.config.MAC) }
func (l *link) SetLinkAddress(tcpip.LinkAddress)        {}
func (l *link) Wait()                                   {}
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }
func (l *link) Close()                                  {}
func (l *link) SetOnCloseAction(func())                 {}
