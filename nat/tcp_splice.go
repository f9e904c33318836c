package nat

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// guestConn is the guest's end of a connection: a *netstack.Conn, which says what its methods promise, or a localConn.
type guestConn interface {
	net.Conn
	ReadTo(w io.Writer, max int) (int, error)
	CloseWrite() error
	Abort()
	Done() <-chan struct{}
	State() string
	Unacked() int
	SetWatermarks(high, low int)
	SetKeepAlive(idle, interval time.Duration, count int) error
}

// splice is the two connections of one flow. Two goroutines move the bytes, one each way; each ends with its side's
// FIN, or with the first failure, which resets both connections and so ends the other.
//
//	toHost:   guest ── ReadTo ──────────────────────► hostWriter ─► host     FIN ─► CloseWrite
//	toGuest:  guest ◄── Write, blocks by the marks ── hostReader ◄─ host     CloseWrite ◄─ FIN
type splice struct {
	nat   *NAT
	flow  *flow
	guest guestConn
	host  net.Conn

	ctx      context.Context // of waits for bandwidth
	cancel   context.CancelFunc
	writer   hostWriter
	received chan struct{} // closed when toGuest has ended

	mu        sync.Mutex
	guestDone bool // the guest's FIN has come
	hostDone  bool // the host's FIN has come

	outcome outcome
}

// spliceTCP moves bytes both ways until the flow has ended, and closes both connections and the flow, which is
// established. Port forwards use it too.
func (n *NAT) spliceTCP(f *flow, guest guestConn, host net.Conn) {
	s := &splice{nat: n, flow: f, guest: guest, host: host, received: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(n.ctx)
	s.writer = hostWriter{splice: s}
	guest.SetWatermarks(n.config.HighMark, n.config.LowMark)
	n.probe(guest, host)
	InlineUrgent(host)
	f.whenEnded(func(reason Reason) { s.fail(reason, nil) })
	f.whenRechecked(s.recheck)
	idle := f.watchIdle(n.config.TCPIdle)
	sent := make(chan struct{})
	if !n.tasks.start(func() { defer close(sent); s.toHost() }) {
		close(sent)
		s.fail(ReasonShutdown, nil)
	}
	s.toGuest()
	close(s.received)
	<-sent
	s.finish()
	idle.stop()
	s.outcome.closeAs(f)
}

// toHost moves the guest's bytes until its FIN or a failure.
func (s *splice) toHost() {
	var w io.Writer = &s.writer
	if share := s.nat.send.newShare(); share != nil {
		w = share.writer(s.ctx, w)
	} else {
		w = s.writer.fitting()
	}
	for {
		_, err := s.guest.ReadTo(w, largeBuffer)
		switch deaf := s.writer.failure(); {
		case deaf != nil:
			s.hostDeaf(deaf)
			return
		case errors.Is(err, io.EOF):
			s.guestFinished()
			return
		case err != nil:
			s.fail(ReasonGuestReset, err)
			return
		}
	}
}

// guestFinished passes the guest's FIN on. It then watches the guest, which can still reset the connection while the
// host has not finished.
func (s *splice) guestFinished() {
	s.finished(&s.guestDone)
	closeWriteHost(s.host)
	select {
	case <-s.received:
	case <-s.guest.Done():
		if !s.is(&s.hostDone) {
			s.fail(ReasonGuestReset, nil)
		}
	}
}

// hostDeaf is called when the host takes no more bytes. What it sent before may still be there to be read, and is the
// guest's: toGuest reads it and then fails in turn. When toGuest is done already, this is the end.
func (s *splice) hostDeaf(err error) {
	if !isAny(err, resets) || s.is(&s.hostDone) {
		s.hostFailed(err)
	}
}

// hostFailed ends the flow because of the host's connection.
func (s *splice) hostFailed(err error) {
	switch {
	case denied(err):
		s.fail(ReasonPolicy, err)
	case isAny(err, resets):
		s.settle()
		s.fail(ReasonHostReset, err)
	default:
		s.fail(ReasonError, err)
	}
}

// toGuest moves the host's bytes until its FIN or a failure.
func (s *splice) toGuest() {
	r := hostReader{host: s.host, buffers: &s.nat.buffers, small: make([]byte, min(smallBuffer, s.nat.config.HighMark))}
	defer r.shrink()
	w := s.nat.receive.newShare().writer(s.ctx, guestWriter{s})
	for {
		data, err := r.read()
		if len(data) > 0 {
			if _, failed := w.Write(data); failed != nil {
				s.fail(ReasonGuestReset, failed)
				return
			}
			continue
		}
		if errors.Is(err, io.EOF) {
			err = s.writer.resetBehindEOF()
			if err == nil {
				s.hostFinished()
				return
			}
		}
		if err != nil {
			s.hostFailed(err)
			return
		}
	}
}

// hostFinished passes the host's FIN on.
func (s *splice) hostFinished() {
	s.finished(&s.hostDone)
	_ = s.guest.CloseWrite() // fails if the connection has ended, which toHost finds out
	// toHost may have found the host deaf while it was not known here that this is the end.
	if deaf := s.writer.failure(); deaf != nil {
		s.hostFailed(deaf)
	}
}

// finished notes that one side has sent its FIN.
func (s *splice) finished(side *bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*side = true
	switch {
	case s.guestDone && s.hostDone:
		s.flow.setState(Closing)
	case s.guestDone:
		s.flow.setState(FinWait)
	default:
		s.flow.setState(CloseWait)
	}
}

func (s *splice) is(side *bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *side
}

// recheck finds out that the host's connection was cut, without waiting for the goroutines that read and write there: a
// deadline can be set on any connection but one that is closed, and only of a closed one Read returns at once.
func (s *splice) recheck() {
	if s.host.SetWriteDeadline(time.Time{}) == nil {
		return
	}
	if _, err := s.host.Read(nil); denied(err) {
		s.fail(ReasonPolicy, err)
	}
}

// fail ends both connections with RST. The first failure is the flow's reason.
func (s *splice) fail(reason Reason, err error) {
	if s.outcome.settle(reason, err) {
		s.cancel()
		resetHost(s.host)
		s.guest.Abort()
	}
}

// settleTime is how long the guest has to acknowledge what the host sent before its RST.
const settleTime = 2 * time.Second

// settle waits until the guest has what the host had sent before it reset the connection: without us in between these
// bytes would have come before the RST, and programs do read an answer that a server sends before it hangs up.
func (s *splice) settle() {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(settleTime); s.owed() && time.Now().Before(end); {
		select {
		case <-tick.C:
		case <-s.guest.Done():
			return
		case <-s.ctx.Done():
			return
		}
	}
}

// owed says whether the guest has not acknowledged everything, which after CloseWrite only the state tells.
func (s *splice) owed() bool {
	switch s.guest.State() {
	case "FIN_WAIT_1", "CLOSING", "LAST_ACK":
		return true
	}
	return s.guest.Unacked() > 0
}

// finish waits for the guest's last acknowledgement, after both sides have sent their FIN, and frees the connections.
func (s *splice) finish() {
	_ = s.host.Close() // both ways are done, or it was reset
	if _, failed, _ := s.outcome.get(); !failed {
		<-s.guest.Done() // or the flow is asked to end
	}
	s.conclude()
	s.cancel()
	_ = s.guest.Close()
}

// conclude sets the reason of a flow that nothing has failed.
func (s *splice) conclude() {
	var byte [1]byte
	_, err := s.guest.Read(byte[:])
	if isAny(err, resets) {
		s.outcome.settle(ReasonGuestReset, err)
		return
	}
	s.outcome.settle(ReasonDone, nil)
}
