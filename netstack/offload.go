package netstack

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Fields and values of struct virtio_net_hdr (Virtio 1.2, section 5.1.6), all little-endian. num_buffers, the last two
// bytes, is the device's own affair.
const (
	virtioHeaderSize = 12

	virtioFlags, virtioGSOType, virtioHeaderLength        = 0, 1, 2
	virtioGSOSize, virtioChecksumStart, virtioChecksumOff = 4, 6, 8

	flagNeedsChecksum, flagDataValid  = 1, 2
	gsoNone, gsoTCPIPv4, gsoTCPIPv6   = 0, 1, 4
	gsoMaxPacket                      = 65535 // bytes of an IP packet before the driver cuts it up
	tcpChecksumField, udpChecksumFeld = header.TCPChecksumOffset, 6
)

// Towards the guest ----------------------------------------------------------------------------------------------

// putVirtioHeader describes a packet of gVisor's to the guest's driver.
//
// TCP packets come with the checksum of their pseudo header only, and may be larger than the MTU; the guest's kernel
// takes them as they are, or completes and cuts them when it forwards them. All other packets have their checksums
// (the endpoint does not offer transmit checksum offload, which in gVisor would leave a UDP checksum field empty
// instead of partial), and DATA_VALID spares the emulated processor the check.
func putVirtioHeader(to []byte, p *stack.PacketBuffer) {
	clear(to[:virtioHeaderSize])
	gso := &p.GSOOptions
	if gso.Type == stack.GSONone || !gso.NeedsCsum {
		to[virtioFlags] = flagDataValid
		return
	}
	start := header.EthernetMinimumSize + len(p.NetworkHeader().Slice())
	to[virtioFlags] = flagNeedsChecksum
	binary.LittleEndian.PutUint16(to[virtioChecksumStart:], uint16(start))
	binary.LittleEndian.PutUint16(to[virtioChecksumOff:], gso.CsumOffset)
	if p.Data().Size() <= int(gso.MSS) {
		return
	}
	to[virtioGSOType] = gsoTCPIPv4
	if gso.Type == stack.GSOTCPv6 {
		to[virtioGSOType] = gsoTCPIPv6
	}
	binary.LittleEndian.PutUint16(to[virtioHeaderLength:], uint16(start+len(p.TransportHeader().Slice())))
	binary.LittleEndian.PutUint16(to[virtioGSOSize:], gso.MSS)
}

// From the guest -------------------------------------------------------------------------------------------------

// offload is what the guest's driver leaves to the host for one frame. The guest is not trusted: all of it is checked
// against the frame. hdr_len is not here, because the frame says the same.
type offload struct {
	present       bool // the link carries headers at all
	needsChecksum bool
	gso           uint8
	gsoSize       int
	start, offset int // of the checksum: where the sum begins, and where from there it is stored
}

// parseOffload reads a virtio_net_hdr, or nothing.
func parseOffload(from []byte) offload {
	if len(from) < virtioHeaderSize {
		return offload{}
	}
	return offload{
		present:       true,
		needsChecksum: from[virtioFlags]&flagNeedsChecksum != 0,
		gso:           from[virtioGSOType],
		gsoSize:       int(binary.LittleEndian.Uint16(from[virtioGSOSize:])),
		start:         int(binary.LittleEndian.Uint16(from[virtioChecksumStart:])),
		offset:        int(binary.LittleEndian.Uint16(from[virtioChecksumOff:])),
	}
}

// plain says that the frame asks for nothing.
func (o offload) plain() bool { return !o.needsChecksum && o.gso == gsoNone }

// fits checks what can be checked without knowing the packet: that the checksum's place is behind the Ethernet header
// and inside the frame, and that segmentation is of a known kind and comes with a checksum (section 5.1.6.2).
func (o offload) fits(frame []byte) bool {
	if o.needsChecksum && (o.start < header.EthernetMinimumSize || o.start+o.offset+2 > len(frame)) {
		return false
	}
	switch o.gso {
	case gsoNone:
		return true
	case gsoTCPIPv4, gsoTCPIPv6:
		return o.needsChecksum && o.gsoSize > 0
	}
	return false
}

// segments says whether the segmentation that is asked for suits p: TCP of the same IP version, not a fragment, and
// segments that the link would carry.
func (o offload) segments(p *packet, mtu int) bool {
	if o.gso == gsoNone {
		return true
	}
	want := uint8(gsoTCPIPv4)
	if p.version == 6 {
		want = gsoTCPIPv6
	}
	return o.gso == want && p.transport == protoTCP && !p.fragment && o.gsoSize+header.TCPMinimumSize <= mtu
}

// leavesTransport says whether the missing checksum is the one of p's TCP or UDP header. Those are not computed: the
// other end of the link does not check them, and a packet never leaves the host as it is.
func (o offload) leavesTransport(p *packet) bool {
	if !o.needsChecksum || p.fragment || o.start != p.transportAt {
		return false
	}
	return p.transport == protoTCP && o.offset == tcpChecksumField || p.transport == protoUDP && o.offset == udpChecksumFeld
}

// complete stores the missing checksum into the frame, as a device does (section 5.1.6.2). Linux leaves checksums in
// other places than the outermost header when it encapsulates, and those have to be right where the inner packet
// arrives.
func (o offload) complete(frame []byte) {
	sum := ^checksum.Checksum(frame[o.start:], 0)
	if sum == 0 {
		sum = 0xffff // the same number, and for UDP not "no checksum"
	}
	binary.BigEndian.PutUint16(frame[o.start+o.offset:], sum)
}
