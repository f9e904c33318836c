package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"agentvm/images"
	"agentvm/internal/daemon/confine"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/lockfile"
	"agentvm/internal/host/lograte"
	"agentvm/internal/host/private"
	"agentvm/vm"
)

// A daemon's life:
//
//	lock ─► log ─► listen ─► state.json ─► starting ─ boot ─► running ─► stopping ─► end.json, no state.json, unlock
//	                                           │                │  ▲        ▲
//	                                           └──► failed ◄────┘  │        │ order of a client, SIGTERM, idle, lifetime,
//	                                                  └────────────┼────────┘ state.json gone
//	                             kept until clients have asked why, or failedTime
//
// The lock is taken before and released after everything else: while it is free, nothing of the daemon exists.

// Run is the whole life of the daemon of a VM that Store.Start has prepared: it returns when the VM has ended. It ends in
// order when ctx does, and on SIGINT and SIGTERM; a second signal switches the VM off at once.
func Run(ctx context.Context, s Store, name string) error {
	return run(ctx, s, name, timing{ownProcess: true}.withDefaults(), bootVM)
}

// defaultGrace is how long programs have to end by default.
const defaultGrace = 10 * time.Second

// timing is what tests shorten.
type timing struct {
	stateCheck     time.Duration // how often the state file, idleness and lifetime are looked at
	grace          time.Duration // for the guest's programs, by default
	failedTime     time.Duration // how long a daemon whose VM has failed waits for clients that ask why
	logLimit       int64
	healthShortest time.Duration // between health checks, and for one
	ownProcess     bool          // the process is the daemon's: its watchdog may end it, and it confines itself
}

func (t timing) withDefaults() timing {
	if t.stateCheck == 0 {
		t.stateCheck = 500 * time.Millisecond
	}
	if t.grace == 0 {
		t.grace = defaultGrace
	}
	if t.failedTime == 0 {
		t.failedTime = 5 * time.Second
	}
	if t.healthShortest == 0 {
		t.healthShortest = healthShortest
	}
	if t.logLimit == 0 {
		t.logLimit = maxLog
	}
	return t
}

func run(ctx context.Context, s Store, name string, t timing, boot bootFunc) error {
	p, err := s.paths(name)
	if err != nil {
		return err
	}
	if err := private.CheckFolder(p.dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", name, ErrNotFound)
	} else if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	unlock, err := awaitPrepared(ctx, p)
	if errors.Is(err, lockfile.ErrHeld) {
		return fmt.Errorf("daemon of %s: %w", name, ErrRunning)
	}
	if err != nil {
		return fmt.Errorf("daemon of %s: %w", name, err)
	}
	if _, err = s.existing(name); err == nil { // otherwise the process that prepared it has ended before it had
		err = p.writeProcess()
	}
	if err == nil {
		err = runLocked(ctx, s, name, p, t, boot)
	}
	_ = os.Remove(p.process())
	return errors.Join(err, unlock())
}

// awaitPrepared takes the VM's lock, which the process that starts a new VM holds until it has written what the daemon starts from.
func awaitPrepared(ctx context.Context, p paths) (unlock func() error, err error) {
	for {
		unlock, err = lockFile(ctx, p.lock(), lockTime)
		if !errors.Is(err, lockfile.ErrHeld) {
			return unlock, err
		}
		starting, free := lockfile.TryExisting(p.starting())
		if free == nil {
			return nil, errors.Join(err, starting.Close())
		}
		if !errors.Is(free, lockfile.ErrHeld) {
			return nil, err
		}
	}
}

// runLocked runs the daemon. Its error is also in the log.
func runLocked(ctx context.Context, s Store, name string, p paths, t timing, boot bootFunc) error {
	atomicfile.RemoveAllTemporary(p.dir)
	_ = os.Remove(p.state())
	if err := os.Remove(p.end()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	config, err := readConfig(p.config())
	if err != nil {
		return errors.Join(err, p.writeEnd(ending{Ended: time.Now(), Error: err.Error()}))
	}
	log, err := openLog(p.log(), t.logLimit)
	if err != nil {
		return err
	}
	d := newDaemon(s, name, p, config, t, boot, newLogger(log, config.Debug))
	if d.restore, err = p.readRestoration(); err != nil {
		return errors.Join(err, p.writeEnd(ending{Ended: time.Now(), Error: err.Error()}), log.Close())
	}
	_ = os.Remove(p.saving())
	p.dropSaved(d.savedIn())
	var fresh bool
	if d.identity, fresh, err = p.chooseIdentity(d.restore); err != nil {
		return errors.Join(err, p.writeEnd(ending{Ended: time.Now(), Error: err.Error()}), log.Close())
	}
	if fresh {
		made := d.identity
		d.identified = background(func() error { return p.writeIdentity(made) })
		if d.restore != nil && d.restore.Identity != nil { // its links to previews are looked up by the file
			_ = d.identified() // the VM's start has the error
		}
	}
	err = d.run(ctx)
	_ = d.identified() // the VM has not started with an error
	if err != nil {
		d.logger.Error("the daemon has failed", "error", err)
	}
	return errors.Join(err, log.Close())
}

// newLogger makes the daemon's log. Guests and strangers cause lines of it: those of one message are bounded, so that they do not push out others.
func newLogger(w io.Writer, debug bool) *slog.Logger {
	level := slog.LevelInfo
	if debug {
		level = slog.LevelDebug
	}
	return slog.New(lograte.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}), time.Now))
}

// daemon is the daemon of one VM.
type daemon struct {
	store   Store
	name    string
	paths   paths
	config  Config
	restore *Restoration // nil: the VM boots
	timing  timing
	boot    bootFunc
	logger  *slog.Logger
	started time.Time
	state   state
	jobs    *jobs

	identity   Identity
	identified func() error // waits until identity.json is durable
	previews   *previews
	listeners  *listeners
	offers     mountOffers

	booted chan struct{} // closed when the first boot is over
	halted chan struct{} // closed when the VM has ended, or has not started and will not

	confined    sync.Once
	image       images.Key                      // the booted image; a restart uses it again, because the confined process can read no other
	layers      atomic.Pointer[[]confine.Layer] // nil: the process is not confined yet
	bootOnce    sync.Once
	stopOnce    sync.Once
	stop        chan struct{}             // closed when the VM is to stop
	hard        context.Context           // ends when it is to stop at once
	forceStop   context.CancelFunc        // ends hard
	clients     refCount                  // connections that have shown the token
	visitors    refCount                  // requests to previews
	subscribers map[int]chan progressLine // guarded by mu

	configMu sync.Mutex // guards config
	policing sync.Mutex // one change of the network policy at a time, of the VM and in the config
	amending sync.Mutex // one change of config at a time
	events   *eventLog
	ran      bool        // the VM has run; live's
	began    time.Time   // the start from which the lifetime counts; before started when the VM was hibernated
	lastFlow time.Time   // when the network was last in use, as far as that keeps the VM from being hibernated; watch's
	awakeFor string      // why it is idle and not hibernated, as the log says; watch's
	asleep   atomic.Bool // the VM is saved, and this daemon ends for that

	falling  sync.Mutex   // held while it is decided whether asleep becomes true
	starting sync.RWMutex // held while a sidecar is being started, and by hibernate

	mu             sync.Mutex
	vm             VM             // nil while it boots, or starts again
	changed        chan struct{}  // closed and replaced when vm, failure or stopping change
	health         string         // see daemonrpc.Info
	sidecars       []sidecarState // those of config, in its order, while the VM runs
	failure        error          // why it could not be started, or has ended by itself
	stopping       bool
	reason         string // for the first order to stop
	grace          time.Duration
	lines          []progressLine // of the boot
	nextSubscriber int
	lent           map[string]*lentForward // by name
}

func newDaemon(s Store, name string, p paths, c Config, t timing, boot bootFunc, logger *slog.Logger) *daemon {
	d := &daemon{
		store: s, name: name, paths: p, config: c, timing: t, boot: boot, logger: logger, started: time.Now(),
		booted: make(chan struct{}), changed: make(chan struct{}), halted: make(chan struct{}), stop: make(chan struct{}),
		subscribers: make(map[int]chan progressLine), events: newEventLog(p, logger), identified: func() error { return nil },
	}
	d.began, d.lastFlow = d.started, d.started
	d.jobs = newJobs(p.jobs(), logger, time.Now, d.jobEvent)
	d.listeners = newListeners()
	d.previews = newPreviews(d)
	d.hard, d.forceStop = context.WithCancel(context.Background())
	return d
}

func (d *daemon) run(ctx context.Context) error {
	defer d.forceStop()
	listener, address, err := d.listen()
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	defer func() { _ = os.Remove(d.paths.socket()) }()
	metrics, err := d.listenMetrics()
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer metrics.close()
	if err := d.listeners.inherit(d.store.takePorts(ctx, d.name, d.restore)); err != nil {
		d.logger.Warn("take the VM's ports from the activator", "error", err)
	}
	d.jobs.Load(d.paths.jobs(), errUnseen, d.restore.programs()...)
	d.state = state{
		Version: protocolVersion, Name: d.name, Pid: os.Getpid(), Started: d.started.UTC(),
		Address: address, Token: newToken(), Program: d.store.Version,
		Metrics: metrics.address(),
	}
	if err := d.paths.writeState(d.state); err != nil {
		return errors.Join(fmt.Errorf("publish the daemon's address: %w", err), listener.Close())
	}
	d.event(Event{Kind: EventStarting})
	d.logger.Info("daemon listens", "name", d.name, "pid", d.state.Pid, "address", d.state.Address, "version", d.store.Version)
	stopSignals := d.handleSignals(ctx)
	serving, endServing := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	if timer := d.startWatchdog(); timer != nil {
		parts.Go(func() { _ = timer.Run(serving.Done()) })
	}
	parts.Go(func() { d.accept(serving, listener) })
	metrics.start()
	parts.Go(d.live)
	parts.Go(func() {
		d.previews.resume()
		<-d.booted
		d.listeners.dropInherited()
	})
	parts.Go(func() { d.watch(serving) })
	if d.store.Owned {
		go d.followOwner(os.Stdin)
	}
	<-d.halted
	d.awaitClients()
	d.jobs.Wait(vm.ErrStopped)
	err = d.conclude()
	endServing()
	_ = listener.Close()
	metrics.close()
	d.previews.close()
	d.offers.close()
	parts.Wait()
	d.jobs.Close()
	stopSignals()
	d.logger.Info("daemon ends")
	d.events.close()
	return err
}

// conclude writes end.json and then removes state.json, so that a reader finds one of them.
func (d *daemon) conclude() error {
	end := ending{Ended: time.Now().UTC(), Reason: d.whyEnded()}
	if err := d.failed(); err != nil && !wanted(err) {
		end.Error = err.Error()
	}
	kind := EventStopped
	switch {
	case end.Error != "":
		kind = EventFailed
	case d.asleep.Load():
		kind = EventHibernated
	}
	d.event(Event{Kind: kind, Message: cmp.Or(end.Error, end.Reason)})
	err := d.paths.writeEnd(end)
	if now, readErr := d.paths.readState(d.name); readErr == nil && now.Token == d.state.Token {
		err = errors.Join(err, os.Remove(d.paths.state()))
	}
	return err
}

// whyEnded describes in words what ended the VM.
func (d *daemon) whyEnded() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var guest *vm.GuestError
	switch {
	case d.reason != "":
		return d.reason
	case errors.As(d.failure, &guest):
		return "the guest " + string(guest.Reason)
	case d.failure != nil:
		return "it could not be started"
	}
	return "the VM has ended by itself"
}

// wanted reports whether an end is not a failure: the VM was stopped while it booted, or a program in it powered it off.
func wanted(err error) bool {
	var guest *vm.GuestError
	return errors.Is(err, errGivenUp) || errors.As(err, &guest) && guest.Reason == vm.PoweredOff
}

// handleSignals stops the daemon at the end of ctx and on signals, until the function that it returns is called.
func (d *daemon) handleSignals(ctx context.Context) (stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ended := ctx.Done()
		for {
			select {
			case s := <-signals:
				d.handleSignal(s)
			case <-ended:
				ended = nil
				d.order("the program is to end", d.timing.grace)
			case <-quit:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(quit)
		<-done
	}
}

// handleSignal stops in order at the first signal and at once at the second.
func (d *daemon) handleSignal(s os.Signal) {
	if d.isStopping() {
		d.logger.Warn("second signal: the VM is switched off", "signal", s)
		d.forceStop()
		return
	}
	d.order("signal "+s.String(), d.timing.grace)
}

// order stops the VM. Only the first order counts, except that a later one without grace stops it at once.
func (d *daemon) order(why string, grace time.Duration) {
	d.stopOnce.Do(func() {
		d.logger.Info("the VM is stopped", "why", why, "grace", grace)
		d.mu.Lock()
		d.stopping, d.grace, d.reason = true, grace, why
		d.change()
		d.mu.Unlock()
		d.event(Event{Kind: EventStopping, Message: why})
		close(d.stop)
		d.jobs.UnblockWriters()
	})
	if grace <= 0 {
		d.forceStop()
	}
}

func (d *daemon) isStopping() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stopping
}

func (d *daemon) failed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure
}
