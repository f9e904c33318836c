package netstack

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// nicID is the only interface: the link to the guest.
const nicID tcpip.NICID = 1

// Network is one VM's network. See the package's comment for its rules.
type Network struct {
	config    Config
	addresses Addresses
	stack     *stack.Stack
	link      *linkEndpoint
	flows     flowTable
	datagrams datagramTable
	router    *router
	ran       sync.Once
	echoes    atomic.Pointer[func(Echo)]

	closing   chan struct{}
	closeOnce sync.Once
	mu        sync.Mutex // nothing is added after closing is closed
	sockets   map[io.Closer]struct{}
	handlers  sync.WaitGroup // goroutines that run what HandleTCP and HandleEcho were given
}

// New builds a network that moves nothing until [Network.Run]. It opens no descriptor; the goroutines that it starts
// are gVisor's, and Close waits for them.
func New(c Config) (*Network, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &Network{config: c, addresses: c.addresses(), closing: make(chan struct{})}
	n.router = newRouter(n)
	n.link = newLink(linkConfig{
		addresses: n.addresses, linkLocal: n.router.from, mtu: c.MTU, header: c.Header, queueBytes: c.QueueBytes,
		capture: c.Capture, clock: c.Clock, logger: c.Logger, echo: n.linkEcho, solicited: n.router.solicited, expired: n.sendTimeExceeded, datagram: n.datagrams.admit,
	})
	if err := n.buildStack(); err != nil {
		return nil, err
	}
	return n, nil
}

// Addresses are what the network's stations are called.
func (n *Network) Addresses() Addresses { return n.addresses }

// MTU is the largest IP packet on the link, in bytes.
func (n *Network) MTU() int { return n.config.MTU }

// Run moves frames between the guest's end of link and the network until link ends (nil at the end of file), ctx ends
// or the network is closed. It may be called once.
func (n *Network) Run(ctx context.Context, link io.ReadWriter) error {
	err := errors.New("network: Run was called before")
	n.ran.Do(func() {
		n.router.start()
		defer n.router.stop()
		err = n.link.run(ctx, link)
	})
	return err
}

// Close ends all flows, and every call that waits for them, and frees the stack. It waits for running handlers, which
// therefore should be asked to end before; Close makes their calls into the network fail.
func (n *Network) Close() error {
	n.closeOnce.Do(func() {
		n.mu.Lock()
		close(n.closing)
		n.mu.Unlock()
		n.router.stop()
		n.flows.abortAll()
		n.closeSockets()
		n.link.close()
		n.endHandlers()
		n.stack.Close()
		n.stack.Wait()
	})
	return nil
}

// Stats are the counts until now.
func (n *Network) Stats() Stats {
	s := n.link.stats()
	s.Retransmits = n.stack.Stats().TCP.Retransmits.Value()
	return s
}

// enter counts a goroutine that runs a handler; leave with handlers.Done. It fails after Close.
func (n *Network) enter() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed() {
		return false
	}
	n.handlers.Add(1)
	return true
}

// addSocket notes what Close has to close. It fails after Close.
func (n *Network) addSocket(s io.Closer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed() {
		return false
	}
	if n.sockets == nil {
		n.sockets = make(map[io.Closer]struct{})
	}
	n.sockets[s] = struct{}{}
	return true
}

func (n *Network) removeSocket(s io.Closer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.sockets, s)
}

// closeSockets is Close's. None is added afterwards.
func (n *Network) closeSockets() {
	n.mu.Lock()
	all := slices.Collect(maps.Keys(n.sockets))
	n.mu.Unlock()
	for _, s := range all {
		_ = s.Close()
	}
}

// endHandlers waits for running handlers. One may be in a handshake whose endpoint exists since a moment ago, or will in a
// moment: endpoints are aborted until all handlers have returned.
func (n *Network) endHandlers() {
	over := make(chan struct{})
	go func() {
		n.handlers.Wait()
		close(over)
	}()
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		for _, e := range n.stack.RegisteredEndpoints() {
			e.Abort()
		}
		select {
		case <-over:
			return
		case <-time.After(pause):
		}
	}
}

// closed says whether Close has begun.
func (n *Network) closed() bool {
	select {
	case <-n.closing:
		return true
	default:
		return false
	}
}
