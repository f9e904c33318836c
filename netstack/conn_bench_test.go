package netstack_test

import (
	"fmt"
	"io"
	"testing"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// BenchmarkConn moves bytes through a whole network: a gVisor guest, the link, and Conn's ReadTo or Write.
//
//	go test -run - -bench Conn -benchtime 2s ./netstack
func BenchmarkConn(b *testing.B) {
	for _, mtu := range []int{1500, 65520} {
		for _, offload := range []bool{false, true} {
			for _, marks := range [][2]int{{0, 0}, {16 << 10, 4 << 10}, {64 << 10, 16 << 10}, {1 << 20, 512 << 10}} {
				name := fmt.Sprintf("mtu=%d/offload=%v/marks=%dK", mtu, offload, marks[0]>>10)
				b.Run(name+"/down", func(b *testing.B) { benchmarkConn(b, mtu, offload, marks, false) })
				if marks[0] == 0 {
					b.Run(name+"/up", func(b *testing.B) { benchmarkConn(b, mtu, offload, marks, true) })
				}
			}
		}
	}
}

func benchmarkConn(b *testing.B, mtu int, offload bool, marks [2]int, up bool) {
	here, guest, _ := connected(b, netstack.Config{DisableIPv6: true, MTU: mtu, Header: offload},
		netstacktest.Config{DisableIPv6: true, MTU: mtu, Header: offload, TrustChecksums: offload}, server)
	if marks[0] > 0 {
		here.SetWatermarks(marks[0], marks[1])
	}
	chunk := make([]byte, 64<<10)
	b.SetBytes(int64(len(chunk)))
	b.ResetTimer()
	var from io.Writer = here
	if up {
		from = guest
	}
	go func() {
		for range b.N {
			if _, err := from.Write(chunk); err != nil {
				b.Error(err)
				return
			}
		}
	}()
	total := b.N * len(chunk)
	if up {
		for n := 0; n < total; {
			m, err := here.ReadTo(io.Discard, 1<<20)
			if n += m; err != nil {
				b.Fatal(err)
			}
		}
		return
	}
	if _, err := io.CopyN(io.Discard, guest, int64(total)); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkAccept opens and closes connections one after the other.
func BenchmarkAccept(b *testing.B) {
	n, g := pair(b, netstack.Config{DisableIPv6: true}, netstacktest.Config{DisableIPv6: true})
	n.HandleTCP(256, func(r *netstack.TCPRequest) {
		if c, err := r.Accept(); err == nil {
			c.Close()
		}
	})
	connect(b, n, g)
	b.ReportAllocs()
	for b.Loop() {
		c, err := g.Dial(b.Context(), server)
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}
