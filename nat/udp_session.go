package nat

import (
	"net"

	"agentvm/netstack"
)

// session moves the datagrams of one UDP flow. It has two goroutines, one each way, and while datagrams wait for a limit
// of bytes a second one more each way.
type session struct {
	flow      *flow
	guest     *netstack.PacketConn
	host      net.Conn
	toHost    *delay
	toGuest   *delay
	fromGuest *inbox
	fromHost  *inbox

	outcome outcome
}

func newSession(f *flow, guest *netstack.PacketConn, host net.Conn) *session {
	s := &session{flow: f, guest: guest, host: host, fromGuest: newInbox(guest), fromHost: newInbox(host)}
	s.toHost = f.nat.newDelay(f.nat.send, s.sendToHost)
	s.toGuest = f.nat.newDelay(f.nat.receive, s.sendToGuest)
	return s
}

// run moves datagrams until the session ends, and closes it.
func (s *session) run() {
	s.flow.establish()
	s.flow.whenEnded(func(reason Reason) { s.fail(reason, nil) })
	idle := s.flow.watchIdle(s.flow.nat.config.UDPIdle)
	sent := make(chan struct{})
	if !s.flow.nat.tasks.start(func() { defer close(sent); s.readGuest() }) {
		close(sent)
		s.fail(ReasonShutdown, nil)
	}
	s.readHost()
	<-sent
	idle.stop()
	s.outcome.closeAs(s.flow)
}

// readGuest moves the guest's datagrams to the host.
func (s *session) readGuest() {
	for {
		p, err := s.fromGuest.read()
		if err != nil {
			s.fail(guestGone(err), err)
			return
		}
		if s.toHost.push(p) {
			s.sendToHost(p)
		}
	}
}

// guestGone is why a session has ended whose guest's end cannot be read: the guest refuses the datagrams, or it was closed.
func guestGone(err error) Reason {
	if isAny(err, refusals) || isAny(err, netUnreachables) || isAny(err, hostUnreachables) {
		return ReasonGuestReset
	}
	return ReasonError
}

// sendToHost sends one datagram. One that the host's system does not take is lost.
func (s *session) sendToHost(p []byte) {
	s.flow.touch() // before the host knows
	_, err := s.host.Write(p)
	if isAny(err, refusals) {
		// The error is an earlier datagram's, and this one was not sent.
		s.tell(err)
		_, err = s.host.Write(p)
	}
	switch {
	case err == nil:
		s.flow.sent.Add(uint64(len(p)))
	case denied(err):
		s.hostFailed(err)
	default:
		s.tell(err)
	}
}

// readHost moves the host's datagrams to the guest.
func (s *session) readHost() {
	for {
		p, err := s.fromHost.read()
		if s.tell(err) {
			continue
		}
		if err != nil {
			s.hostFailed(err)
			return
		}
		if s.toGuest.push(p) {
			s.sendToGuest(p)
		}
	}
}

// sendToGuest sends one datagram. What the guest's link has no room for is lost, as on any link.
func (s *session) sendToGuest(p []byte) {
	s.flow.touch() // before the guest knows
	if _, err := s.guest.Write(p); err == nil {
		s.flow.received.Add(uint64(len(p)))
	}
}

// tell sends the guest the ICMP error that the host's socket has had, if err is one. The socket can still be used.
func (s *session) tell(err error) bool {
	reason, kind := udpFailure(err)
	if reason != ReasonRefused && reason != ReasonUnreachable {
		return false
	}
	s.guest.Unreachable(kind)
	return true
}

// hostFailed ends the session because the host's socket is of no more use.
func (s *session) hostFailed(err error) {
	reason, kind := udpFailure(err)
	if reason == ReasonPolicy {
		s.guest.Unreachable(kind)
	}
	s.fail(reason, err)
}

// fail closes both sockets, so that both goroutines end. The first failure is the session's reason.
func (s *session) fail(reason Reason, err error) {
	if s.outcome.settle(reason, err) {
		s.toHost.close()
		s.toGuest.close()
		_ = s.guest.Close()
		_ = s.host.Close()
	}
}
