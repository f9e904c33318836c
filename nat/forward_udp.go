package nat

import (
	"errors"
	"net"
	"net/netip"
	"sync"

	"agentvm/netstack"
)

// forwardUDP is a UDP port forward: one socket of the host, and a session for each address that sends to it. The
// forward's goroutine reads the socket; each session has one that reads the guest's end.
//
// A program whose datagrams the guest refuses is not told: the host's system would have to send the ICMP error, and does so for
// closed ports only. At an unspecified address (0.0.0.0, ::), answers come from the address that the host's routes choose, which
// on a host with several may be another one than was asked.
type forwardUDP struct {
	*forward
	socket *net.UDPConn

	mu       sync.Mutex
	sessions map[netip.AddrPort]*forwardSession
}

// forwardSession is the datagrams between one address and the guest.
type forwardSession struct {
	of      *forwardUDP
	flow    *flow
	program netip.AddrPort
	guest   *netstack.PacketConn
	toGuest *delay
	toHost  *delay

	once   sync.Once
	reason Reason // why it ended, after once
	err    error
}

// serve reads datagrams until the socket is closed.
func (w *forwardUDP) serve() {
	defer w.socket.Close()
	in := newInbox(w.socket)
	for {
		buffer, err := in.fit()
		var n int
		var from netip.AddrPort
		if err == nil {
			n, from, err = w.socket.ReadFromUDPAddrPort(buffer)
		}
		switch {
		case err == nil:
			w.deliver(buffer[:n], from)
		case errors.Is(err, net.ErrClosed) || !w.pause():
			return
		}
	}
}

// deliver sends one datagram to the guest.
func (w *forwardUDP) deliver(p []byte, from netip.AddrPort) {
	s := w.session(from)
	if s != nil && s.toGuest.push(p) {
		s.sendToGuest(p)
	}
}

// session returns that of an address, a new one if need be, or nil if there can be none.
func (w *forwardUDP) session(from netip.AddrPort) *forwardSession {
	w.mu.Lock()
	s := w.sessions[from]
	w.mu.Unlock()
	if s != nil {
		return s
	}
	f, err := w.nat.openFlow(flowSpec{
		protocol: "udp", direction: In, source: netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), destination: w.guest,
		limit: &w.nat.limits.forwardFlows, evicts: true,
	})
	if err != nil {
		return nil
	}
	if err := w.nat.config.Inward("udp", w.guest.Port()); err != nil {
		f.close(ReasonPolicy, err)
		return nil
	}
	s, err = w.open(f, from)
	if err != nil {
		reason, _ := udpFailure(err)
		f.close(reason, err)
		return nil
	}
	return s
}

// open connects a socket with the guest and starts the session's goroutine.
func (w *forwardUDP) open(f *flow, from netip.AddrPort) (*forwardSession, error) {
	if !w.add(f) {
		return nil, errEnded
	}
	guest, err := w.nat.network.DialContext(w.ctx, "udp", w.guest)
	if err != nil {
		w.remove(f)
		return nil, err
	}
	s := &forwardSession{of: w, flow: f, program: from, guest: guest.(*netstack.PacketConn)}
	s.toGuest = w.nat.newDelay(w.nat.receive, s.sendToGuest)
	s.toHost = w.nat.newDelay(w.nat.send, s.sendToHost)
	w.mu.Lock()
	w.sessions[from] = s
	w.mu.Unlock()
	f.establish()
	f.whenEnded(func(reason Reason) { s.end(reason, nil) })
	if !w.nat.tasks.start(s.run) {
		s.end(ReasonShutdown, nil)
		w.remove(f)
		return nil, errEnded
	}
	return s, nil
}

// run moves the guest's datagrams until the session ends.
func (s *forwardSession) run() {
	idle := s.flow.watchIdle(s.flow.nat.config.UDPIdle)
	in := newInbox(s.guest)
	for {
		p, err := in.read()
		if err != nil {
			s.end(guestGone(err), err)
			break
		}
		if s.toHost.push(p) {
			s.sendToHost(p)
		}
	}
	idle.stop()
	s.of.remove(s.flow)
	s.flow.close(s.reason, s.err)
}

func (s *forwardSession) sendToGuest(p []byte) {
	s.flow.touch() // before the guest knows: afterwards, payload that has been answered could keep the flow from being idle
	if _, err := s.guest.Write(p); err == nil {
		s.flow.received.Add(uint64(len(p)))
	}
}

func (s *forwardSession) sendToHost(p []byte) {
	s.flow.touch() // before the program knows
	if _, err := s.of.socket.WriteToUDPAddrPort(p, s.program); err == nil {
		s.flow.sent.Add(uint64(len(p)))
	}
}

// end closes the guest's end, so that the goroutine ends; the address's next datagram begins a new session.
func (s *forwardSession) end(reason Reason, err error) {
	s.once.Do(func() {
		s.reason, s.err = reason, err
		s.toGuest.close()
		s.toHost.close()
		s.of.mu.Lock()
		delete(s.of.sessions, s.program)
		s.of.mu.Unlock()
		_ = s.guest.Close()
	})
}
