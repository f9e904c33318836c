package netstack_test

import (
	"encoding/binary"
	"io"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// FuzzSegments gives a whole network TCP segments whose bytes are the fuzzer's, with right addresses and checksums. The
// network must live on and serve others. The first byte of each piece is its length, the second one chooses its ports.
func FuzzSegments(f *testing.F) {
	segment := func(flags byte, options ...byte) []byte {
		b := []byte{byte(20 + len(options)), 0, 0, 0, 0, 1, 0, 0, 0, 0, byte(5+len(options)/4) << 4, flags, 255, 255, 0, 0, 0, 0}
		return append(b, options...)
	}
	f.Add(segment(2))
	f.Add(append(segment(2, 2, 4, 5, 0xb4, 4, 2, 1, 1), segment(16)...))
	f.Add(append(segment(2, 3, 3, 14, 1), append(segment(4), segment(1)...)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := netstack.New(netstack.Config{DisableIPv6: true})
		mustDo(t, err)
		defer n.Close()
		n.HandleTCP(64, func(r *netstack.TCPRequest) {
			switch r.Destination.Port() % 4 {
			case 0:
				r.Reset()
			case 1:
				r.Unreachable(netstack.UnreachableHost)
			default:
				if c, err := r.Accept(); err == nil {
					io.Copy(c, c)
					c.Close()
				}
			}
		})
		peer := netstacktest.StartPeer(t)
		go n.Run(t.Context(), peer.Host())
		for len(data) > 2 {
			size := min(int(data[0]), len(data)-2)
			mustDo(t, peer.Send(fuzzedFrame(data[1], data[2:2+size])))
			data = data[2+size:]
		}
		alive := netstacktest.Segment{Source: netip.AddrPortFrom(guestIP, 9999), Destination: netip.AddrPortFrom(server.Addr(), 4), Flags: syn, Window: 1}
		peer.SendSegment(t, alive)
		peer.Expect(t, "RST: the network is alive", func(s netstacktest.Segment) bool { return s.Source.Port() == 4 })
	})
}

// fuzzedFrame completes the bytes behind the ports of a TCP header.
func fuzzedFrame(port byte, rest []byte) []byte {
	var window uint16
	var seq, ack uint32
	flags, options, payload := header.TCPFlags(syn), []byte(nil), []byte(nil)
	if len(rest) >= 14 {
		seq, ack = binary.BigEndian.Uint32(rest), binary.BigEndian.Uint32(rest[4:])
		flags, window = header.TCPFlags(rest[9]), binary.BigEndian.Uint16(rest[10:])
		cut := min(int(rest[8]>>4)*4, len(rest)-14, 40)
		options, payload = rest[14:14+cut], rest[14+cut:]
	}
	return netstacktest.Segment{
		Source: netip.AddrPortFrom(guestIP, 5000+uint16(port%4)), Destination: netip.AddrPortFrom(server.Addr(), 1000+uint16(port%8)),
		Seq: seq, Ack: ack, Flags: flags, Window: window, Options: options, Payload: payload,
	}.Frame()
}
