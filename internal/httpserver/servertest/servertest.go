// Package servertest attacks HTTP servers in tests.
package servertest

import (
	"context"
	"errors"
	"net"
	"os"
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

// Crowd has count connections stay open at once at an address, each after one of the texts, for each of them in turn. Beside them owner must get
// its answer, and the oldest must end.
func Crowd(t *testing.T, address string, count int, texts map[string]string, owner func() error) {
	t.Helper()
	for what, text := range texts {
		conns := make([]net.Conn, count)
		for i := range conns {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatalf("connection %d of %s: %v", i+1, what, err)
			}
			defer c.Close()
			_, _ = c.Write([]byte(text)) // the server may have closed it already
			conns[i] = c
		}
		if err := owner(); err != nil {
			t.Errorf("beside %d %s the owner gets: %v", count, what, err)
		}
		_ = conns[0].SetReadDeadline(time.Now().Add(time.Minute))
		for buffer, err := make([]byte, 1<<10), error(nil); err == nil; {
			if _, err = conns[0].Read(buffer); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the first of %d %s stays", count, what)
			}
		}
		for _, c := range conns {
			_ = c.Close()
		}
	}
}
