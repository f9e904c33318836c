package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"agentvm/preview"
	"agentvm/rpc"
	"agentvm/vm"
)

// previews serves the links to a VM's ports, while there may be any:
//
//	idle ── a preview is made, or the VM starts and there are some ──► serving ── the daemon ends ──► closed
//	  ▲                                                                   │
//	  └───────────────── the listener has failed by itself ───────────────┘
//
// The listener's port stays the same over restarts, because links have it in them. Nothing here is done with mu held but to look
// and to set; turn is held by who opens or closes.
type previews struct {
	daemon *daemon
	bind   func(network, address string) (net.Listener, error)
	turn   chan struct{}  // taken by who opens or closes
	kept   uint16         // the port of before, also in identity.json; whoever has the turn reads and sets it
	served sync.WaitGroup // serve

	mu     sync.Mutex
	server *preview.Server
	port   uint16 // 0: not serving
	closed bool
}

// PreviewPlace is the answer to the order "preview": whose links are to be made, and where they are served.
type PreviewPlace struct {
	Identity
	Address string `json:"address"` // 127.0.0.1:PORT
}

// PreviewPath is the file in which the links of this store's VMs are kept, beside Dir; their key is beside it. Any number of processes
// may have it open.
func (s Store) PreviewPath() string {
	return filepath.Join(filepath.Dir(filepath.Clean(s.Dir)), "preview.db")
}

func newPreviews(d *daemon) *previews {
	return &previews{daemon: d, bind: net.Listen, turn: make(chan struct{}, 1)}
}

// resume serves again what was served before the daemon's start. What fails here is tried again when the next preview is made.
func (p *previews) resume() {
	d := p.daemon
	takesPlace := d.restore != nil && d.restore.Identity != nil // of a VM that was saved perhaps before its first preview was made
	if d.identity.PreviewPort == 0 && !takesPlace {
		return
	}
	if err := p.resumeActive(); err != nil {
		d.logger.Warn("the VM's previews are not served", "error", err)
	}
}

func (p *previews) resumeActive() error {
	d := p.daemon
	store, err := preview.OpenStore(d.store.PreviewPath(), preview.Options{})
	if err != nil {
		return err
	}
	list, err := store.List(d.hard, d.name)
	if err = errors.Join(err, store.Close()); err != nil {
		return err
	}
	for _, link := range list {
		if link.VMID == d.identity.ID {
			_, err := p.open(d.hard)
			return err
		}
	}
	return nil
}

// open serves previews, unless they are served already, and says where.
func (p *previews) open(ctx context.Context) (PreviewPlace, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return PreviewPlace{}, ctx.Err()
	}
	p.mu.Lock()
	port, closed := p.port, p.closed
	p.mu.Unlock()
	if closed {
		return PreviewPlace{}, &rpc.Error{Kind: rpc.KindState, Message: "the VM is being stopped"}
	}
	if port == 0 {
		var err error
		if port, err = p.start(); err != nil {
			return PreviewPlace{}, err
		}
	}
	identity := p.daemon.identity
	identity.PreviewPort = port
	return PreviewPlace{identity, loopback(port)}, nil
}

func loopback(port uint16) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))) }

// start opens the store and the listener. The caller has its turn.
func (p *previews) start() (uint16, error) {
	d := p.daemon
	store, err := preview.OpenStore(d.store.PreviewPath(), preview.Options{})
	if err != nil {
		return 0, err
	}
	l, port, err := p.listen()
	if err != nil {
		return 0, errors.Join(err, store.Close())
	}
	server := preview.NewServer(preview.ServerConfig{
		Store: store, Dialer: previewDialer{d}, Permit: d.permitPreview, Visit: d.visit, Logger: d.logger,
		Limits: preview.Limits{DialTimeout: dialTime},
	})
	p.mu.Lock()
	p.server, p.port = server, port
	p.mu.Unlock()
	p.served.Go(func() { p.serve(server, l, store) })
	d.logger.Info("previews", "address", l.Addr())
	return port, nil
}

// serve serves until close, or until the listener fails; then who makes the next preview has it served again.
func (p *previews) serve(server *preview.Server, l net.Listener, store *preview.Store) {
	logger := p.daemon.logger
	err := server.Serve(context.Background(), l)
	p.mu.Lock()
	p.server, p.port = nil, 0
	p.mu.Unlock()
	if err != nil && !errors.Is(err, preview.ErrClosed) {
		logger.Warn("previews are no longer served, until the next one is made", "error", err)
	}
	if err := store.Close(); err != nil {
		logger.Warn("close the previews' store", "error", err)
	}
}

// listen listens at the port of before, or, where another program has it now, at another, which is kept from then on.
func (p *previews) listen() (net.Listener, uint16, error) {
	d, before := p.daemon, cmp.Or(p.kept, p.daemon.identity.PreviewPort)
	l, err := p.bind("tcp4", loopback(before))
	if err != nil && before != 0 {
		taken := err
		if l, err = p.bind("tcp4", loopback(0)); err == nil {
			d.logger.Warn("the port of the VM's previews is taken: links have a new one, see agentvm preview ls", "port", before, "now", l.Addr(), "error", taken)
		}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("listen for visitors of previews: %w", err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port) //nolint:gosec // a port
	if port != before {
		identity := d.identity
		identity.PreviewPort = port
		if err := d.paths.writeIdentity(identity); err != nil {
			return nil, 0, errors.Join(err, l.Close())
		}
	}
	p.kept = port
	return l, port, nil
}

// close ends what is being served and waits for it. Nothing is served again.
func (p *previews) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.turn <- struct{}{} // who opens is done in moments
	defer func() { <-p.turn }()
	p.mu.Lock()
	server := p.server
	p.mu.Unlock()
	if server != nil {
		_ = server.Close() // says nothing
	}
	p.served.Wait()
}

// permitPreview refuses what is not a preview of this VM, for links of one that had its name before lead nowhere, and what its policy
// does not permit. Whether something listens is asked by the dial: a connection that is used again is one to what listened then.
func (d *daemon) permitPreview(_ context.Context, p preview.Preview) error {
	if p.VM != d.name || p.VMID != d.identity.ID {
		return fmt.Errorf("%s is another VM than the one that was shared: %w", d.name, preview.ErrNotRunning)
	}
	v, err := d.visited()
	if err != nil {
		return err
	}
	return v.Access().Decide(vm.CallerFetch, vm.OpLoopback, p.Port)
}

// visit counts a request that was let through as use of the VM, until it is answered: a stream or WebSocket for as long as it lasts.
func (d *daemon) visit(preview.Preview) (left func()) {
	d.visitors.enter(math.MaxInt) // the server has a limit
	return d.visitors.leave
}

// visited is the VM, for a visitor, who does not wait for one that boots or stands still.
func (d *daemon) visited() (VM, error) {
	v, err := d.awake()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", preview.ErrNotRunning, err)
	}
	return v, nil
}

// previewDialer is the way into the VM: what its own programs reach at 127.0.0.1, as far as its policy permits.
type previewDialer struct{ d *daemon }

// DialPreview connects. The name is this VM's, see permitPreview.
func (p previewDialer) DialPreview(ctx context.Context, _ string, port uint16) (net.Conn, error) {
	v, err := p.d.visited()
	if err != nil {
		return nil, err
	}
	return v.DialFetch(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(int(port))))
}

// orderTime bounds what a client waits for the listener of previews.
const orderTime = 15 * time.Second

// openPreviews is the order "preview". The VM need not be awake: its links wait for it.
func (h handler) openPreviews(ctx context.Context) ([]byte, error) {
	if _, err := h.d.running(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	place, err := h.d.previews.open(ctx)
	if err != nil {
		return nil, err
	}
	return json.Marshal(place)
}
