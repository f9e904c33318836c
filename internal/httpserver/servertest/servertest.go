// Package servertest attacks HTTP servers in tests.
package servertest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// OpenAndDrop opens count connections to an address, 32 at a time. Each sends one of the texts, waits for a first byte of an answer for a moment
// or not at all, and is dropped, half of them with a reset. It returns when the last was dropped.
func OpenAndDrop(ctx context.Context, tb testing.TB, address string, count int, texts []string) {
	tb.Helper()
	var next, failed atomic.Int64
	var workers sync.WaitGroup
	for range 32 {
		workers.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= count {
					return
				}
				if drop(ctx, address, texts[i%len(texts)], i/len(texts)) != nil {
					failed.Add(1)
				}
			}
		})
	}
	workers.Wait()
	if ctx.Err() != nil {
		tb.Fatalf("the connections took too long: %v", context.Cause(ctx))
	}
	if n := failed.Load(); n > int64(count)/10 {
		tb.Errorf("%d of %d connections could not be made", n, count)
	}
}

func drop(ctx context.Context, address, text string, i int) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(text)) // the server may have closed it already
	if i%2 == 0 {
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Millisecond))
		_, _ = conn.Read(make([]byte, 1))
	}
	if i%4 < 2 {
		return conn.(*net.TCPConn).SetLinger(0)
	}
	return nil
}
