package vmnet

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"agentvm/internal/host/errno"
	"agentvm/internal/host/lockfile"
)

const (
	maxPending = 64              // connections whose header has not come
	headerTime = 5 * time.Second // for it
	answerTime = time.Minute     // until the other guest has taken a connection or not
)

// Delivery is a connection or the first datagram of another VM.
type Delivery struct {
	Protocol string // tcp or udp
	From     netip.AddrPort
	Port     uint16
	// Answer says whether it is taken, once, with nil or an error that has a number of the system. Conn is used, and closed, by whoever answers
	// with nil.
	Answer func(error) (net.Conn, error)
}

// Member is a VM in its networks. A nil Member is in none.
type Member struct {
	store    Store
	places   []place
	logger   *slog.Logger
	deliver  func(context.Context, Delivery)
	pending  chan struct{}
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup
	mu       sync.Mutex
	handling map[*net.UnixConn]struct{} // nil when it has left
}

// place is a member's place in one network.
type place struct {
	Network
	own      netip.Addr // of Subnet
	listener *net.UnixListener
}

// Join joins networks with a name that no other VM there has. Without a name the VM reaches the others, and they do not reach it.
func (s Store) Join(ctx context.Context, networks []string, name string, logger *slog.Logger) (_ *Member, err error) {
	if len(networks) == 0 {
		return nil, nil
	}
	m := &Member{store: s, logger: logger, pending: make(chan struct{}, maxPending), handling: map[*net.UnixConn]struct{}{}}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	for _, network := range networks {
		p, err := s.join(ctx, network, name)
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		m.places = append(m.places, p)
	}
	return m, nil
}

func (s Store) join(ctx context.Context, network, name string) (p place, err error) {
	if p.Network, err = s.Open(network); err != nil {
		return p, err
	}
	if name == "" {
		p.own = p.address(firstHost - 1)
		return p, nil
	}
	lock, err := lockfile.Wait(ctx, filepath.Join(s.path(network), "lock"))
	if err != nil {
		return p, err
	}
	defer lock.Close()
	host, err := s.claim(ctx, p.Network, name)
	if err != nil {
		return p, err
	}
	if s.alive(ctx, p.Network, host) {
		return p, fmt.Errorf("network %s: another VM with the name %s is in it", network, name)
	}
	p.own = p.address(host)
	p.listener, err = s.listen(p.Network, host)
	return p, err
}

// Serve takes what other VMs send, until Close. deliver is called on a goroutine of each, and returns when it is over.
func (m *Member) Serve(deliver func(context.Context, Delivery)) {
	m.deliver = deliver
	for _, p := range m.places {
		if p.listener != nil {
			m.running.Go(func() { m.accept(p) })
		}
	}
}

// Close leaves the networks and waits for all deliveries, whose connections it closes.
func (m *Member) Close() error {
	if m == nil {
		return nil
	}
	m.cancel()
	for _, p := range m.places {
		if p.listener != nil {
			_ = p.listener.Close()
		}
	}
	m.mu.Lock()
	for conn := range m.handling {
		_ = conn.Close()
	}
	m.handling = nil
	m.mu.Unlock()
	m.running.Wait()
	return nil
}

func (m *Member) accept(p place) {
	for {
		conn, err := p.listener.AcceptUnix()
		if err != nil {
			if m.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(50 * time.Millisecond) // the host has no descriptors
			continue
		}
		select {
		case m.pending <- struct{}{}:
		default:
			_ = conn.Close()
			continue
		}
		if !m.keep(conn) {
			<-m.pending
			return
		}
		m.running.Go(func() {
			defer m.forget(conn)
			m.handle(p, conn)
		})
	}
}

func (m *Member) keep(conn *net.UnixConn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.handling == nil {
		_ = conn.Close()
		return false
	}
	m.handling[conn] = struct{}{}
	return true
}

func (m *Member) forget(conn *net.UnixConn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.handling, conn)
	_ = conn.Close()
}

// handle reads the header and delivers what follows.
func (m *Member) handle(p place, conn *net.UnixConn) {
	var h header
	_ = conn.SetDeadline(time.Now().Add(headerTime))
	first := newStream(conn, "tcp", netip.AddrPort{}, netip.AddrPort{})
	err := first.receiveMessage(&h)
	<-m.pending
	if err != nil || subtle.ConstantTimeCompare([]byte(h.Key), []byte(p.Key)) != 1 {
		return // also a process that only looks whether a member is there
	}
	_ = conn.SetDeadline(time.Time{})
	s := newStream(conn, h.Protocol, netip.AddrPortFrom(p.own, h.Port), h.From)
	s.in = first.in
	answer := func(err error) (net.Conn, error) {
		number := errno.Errno(0)
		if err != nil {
			if number = errno.In(err); number == 0 {
				number = errno.ECONNREFUSED
			}
		}
		first.datagrams = false
		if sent := first.sendMessage(number); sent != nil {
			return nil, sent
		}
		return s, nil
	}
	switch {
	case !p.Subnet.Contains(h.From.Addr()) || h.From.Addr() == p.own || m.deliver == nil:
		_, _ = answer(errno.EACCES)
	case h.Protocol == "icmp":
		_, _ = answer(nil)
	case h.Protocol == "tcp" || h.Protocol == "udp":
		m.deliver(m.ctx, Delivery{h.Protocol, h.From, h.Port, answer})
	default:
		_, _ = answer(errno.EINVAL)
	}
}

// Contains reports whether an address is in one of the VM's networks.
func (m *Member) Contains(a netip.Addr) bool {
	_, found := m.placeOf(a)
	return found
}

func (m *Member) placeOf(a netip.Addr) (place, bool) {
	if m != nil && Range.Contains(a) {
		for _, p := range m.places {
			if p.Subnet.Contains(a) {
				return p, true
			}
		}
	}
	return place{}, false
}

// Lookup returns the addresses of a member that is there, by VM or VM.NETWORK.
func (m *Member) Lookup(name string) (list []netip.Addr) {
	if m == nil {
		return nil
	}
	for _, p := range m.places {
		short := strings.TrimSuffix(name, "."+p.Name)
		host, found := m.store.hosts(p.Network)[short]
		if found && (p.address(host) == p.own || m.store.alive(m.ctx, p.Network, host)) {
			list = append(list, p.address(host))
		}
	}
	return list
}

// Names returns the names of an address: VM and VM.NETWORK. It does not say whether a member is there.
func (m *Member) Names(a netip.Addr) []string {
	p, found := m.placeOf(a)
	if !found {
		return nil
	}
	for name, host := range m.store.hosts(p.Network) {
		if p.address(host) == a {
			return []string{name, name + "." + p.Name}
		}
	}
	return nil
}

// Dial connects to a port of another VM. Errors have a number of the system: EHOSTUNREACH when it is not there. With udp it does not
// wait for an answer.
func (m *Member) Dial(ctx context.Context, protocol string, from, to netip.AddrPort) (net.Conn, error) {
	p, found := m.placeOf(to.Addr())
	if !found || to.Addr() == p.own {
		return nil, errno.EHOSTUNREACH
	}
	conn, err := m.store.connect(ctx, p.Network, to.Addr().As4()[3])
	if err != nil {
		return nil, fmt.Errorf("no VM is at %s: %w", to.Addr(), errno.EHOSTUNREACH)
	}
	at := netip.AddrPortFrom(p.own, from.Port())
	s := newStream(conn, "tcp", at, to)
	if err := s.request(ctx, header{p.Key, protocol, at, to.Port()}, protocol != "udp"); err != nil {
		_ = conn.Close()
		return nil, err
	}
	if protocol == "udp" {
		return &answered{stream: newStream(conn, protocol, at, to)}, nil
	}
	return s, nil
}

// Ping returns nil when another VM's process is there.
func (m *Member) Ping(ctx context.Context, to netip.Addr) error {
	if p, found := m.placeOf(to); found && to == p.own {
		return nil
	}
	conn, err := m.Dial(ctx, "icmp", netip.AddrPort{}, netip.AddrPortFrom(to, 0))
	if err != nil {
		return err
	}
	return conn.Close()
}

// request sends a header, and reads the answer.
func (s *stream) request(ctx context.Context, h header, wait bool) error {
	_ = s.SetDeadline(time.Now().Add(answerTime))
	stop := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := s.sendMessage(h)
	if err == nil && wait {
		err = s.answer()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_ = s.SetDeadline(time.Time{})
	return err
}

func (s *stream) answer() error {
	number := errno.Errno(0)
	if err := s.receiveMessage(&number); err != nil {
		return err
	}
	if number != 0 {
		return number
	}
	return nil
}

// answered is the datagrams of a flow, of which the first message that comes says whether they are taken.
type answered struct {
	*stream
	read bool
}

func (a *answered) Read(p []byte) (int, error) {
	if !a.read {
		a.read = true
		if err := a.answer(); err != nil {
			return 0, err
		}
	}
	return a.stream.Read(p)
}
