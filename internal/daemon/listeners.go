package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"agentvm/nat"
)

// listeners are the sockets of the host at which others reach a VM: those of its published TCP ports, and that of its previews. While they are
// held, connections wait in the queues of the sockets, also when another process gets these: the activator, or a daemon from it.
//
//	bound, or from the activator ─► open ─── hold ──► held ──► with the activator: the VM is hibernated
//	                               ▲─── release ────┘
type listeners struct {
	mu        sync.Mutex
	changed   *sync.Cond // held, accepting, or which are open
	held      bool
	accepting int       // calls that the system may still answer with a connection
	visits    int       // connections to previews that are open
	last      time.Time // when a connection was accepted
	open      map[*listener]struct{}
	inherited map[string]*net.TCPListener // from the activator, by address, until they are asked for
}

func newListeners() *listeners {
	s := &listeners{open: make(map[*listener]struct{}), inherited: make(map[string]*net.TCPListener)}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// listener is one of them.
type listener struct {
	*net.TCPListener
	of       *listeners
	previews bool
	closed   bool // guarded by of.mu
}

// listen opens a socket, for vm.Network.Listen.
func (s *listeners) listen(ctx context.Context, network, address string) (net.Listener, error) {
	return s.add(ctx, network, address, false)
}

// listenForPreviews opens that of previews.
func (s *listeners) listenForPreviews(network, address string) (net.Listener, error) {
	return s.add(context.Background(), network, address, true)
}

func (s *listeners) add(ctx context.Context, network, address string, previews bool) (net.Listener, error) {
	s.mu.Lock()
	tcp := s.inherited[address]
	delete(s.inherited, address)
	s.mu.Unlock()
	if tcp == nil {
		bound, err := (&net.ListenConfig{}).Listen(ctx, network, address)
		if err != nil {
			return nil, err
		}
		tcp = bound.(*net.TCPListener)
	}
	l := &listener{TCPListener: tcp, of: s, previews: previews}
	s.mu.Lock()
	s.open[l] = struct{}{}
	s.mu.Unlock()
	return l, nil
}

// inherit takes sockets of the activator. When there are any, connections are held until release.
func (s *listeners) inherit(files []*os.File) error {
	var errs []error
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = len(files) > 0
	for _, f := range files {
		l, err := net.FileListener(f)
		if tcp, ok := l.(*net.TCPListener); ok {
			s.inherited[tcp.Addr().String()] = tcp
		} else if err == nil {
			err = errors.Join(fmt.Errorf("%s is no TCP port", l.Addr()), l.Close())
		}
		errs = append(errs, err, f.Close())
	}
	return errors.Join(errs...)
}

// dropInherited closes the sockets that were not asked for, such as that of previews whose links have expired.
func (s *listeners) dropInherited() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for address, l := range s.inherited {
		_ = l.Close()
		delete(s.inherited, address)
	}
}

// countedTime is how long after it was accepted a connection is certainly among the flows of the VM's network.
const countedTime = time.Second

// hold has connections wait, until release. It returns false when one that has been accepted may be in use and not yet among the VM's flows.
func (s *listeners) hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = true
	for l := range s.open {
		_ = l.SetDeadline(time.Unix(1, 0)) // no call of Accept takes a connection any more
	}
	for s.accepting > 0 {
		s.changed.Wait()
	}
	return s.visits == 0 && time.Since(s.last) > countedTime
}

func (s *listeners) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = false
	for l := range s.open {
		_ = l.SetDeadline(time.Time{})
	}
	s.changed.Broadcast()
}

// used returns how many connections to previews are open, and when a connection was last accepted.
func (s *listeners) used() (visits int, last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.visits, s.last
}

// files returns the sockets, and notes in r what they are. ports are the VM's.
func (s *listeners) files(r *Restoration, ports []nat.Forward) (files []*os.File, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.open {
		at, err := netip.ParseAddrPort(l.Addr().String())
		i := slices.IndexFunc(ports, func(f nat.Forward) bool { return f.Listen == at })
		switch {
		case err != nil:
		case l.previews:
			r.Previews = at
		case i < 0:
			err = fmt.Errorf("it is not known where port %s leads", at)
		default:
			r.Ports = append(r.Ports, ports[i])
		}
		var file *os.File
		if err == nil {
			file, err = l.File()
		}
		if err != nil {
			closeFiles(files)
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// Accept waits while connections are held.
func (l *listener) Accept() (net.Conn, error) {
	for l.begin() {
		conn, err := l.TCPListener.Accept()
		l.end(err == nil)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded): // they are held
		case err == nil && l.previews:
			return &visit{Conn: conn, of: l.of}, nil
		default:
			return conn, err
		}
	}
	return nil, net.ErrClosed
}

// begin returns false when the listener is closed.
func (l *listener) begin() bool {
	s := l.of
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.held && !l.closed {
		s.changed.Wait()
	}
	if !l.closed {
		s.accepting++
	}
	return !l.closed
}

func (l *listener) end(accepted bool) {
	s := l.of
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepting--
	if accepted {
		s.last = time.Now()
		if l.previews {
			s.visits++
		}
	}
	s.changed.Broadcast()
}

// Close closes the socket, unless another process has it, too.
func (l *listener) Close() error {
	l.of.mu.Lock()
	l.closed = true
	delete(l.of.open, l)
	l.of.changed.Broadcast()
	l.of.mu.Unlock()
	return l.TCPListener.Close()
}

// visit is a connection to previews.
type visit struct {
	net.Conn
	of   *listeners
	once sync.Once
}

// Close closes it.
func (v *visit) Close() error {
	v.once.Do(func() {
		v.of.mu.Lock()
		defer v.of.mu.Unlock()
		v.of.visits--
		v.of.last = time.Now()
	})
	return v.Conn.Close()
}
