package daemon

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"agentvm/internal/host/hostfile"
	"agentvm/internal/host/lockfile"
	"agentvm/internal/host/private"
	"agentvm/internal/host/unixsocket"
)

const (
	// activatorInterval is how often the activator looks which VMs need it. It is well below servedGap.
	activatorInterval = 10 * time.Second
	// maxActivatorConns bounds the connections of daemons to the activator.
	maxActivatorConns = 64
	// activatorWakeTime bounds how long a connection waits for its VM.
	activatorWakeTime = time.Minute
	// A VM that cannot be woken is tried again with the next connection, after a pause that doubles.
	minWakePause, maxWakePause = time.Second, time.Minute
)

// RunActivator is the whole life of the activator of a store. It ends when no VM needs one, with ctx, and on SIGINT and SIGTERM. When there is another
// activator it returns at once.
func RunActivator(ctx context.Context, s Store) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return runActivator(ctx, s, activatorInterval)
}

func runActivator(ctx context.Context, s Store, interval time.Duration) (err error) {
	var w *waker // with the first lock; this process can start none afterwards
	defer func() {
		if w != nil {
			err = errors.Join(err, w.end())
		}
	}()
	for {
		served, err := s.serveActivator(ctx, interval, &w)
		// One who has seen that there is an activator, and started none, may need it since it looked for the last time.
		if !served || err != nil || ctx.Err() != nil || !s.needsActivator() {
			return err
		}
	}
}

// serveActivator serves as long as a VM needs it. It returns false when another activator does.
func (s Store) serveActivator(ctx context.Context, interval time.Duration, w **waker) (served bool, err error) {
	files := s.activator()
	if err := private.MakeFolder(files.door()); err != nil {
		return false, fmt.Errorf("activator: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	lock, err := lockfile.Wait(limited, files.lock()) // which others hold for moments, to see whether there is an activator
	if err != nil {
		return false, ctx.Err()
	}
	defer func() { err = errors.Join(err, lock.Remove()) }()
	if !lock.Current() {
		return false, nil
	}
	log, err := openLog(files.log(), maxLog)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	listener, err := unixsocket.Listen(files.socket())
	if err != nil {
		return false, fmt.Errorf("activator: %w", err)
	}
	logger := newLogger(log, false)
	if *w == nil {
		if *w, err = s.startWaker(); err != nil {
			return false, errors.Join(fmt.Errorf("activator: %w", err), listener.Close())
		}
		s.confineActivator(logger)
	}
	p := &activator{store: s, logger: logger, waker: *w, held: make(map[string]*heldVM), failed: make(map[string]string)}
	p.used.Store(true)
	p.logger.Info("the activator listens", "pid", os.Getpid(), "version", s.Version)
	ctx, cancelAll := context.WithCancel(ctx)
	p.work.Go(func() {
		select {
		case <-ctx.Done():
		case <-p.waker.reading: // others start another activator, as when this one was killed
			cancelAll()
		}
	})
	p.work.Go(func() { p.accept(ctx, listener) })
	p.look(ctx, interval, lock)
	cancelAll()
	_ = listener.Close()
	_ = os.Remove(files.socket())
	p.dropAll()
	p.work.Wait()
	p.logger.Info("the activator ends")
	select {
	case <-p.waker.reading:
		return true, errWakerEnded
	default:
		return true, nil
	}
}

// activator is the process that holds the ports of hibernated VMs.
type activator struct {
	store  Store
	logger *slog.Logger
	waker  *waker
	work   sync.WaitGroup

	used atomic.Bool // something has happened since memory was freed

	mu     sync.Mutex
	held   map[string]*heldVM // by the VM's name
	failed map[string]string  // by name: why ports could not be bound, which is logged once
	closed bool
}

// heldVM is a hibernated VM with its sockets.
type heldVM struct {
	name, key string
	previews  string // the VM's identity, when there is the port of previews
	sockets   []*os.File
	knock     chan struct{} // a connection waits
	gone      chan struct{} // closed when it is no longer held
	watching  sync.WaitGroup
}

// look looks at the VMs until none needs the activator for two intervals, for a VM that is just being started, or until the lock's file is gone.
func (p *activator) look(ctx context.Context, interval time.Duration, lock *lockfile.Lock) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for idle := 0; idle < 2 && lock.Current(); {
		p.review(ctx)
		if idle++; p.store.needsActivator() {
			idle = 0
		}
		if p.used.Swap(false) {
			freeMemory()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// review brings what is held in line with the VMs' records: after this process has begun, and after VMs were removed by hand.
func (p *activator) review(ctx context.Context) {
	entries, err := os.ReadDir(p.store.Dir)
	if err != nil {
		return
	}
	there := make(map[string]bool)
	for _, e := range entries {
		there[e.Name()] = true
		p.reviewVM(ctx, e.Name())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, h := range p.held {
		if !there[name] {
			p.dropLocked(h)
		}
	}
}

func (p *activator) reviewVM(ctx context.Context, name string) {
	paths, err := p.store.existing(name)
	if err != nil {
		return
	}
	alive, unlock, err := probe(paths)
	if err != nil || alive { // its daemon gives and takes what is its
		return
	}
	defer func() { _ = unlock() }() // until then no daemon begins, which would bind the same ports
	record := paths.heldPorts()
	p.mu.Lock()
	h := p.held[name]
	if h != nil && !record.hasKey(h.key) {
		p.dropLocked(h)
		h = nil
	}
	p.mu.Unlock()
	switch {
	case record == nil:
	case h != nil:
		p.noteServed(h)
	default:
		p.bind(ctx, paths, name, record)
	}
}

// bind binds the ports of a VM anew, after an activator was killed. The links to the VM are as good as before only when their port was free for
// no longer than a restart takes: see previews.
func (p *activator) bind(ctx context.Context, paths paths, name string, record *Restoration) {
	var files []*os.File
	var errs []error
	var list []netip.AddrPort
	for _, port := range record.Ports {
		list = append(list, port.Listen)
	}
	if record.Previews.IsValid() && p.store.servedLately(paths) {
		list = append(list, record.Previews)
	}
	for _, at := range list {
		f, err := bindPort(ctx, at)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		files = append(files, f)
	}
	if err := errors.Join(errs...); err != nil && p.failed[name] != err.Error() {
		p.logger.Warn("not all ports of a hibernated VM are held: connections to the others do not wake it", "vm", name, "error", err)
		p.failed[name] = err.Error()
	}
	if len(files) > 0 {
		delete(p.failed, name)
		p.hold(ctx, paths, name, record, files)
	}
}

func bindPort(ctx context.Context, at netip.AddrPort) (*os.File, error) {
	family := "tcp6" // as the VM's own sockets: see package nat
	if at.Addr().Is4() {
		family = "tcp4"
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, family, at.String())
	if err != nil {
		return nil, err
	}
	f, err := l.(*net.TCPListener).File()
	return f, errors.Join(err, l.Close())
}

// hold takes over the sockets of a VM.
func (p *activator) hold(ctx context.Context, paths paths, name string, record *Restoration, files []*os.File) {
	h := &heldVM{name: name, key: record.Key, sockets: files, knock: make(chan struct{}), gone: make(chan struct{})}
	if identity, err := paths.readIdentity(); record.Previews.IsValid() && err == nil {
		h.previews = identity.ID
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		closeFiles(files)
		return
	}
	if before := p.held[name]; before != nil {
		p.dropLocked(before)
	}
	p.held[name] = h
	for _, f := range files {
		h.watching.Go(func() { h.watch(f) })
	}
	p.work.Go(func() { p.guard(ctx, h) })
	p.work.Go(h.watching.Wait)
	p.logger.Info("ports are held", "vm", name, "sockets", len(files))
}

// noteServed records that the port of a VM's previews is this user's now.
func (p *activator) noteServed(h *heldVM) {
	if h.previews == "" {
		return
	}
	if err := hostfile.Touch(p.store.servedPath(h.previews)); err != nil {
		p.logger.Warn("it is not known afterwards until when the VM's previews were served", "vm", h.name, "error", err)
	}
}

// watch knocks whenever a connection waits.
func (h *heldVM) watch(f *os.File) {
	for awaitConnection(f) == nil {
		select {
		case h.knock <- struct{}{}:
		case <-h.gone:
			return
		}
	}
}

// guard wakes the VM when a connection waits. It lets those go that wait for one that cannot be woken.
func (p *activator) guard(ctx context.Context, h *heldVM) {
	for pause := minWakePause; ; pause = min(2*pause, maxWakePause) {
		select {
		case <-h.knock:
		case <-h.gone:
			return
		}
		err := p.wake(ctx, h)
		p.used.Store(true)
		if err == nil || errors.Is(err, ErrNotRunning) {
			p.mu.Lock()
			p.dropLocked(h)
			p.mu.Unlock()
			return
		}
		refused := 0
		p.mu.Lock() // a daemon that takes the sockets meanwhile has its connections
		if p.held[h.name] == h {
			for _, f := range h.sockets {
				refused += refuse(f)
			}
		}
		p.mu.Unlock()
		p.logger.Warn("a VM to which connections have come cannot be woken: they are closed", "vm", h.name, "waited", refused, "error", err)
		select {
		case <-time.After(pause):
		case <-h.gone:
			return
		}
	}
}

func (p *activator) wake(ctx context.Context, h *heldVM) error {
	began := time.Now()
	if err := p.waker.wake(ctx, h.name, h.key); err != nil {
		return err
	}
	p.logger.Info("a connection has woken a VM", "vm", h.name, "took", time.Since(began))
	return nil
}

// dropLocked closes the activator's part of a VM's sockets. The caller holds mu.
func (p *activator) dropLocked(h *heldVM) {
	if p.held[h.name] != h {
		return
	}
	delete(p.held, h.name)
	close(h.gone)
	closeFiles(h.sockets)
}

func (p *activator) dropAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, h := range p.held {
		p.dropLocked(h)
	}
}

// accept serves daemons, and commands that remove or rename VMs.
func (p *activator) accept(ctx context.Context, l net.Listener) {
	places := make(chan struct{}, maxActivatorConns)
	for {
		places <- struct{}{}
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return
		case err != nil:
			p.logger.Warn("accept a connection", "error", err)
			time.Sleep(acceptPause)
			<-places
			continue
		}
		p.work.Go(func() {
			defer func() { _ = conn.Close(); <-places }()
			if err := p.serve(ctx, conn.(*net.UnixConn)); err != nil {
				p.logger.Warn("an exchange with the activator has failed", "error", err)
			}
		})
	}
}

// serve does one exchange.
func (p *activator) serve(ctx context.Context, conn *net.UnixConn) error {
	p.used.Store(true)
	if err := checkPeer(conn); err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(activatorTime)); err != nil {
		return err
	}
	var r activatorRequest
	if err := readMessage(conn, &r); err != nil {
		return err
	}
	var taken *heldVM
	var err error
	switch r.Do {
	case doAsk:
	case doGive:
		err = p.give(ctx, conn, r)
	case doTake:
		taken, err = p.take(r)
	default:
		err = fmt.Errorf("it cannot do %.20q", r.Do)
	}
	var answer activatorAnswer
	if err != nil {
		answer.Error = err.Error()
	}
	if taken != nil {
		defer taken.watching.Wait() // which have the files open until then
		defer closeFiles(taken.sockets)
		answer.Count = len(taken.sockets)
	}
	err = errors.Join(err, writeMessage(conn, answer))
	if answer.Count > 0 {
		err = errors.Join(err, sendFiles(conn, taken.sockets))
	}
	return err
}

// give takes over the sockets of a VM, as its record says.
func (p *activator) give(ctx context.Context, conn *net.UnixConn, r activatorRequest) error {
	files, err := receiveFiles(conn)
	if err != nil {
		return err
	}
	paths, err := p.store.existing(r.VM)
	if err == nil {
		var record *Restoration
		if record, err = paths.readRestoration(); err == nil && !record.hasKey(r.Key) {
			err = fmt.Errorf("%s is not hibernated, or its key is another", r.VM)
		}
		if err == nil {
			p.hold(ctx, paths, r.VM, record, files)
			return nil
		}
	}
	closeFiles(files)
	return err
}

// take ends that the sockets of a VM are held. The caller closes them.
func (p *activator) take(r activatorRequest) (*heldVM, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.held[r.VM]
	if h == nil || subtle.ConstantTimeCompare([]byte(h.key), []byte(r.Key)) != 1 {
		return nil, errors.New("no ports of it are held, or its key is another")
	}
	delete(p.held, r.VM)
	close(h.gone)
	return h, nil
}
