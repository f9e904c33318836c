package daemon

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"agentvm/internal/daemon/daemonrpc"
)

const (
	// maxStrangers bounds the connections that are in their handshake, maxClients those that have completed it.
	maxStrangers = 256
	maxClients   = 256
	acceptPause  = 50 * time.Millisecond
)

// refCount counts present users of the VM: connections that have shown the token, or requests to previews.
type refCount struct {
	mu    sync.Mutex
	there int
	ever  int       // how often enter has succeeded
	left  time.Time // when the last user left
	full  bool      // none may enter
}

// enter returns false when there are limit users already.
func (p *refCount) enter(limit int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.there >= limit || p.full {
		return false
	}
	p.there++
	p.ever++
	return true
}

// shut refuses further users until open. It returns false when there are users.
func (p *refCount) shut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = p.there == 0
	return p.full
}

func (p *refCount) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = false
}

func (p *refCount) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.there--
	p.left = time.Now()
}

func (p *refCount) count() (there, ever int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.there, p.ever
}

// last returns how many users there are, and when the last one left.
func (p *refCount) last() (there int, left time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.there, p.left
}

// accept serves connections until ctx ends and the listener is closed.
func (d *daemon) accept(ctx context.Context, l net.Listener) {
	var serving sync.WaitGroup
	defer serving.Wait()
	strangers := &strangers{limit: maxStrangers, refused: refusals{logger: d.logger, pause: refusalPause}}
	defer strangers.refused.close()
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
			time.Sleep(acceptPause) // perhaps the process has no descriptor left
			continue
		}
		if err := checkPeer(conn); err != nil {
			strangers.refused.report(conn.RemoteAddr(), err)
			_ = conn.Close()
			continue
		}
		strangers.enter(conn)
		serving.Go(func() { d.serve(ctx, conn, strangers) })
	}
}

// serve does the handshake and serves the client.
func (d *daemon) serve(ctx context.Context, conn net.Conn, strangers *strangers) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	channel, err := admit(conn, d.state.Token)
	strangers.leave(conn)
	stop()
	if err == nil && channel == Mount {
		if err := d.offers.receive(conn); err != nil {
			d.logger.Warn("a mount that was offered", "error", err)
			_ = conn.Close()
		}
		return
	}
	if err == nil && !d.clients.enter(maxClients) {
		err = errors.New("too many clients")
	}
	if err != nil {
		strangers.refused.report(conn.RemoteAddr(), err)
		_ = conn.Close()
		return
	}
	defer d.clients.leave()
	d.logger.Debug("client", "from", conn.RemoteAddr(), "channel", channel)
	daemonrpc.Serve(ctx, conn, handler{d})
}
