package daemon

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"agentvm/rpc"
)

const (
	// maxStrangers is how many connections may be in their handshake, maxClients how many may have done it.
	maxStrangers = 256
	maxClients   = 256
	acceptPause  = 50 * time.Millisecond
)

// presence counts who is there and uses the VM: connections that have shown the token, requests that have come by a link.
type presence struct {
	mu    sync.Mutex
	there int
	ever  int
	left  time.Time
}

// enter is false when there are most already.
func (p *presence) enter(most int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.there >= most {
		return false
	}
	p.there++
	p.ever++
	return true
}

func (p *presence) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.there--
	p.left = time.Now()
}

func (p *presence) count() (there, ever int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.there, p.ever
}

// last is when the last one left.
func (p *presence) last() (there int, left time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.there, p.left
}

// accept serves connections until ctx ends and the listener is closed.
func (d *daemon) accept(ctx context.Context, l net.Listener) {
	var serving sync.WaitGroup
	defer serving.Wait()
	strangers := make(chan struct{}, maxStrangers)
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return
		case err != nil:
			d.logger.Warn("accept a connection", "error", err)
			time.Sleep(acceptPause) // out of files, perhaps
			continue
		}
		select {
		case strangers <- struct{}{}:
			serving.Go(func() { d.serve(ctx, conn, func() { <-strangers }) })
		default:
			d.logger.Warn("too many connections without a token: one is refused", "from", conn.RemoteAddr())
			_ = conn.Close()
		}
	}
}

// serve does the handshake and serves the client. known is called when it is no stranger any more, or gone.
func (d *daemon) serve(ctx context.Context, conn net.Conn, known func()) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	channel, err := admit(conn, d.state.Token)
	known()
	stop()
	if err == nil && !d.clients.enter(maxClients) {
		err = errors.New("too many clients")
	}
	if err != nil {
		d.logger.Warn("a connection is refused", "from", conn.RemoteAddr(), "error", err)
		_ = conn.Close()
		return
	}
	defer d.clients.leave()
	d.logger.Debug("client", "from", conn.RemoteAddr(), "channel", channel)
	rpc.ServeDaemon(ctx, conn, handler{d})
}
