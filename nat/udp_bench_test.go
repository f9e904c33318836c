package nat

import (
	"io"
	"net"
	"strconv"
	"testing"
	"time"
)

// BenchmarkUDPRoundTrip is a datagram from the guest to a server on loopback and back.
func BenchmarkUDPRoundTrip(b *testing.B) {
	for _, size := range []int{64, 1400, 65507} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			w := newPacketWorld(b, nil)
			conn := w.dialUDP(w.serveUDP(echoing))
			p, answer := pattern(size), make([]byte, 1<<16)
			b.SetBytes(int64(2 * size))
			for b.Loop() {
				if _, err := conn.Write(p); err != nil {
					b.Fatal(err)
				}
				if _, err := conn.Read(answer); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLimit is how near a connection through a port forward comes to a limit, by the system's clock.
func BenchmarkLimit(b *testing.B) {
	for _, limit := range []int64{1e6, 10e6, 50e6} {
		b.Run(strconv.FormatInt(limit/1e6, 10)+"MB/s", func(b *testing.B) {
			w := newPacketWorld(b, func(s *settings) {
				s.ReceiveLimit, s.Clock, s.HighMark, s.LowMark = limit, nil, 256<<10, 64<<10
			})
			w.serveGuest(80, func(c net.Conn) {
				_, _ = io.Copy(io.Discard, c)
				_, _ = c.Write([]byte("done"))
			})
			at := w.forward("0:80")
			data := pattern(int(limit / 10))
			began, total := time.Now(), 0
			for b.Loop() {
				conn := w.connect(at)
				_, _ = conn.Write(data)
				_ = conn.CloseWrite()
				if _, err := io.ReadAll(conn); err != nil {
					b.Fatal(err)
				}
				total += len(data)
			}
			b.ReportMetric(100*float64(total)/time.Since(began).Seconds()/float64(limit), "%-of-limit")
		})
	}
}
