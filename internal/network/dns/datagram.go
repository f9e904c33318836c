package dns

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxDatagrams of one flow are being answered at a time: more stay in the socket, which drops what it has no room for.
	maxDatagrams = 32
	// datagramIdle is how long a flow waits for another query. Resolvers use a new port for each look-up, so that flows are
	// many, and their number is limited; a client that uses a port again later gets a new flow.
	datagramIdle = 500 * time.Millisecond
)

// ServeDatagrams answers the messages of a UDP flow, one for each Read and Write, until the flow has been idle for half a
// second, conn fails, or ctx ends. It closes conn.
func (s *Server) ServeDatagrams(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer conn.Close()
	defer stop()
	defer cancel()

	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel() // before the wait: without a flow, no client waits for answers
	var busy atomic.Int32
	slots := make(chan struct{}, maxDatagrams)
	buffer, who := make([]byte, largestQuery+1), clientOf(conn)
	for {
		query, ok := readDatagram(conn, buffer, &busy)
		if !ok {
			return
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		busy.Add(1)
		workers.Go(func() {
			defer func() { busy.Add(-1); <-slots }()
			if reply := s.reply(ctx, who, query, true); reply != nil {
				conn.Write(reply) // lost is lost: the client asks again
			}
		})
	}
}

// readDatagram returns false when the flow has ended, also by being idle.
func readDatagram(conn net.Conn, buffer []byte, busy *atomic.Int32) (query []byte, ok bool) {
	for {
		if conn.SetReadDeadline(time.Now().Add(datagramIdle)) != nil {
			return nil, false
		}
		wasBusy := busy.Load() > 0
		n, err := conn.Read(buffer)
		switch {
		case err == nil:
			return append([]byte(nil), buffer[:n]...), true
		case !isTimeout(err) || !wasBusy && busy.Load() == 0:
			return nil, false
		}
	}
}
