package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/hostfile"
	"agentvm/internal/httpserver"
	"agentvm/internal/network/preview"
)

// previews serves the links to a VM's ports, while there may be any:
//
//	idle ── a preview is made, or the VM starts and there are some ──► serving ── the daemon ends ──► closed
//	  ▲                                                                   │
//	  └───────────────── the listener has failed by itself ───────────────┘
//
// The listener's port stays the same over restarts, because links contain it. Links are withdrawn when their port was not served for
// longer than a restart takes, or when another program has it now. mu is held only to read and set fields; turn is held while the
// listener is opened or closed.
type previews struct {
	daemon *daemon
	bind   func(network, address string) (net.Listener, error)
	turn   chan struct{}  // a lock with capacity 1 that a context can interrupt
	fresh  bool           // guarded by turn: use a new port
	looked bool           // guarded by turn: withdrawStale has succeeded
	kept   uint16         // guarded by turn: the last port, also in identity.json
	served sync.WaitGroup // goroutines of serve
	counts httpserver.Metrics

	mu     sync.Mutex
	server *preview.Server
	port   uint16 // 0: not serving
	closed bool
}

// PreviewPath is the file with the links of this store's VMs, beside Dir; their key is beside it. Any number of processes may have it
// open.
func (s Store) PreviewPath() string {
	return filepath.Join(filepath.Dir(filepath.Clean(s.Dir)), "previews", "preview.db")
}

// listens reports whether previews are served.
func (p *previews) listens() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.port != 0
}

func newPreviews(d *daemon) *previews {
	return &previews{daemon: d, bind: d.listeners.listenForPreviews, turn: make(chan struct{}, 1)}
}

// resume serves the previews of before the daemon's start. What fails is tried again when the next preview is made.
func (p *previews) resume() {
	d := p.daemon
	takesPlace := d.restore != nil && d.restore.Identity != nil // the saved VM may have had links, but no port when it was saved
	if d.identity.PreviewPort == 0 && !takesPlace {
		return
	}
	if err := p.resumeActive(); err != nil {
		d.logger.Warn("the VM's previews are not served", "error", err)
	}
}

func (p *previews) resumeActive() error {
	store, err := preview.OpenStore(p.daemon.store.PreviewPath(), preview.Options{})
	if err != nil {
		return err
	}
	links, err := p.hasLinks(store)
	if err = errors.Join(err, store.Close()); err != nil || !links {
		return err
	}
	_, err = p.open(p.daemon.hard)
	return err
}

// hasLinks reports whether there are links to this VM.
func (p *previews) hasLinks(store *preview.Store) (bool, error) {
	list, err := store.List(p.daemon.hard, p.daemon.name)
	return slices.ContainsFunc(list, func(link preview.Preview) bool { return link.VMID == p.daemon.identity.ID }), err
}

const (
	// servedEvery is the interval at which noteWhile records that the port is served.
	servedEvery = 20 * time.Second
	// servedGap is for how long the port may have been free, about as long as a restart takes.
	servedGap = time.Minute
)

// withdrawStale revokes a VM's links when their port was not served for longer than a restart takes. In that time another user's program
// could listen there and receive the tokens of links that are opened. New links get another port. This is checked before this daemon
// first serves; from then on noteServed records that the port is served.
func (p *previews) withdrawStale(store *preview.Store) error {
	if p.looked {
		return nil
	}
	recent := p.daemon.store.servedLately(p.daemon.paths)
	links, err := p.hasLinks(store)
	if err != nil {
		return err
	}
	if links && !recent {
		p.fresh = true
		if err := p.withdraw(store, "their port was not served for a while, in which any program could have listened there"); err != nil {
			return err
		}
	}
	p.looked = true
	return nil
}

// withdraw revokes all the VM's links, whose tokens another program may know.
func (p *previews) withdraw(store *preview.Store, why string) error {
	d := p.daemon
	n, err := store.RevokeAll(d.hard, d.name)
	if err != nil {
		return fmt.Errorf("withdraw the VM's links, since %s: %w", why, err)
	}
	if n > 0 {
		d.logger.Warn("links to the VM are withdrawn, make new ones", "links", n, "reason", why)
	}
	return nil
}

// servedPath is a file whose modification time says until when the port was served. It is beside the links, because a VM that takes over
// an earlier one's identity has that one's links. It is removed when no link can be that old.
func (p *previews) servedPath() string { return p.daemon.store.servedPath(p.daemon.identity.ID) }

func (s Store) servedPath(identity string) string {
	return filepath.Join(filepath.Dir(s.PreviewPath()), "preview.served", identity)
}

// servedLately reports whether the port of a VM's previews was free for no longer than a restart takes.
func (s Store) servedLately(p paths) bool {
	i, err := p.readIdentity()
	if err != nil {
		return false
	}
	info, err := os.Stat(s.servedPath(i.ID))
	return err == nil && time.Since(info.ModTime()).Abs() <= servedGap
}

// forgetServed removes the files of VMs whose links have all expired.
func (p *previews) forgetServed() {
	folder := filepath.Dir(p.servedPath())
	entries, _ := os.ReadDir(folder) // without entries there is nothing to remove
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > 2*preview.MaxLifetime {
			_ = os.Remove(filepath.Join(folder, e.Name()))
		}
	}
}

// noteServed records that the port is served now. After a failure, the next start withdraws the links.
func (p *previews) noteServed() {
	d := p.daemon
	if hostfile.Touch(p.servedPath()) == nil {
		return
	}
	err := os.MkdirAll(filepath.Dir(p.servedPath()), 0o700)
	if err == nil {
		err = atomicfile.Write(p.servedPath(), nil)
	}
	if err != nil {
		d.logger.Warn("it is not known afterwards until when the VM's previews were served", "error", err)
	}
}

// noteWhile calls noteServed at once, at intervals, and when done is closed.
func (p *previews) noteWhile(done <-chan struct{}) {
	tick := time.NewTicker(servedEvery)
	defer tick.Stop()
	p.forgetServed()
	for {
		p.noteServed()
		select {
		case <-tick.C:
		case <-done:
			p.noteServed()
			return
		}
	}
}

// open serves previews, unless they are served already, and returns the address.
func (p *previews) open(ctx context.Context) (daemonrpc.PreviewPlace, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return daemonrpc.PreviewPlace{}, ctx.Err()
	}
	p.mu.Lock()
	port, closed := p.port, p.closed
	p.mu.Unlock()
	if closed {
		return daemonrpc.PreviewPlace{}, &capnprpc.Error{Kind: capnprpc.KindState, Message: "the VM is being stopped"}
	}
	if port == 0 {
		var err error
		if port, err = p.start(); err != nil {
			return daemonrpc.PreviewPlace{}, err
		}
	}
	identity := p.daemon.identity
	identity.PreviewPort = port
	return daemonrpc.PreviewPlace{ID: identity.ID, PreviewPort: identity.PreviewPort, Address: loopback(port)}, nil
}

func loopback(port uint16) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))) }

// start opens the store and the listener. The caller holds turn.
func (p *previews) start() (uint16, error) {
	d := p.daemon
	store, err := preview.OpenStore(d.store.PreviewPath(), preview.Options{})
	if err != nil {
		return 0, err
	}
	var l net.Listener
	var port uint16
	if err = p.withdrawStale(store); err == nil {
		l, port, err = p.listen(store)
	}
	if err != nil {
		return 0, errors.Join(err, store.Close())
	}
	visits, err := openLog(d.paths.visits(), maxAudit)
	if err != nil {
		return 0, errors.Join(err, l.Close(), store.Close())
	}
	server := preview.NewServer(preview.ServerConfig{
		Store: store, Dialer: previewDialer{d}, Permit: d.permitPreview, Visit: d.visit, Logger: d.logger, Metrics: &p.counts,
		Audit:  httpserver.AuditTo(visits, func(err error) { d.logger.Warn("the record of visits is not complete", "error", err) }),
		Limits: preview.Limits{DialTimeout: dialTime},
	})
	p.mu.Lock()
	p.server, p.port = server, port
	p.mu.Unlock()
	p.served.Go(func() { p.serve(server, l, store, visits) })
	d.logger.Info("previews", "address", l.Addr())
	return port, nil
}

// serve serves until close, or until the listener fails. In the second case the next preview starts it again.
func (p *previews) serve(server *preview.Server, l net.Listener, store *preview.Store, visits io.Closer) {
	logger := p.daemon.logger
	over := make(chan struct{})
	p.served.Go(func() { p.noteWhile(over) })
	err := server.Serve(context.Background(), l)
	close(over)
	p.mu.Lock()
	p.server, p.port = nil, 0
	p.mu.Unlock()
	if err != nil && !errors.Is(err, preview.ErrClosed) {
		logger.Warn("previews are no longer served, until the next one is made", "error", err)
	}
	if err := store.Close(); err != nil {
		logger.Warn("close the previews' store", "error", err)
	}
	if err := visits.Close(); err != nil {
		logger.Warn("close the record of visits", "error", err)
	}
}

// listen listens at the previous port. Where another program has that now, it withdraws the existing links, because a browser that opens
// one sends its token to that program, and keeps another port from then on.
func (p *previews) listen(store *preview.Store) (net.Listener, uint16, error) {
	d, before := p.daemon, cmp.Or(p.kept, p.daemon.identity.PreviewPort)
	if p.fresh {
		before, p.fresh = 0, false
	}
	l, err := p.bind("tcp4", loopback(before))
	if err != nil && before != 0 {
		taken := err
		if l, err = p.bind("tcp4", loopback(0)); err == nil {
			d.logger.Warn("the port of the VM's previews is taken: links have a new one from now on", "port", before, "now", l.Addr(), "error", taken)
			if err := p.withdraw(store, "another program listens at their port now"); err != nil {
				return nil, 0, errors.Join(err, l.Close())
			}
		}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("listen for visitors of previews: %w", err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port) //nolint:gosec // a port
	if port != before {
		identity := d.identity
		identity.PreviewPort = port
		err := d.identified() // otherwise it would take the place of this one
		if err == nil {
			err = d.paths.writeIdentity(identity)
		}
		if err != nil {
			return nil, 0, errors.Join(err, l.Close())
		}
	}
	p.kept = port
	return l, port, nil
}

// close ends serving for good, and waits for its goroutines.
func (p *previews) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.turn <- struct{}{} // start takes only moments
	defer func() { <-p.turn }()
	p.mu.Lock()
	server := p.server
	p.mu.Unlock()
	if server != nil {
		_ = server.Close() // it has no error
	}
	p.served.Wait()
}

// permitPreview refuses links of an earlier VM with this name, and ports that the VM's policy does not permit. Only the dial checks
// whether a server listens; a connection that is used again leads to the server that listened then.
func (d *daemon) permitPreview(_ context.Context, p preview.Preview) error {
	if p.VM != d.name || p.VMID != d.identity.ID {
		return fmt.Errorf("%s is another VM than the one that was shared: %w", d.name, preview.ErrOtherVM)
	}
	v, err := d.visited()
	if err != nil {
		return err
	}
	return v.Access().DecideFetch(p.Port)
}

// visit counts a permitted request as use of the VM until it is answered; a stream or WebSocket, for as long as it lasts.
func (d *daemon) visit(preview.Preview) (left func()) {
	d.visitors.enter(math.MaxInt) // the server has a limit
	return d.visitors.leave
}

// visited returns the VM for a request to a preview, which does not wait for a VM that boots or is paused.
func (d *daemon) visited() (VM, error) {
	v, err := d.awake()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", preview.ErrNotRunning, err)
	}
	return v, nil
}

// previewDialer connects to the servers that the VM's programs reach at 127.0.0.1, as far as its policy permits.
type previewDialer struct{ d *daemon }

// DialPreview connects. permitPreview has checked that the name is this VM's.
func (p previewDialer) DialPreview(ctx context.Context, _ string, port uint16) (net.Conn, error) {
	v, err := p.d.visited()
	if err != nil {
		return nil, err
	}
	return v.DialFetch(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(int(port))))
}

// orderTime bounds how long a client waits for the previews' listener.
const orderTime = 15 * time.Second

// Preview serves the VM's previews. The VM may be paused.
func (h handler) Preview(ctx context.Context) (daemonrpc.PreviewPlace, error) {
	if _, err := h.d.await(ctx, nil); err != nil {
		return daemonrpc.PreviewPlace{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	return h.d.previews.open(ctx)
}
