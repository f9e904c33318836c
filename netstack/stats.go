package netstack

import "sync/atomic"

// Stats are counts since the network was made. Bytes are those of Ethernet frames, without length prefix and
// virtio_net_hdr.
type Stats struct {
	FramesFromGuest, BytesFromGuest uint64 // all that were parsed, dropped ones too
	FramesToGuest, BytesToGuest     uint64 // all that were queued

	// Dropped counts frames that went nowhere, by [DropReason].
	Dropped map[DropReason]uint64

	// SendWaits counts sends that found the queue towards the guest full and waited.
	SendWaits uint64

	// Echoes counts echo requests that were handed to HandleEcho's function.
	Echoes uint64

	// Retransmits counts TCP segments that the gateway had to send again.
	Retransmits uint64

	// CapturedFrames are in the capture; LostCaptures were seen while its buffer was full or after its writer failed.
	CapturedFrames, LostCaptures uint64
}

// DropReason says why a frame went nowhere.
type DropReason string

// Reasons to drop a frame from the guest, in the order in which they are looked for.
const (
	DropTruncated      DropReason = "truncated"               // shorter than its own headers say
	DropOversized      DropReason = "oversized"               // larger than the MTU, and no segmentation offload
	DropOffload        DropReason = "bad offload"             // a virtio_net_hdr that does not fit its frame
	DropSourceMAC      DropReason = "source MAC"              // not the guest's
	DropDestinationMAC DropReason = "destination MAC"         // neither the gateway's nor a group that goes with the packet
	DropEtherType      DropReason = "ethertype"               // not ARP, IPv4 or (if enabled) IPv6; VLAN tags too
	DropARP            DropReason = "ARP"                     // malformed, forged sender, or a question for an address that is not ours
	DropMalformed      DropReason = "malformed"               // wrong version, header length or header checksum
	DropOptions        DropReason = "options"                 // IPv4 options; IPv6 routing headers or too many headers
	DropSource         DropReason = "source address"          // not the guest's
	DropDestination    DropReason = "destination address"     // loopback, unspecified, the guest itself, broadcast without DHCP
	DropMulticast      DropReason = "multicast"               // groups without a listener here (IGMP, mDNS, MLD ...)
	DropTTL            DropReason = "TTL"                     // used up on the way to another host
	DropChecksum       DropReason = "checksum"                // of TCP, UDP or ICMP
	DropNDP            DropReason = "neighbour discovery"     // a router advertisement or redirect, forged or foreign
	DropEcho           DropReason = "echo"                    // for others, in fragments or without a HandleEcho
	DropSocketFull     DropReason = "socket full"             // of a UDP socket here, with datagrams that wait
	DropQueueFull      DropReason = "queue full"              // towards the guest: it did not read for too long
	DropClosed         DropReason = "closed"                  // towards the guest: after Run or Close
	DropSendOversized  DropReason = "oversized towards guest" // cannot be: gVisor keeps the MTU
	DropNoStack        DropReason = "no stack"                // from the guest: while the stack is taken down
)

// dropReasons gives every reason a place in a table of counters.
var dropReasons = [...]DropReason{
	DropTruncated, DropOversized, DropOffload, DropSourceMAC, DropDestinationMAC, DropEtherType, DropARP, DropMalformed,
	DropOptions, DropSource, DropDestination, DropMulticast, DropTTL, DropChecksum, DropNDP, DropEcho, DropSocketFull, DropQueueFull,
	DropClosed, DropSendOversized, DropNoStack,
}

// linkCounters are the link layer's part of Stats.
type linkCounters struct {
	framesIn, bytesIn, framesOut, bytesOut atomic.Uint64
	waits, echoes                          atomic.Uint64
	dropped                                [len(dropReasons)]atomic.Uint64
}

// drop counts a dropped frame. The table is small and drops are rare: a search is good enough.
func (c *linkCounters) drop(why DropReason) {
	for i, reason := range dropReasons {
		if reason == why {
			c.dropped[i].Add(1)
			return
		}
	}
}

// snapshot gives the counters as Stats. Reasons that never occurred are left out.
func (c *linkCounters) snapshot() Stats {
	s := Stats{
		FramesFromGuest: c.framesIn.Load(), BytesFromGuest: c.bytesIn.Load(),
		FramesToGuest: c.framesOut.Load(), BytesToGuest: c.bytesOut.Load(),
		SendWaits: c.waits.Load(), Echoes: c.echoes.Load(),
		Dropped: make(map[DropReason]uint64),
	}
	for i, reason := range dropReasons {
		if n := c.dropped[i].Load(); n > 0 {
			s.Dropped[reason] = n
		}
	}
	return s
}
