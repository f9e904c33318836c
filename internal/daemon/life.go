package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"time"

	"agentvm/internal/host/lograte"
	"agentvm/internal/host/shortage"
	"agentvm/vm"
)

// errGivenUp is the error of a boot that was interrupted.
var errGivenUp = errors.New("the VM was stopped while it booted")

// live boots the VM, and boots it again whenever its guest restarts itself, until the VM ends or is stopped. Then it closes halted.
func (d *daemon) live() {
	defer close(d.halted)
	restore := d.restore
	var pause restartPause
	for began := d.started; d.liveOnce(began, restore); began = time.Now() {
		restore = nil // it has run: from now on it boots from its own disk
		if !d.restart(pause.next(time.Since(began))) {
			return
		}
	}
}

// liveOnce is the VM's life from a boot to its end. It reports whether the guest restarts itself.
func (d *daemon) liveOnce(began time.Time, restore *Restoration) (again bool) {
	v, err := d.bootVM(restore)
	var sidecars []savedSidecar
	if err == nil {
		sidecars = d.findSidecars(v, restore)
		d.logger.Info("the VM runs", "took", time.Since(began)) // before who waits for it knows
		d.event(Event{Kind: EventRunning})
	}
	d.mu.Lock()
	d.vm, d.failure = v, err
	d.change()
	d.mu.Unlock()
	d.bootOnce.Do(func() { close(d.booted) })
	if err != nil {
		d.logger.Error("the VM could not be started", "error", err)
		return d.ran && !errors.Is(err, errGivenUp) && d.restarts(err) // it may be the host's trouble, and pass
	}
	d.listeners.release()
	d.ran = true
	stopSidecars := d.runSidecars(v, sidecars)
	defer stopSidecars()
	defer d.runHealthcheck(v)()
	select {
	case <-v.Halted():
		d.jobs.Release() // the VM's end waits for writes of its programs' output
		<-v.Done()
		return d.endedByItself(v)
	case <-d.stop:
		stopSidecars() // those that end from now on stay so
		d.stopVM(v)
	}
	return false
}

// change wakes calls that wait for the VM. The caller holds mu.
func (d *daemon) change() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// restart waits before the VM boots again. It returns false when the VM is stopped meanwhile.
func (d *daemon) restart(pause time.Duration) bool {
	d.state.Restarts++
	d.state.Restarted = time.Now().UTC()
	if now, err := d.paths.readState(d.name); err == nil && now.Token == d.state.Token { // otherwise the daemon is to end: see watch
		if err := d.paths.writeState(d.state); err != nil {
			d.logger.Warn("say that the VM starts again", "error", err)
		}
	}
	// The VM counts as starting only after the state file has been written: a concurrent Start sees by it that the guest restarts.
	d.mu.Lock()
	d.vm, d.failure = nil, nil
	d.change()
	d.mu.Unlock()
	d.event(Event{Kind: EventRestarting})
	d.logger.Info("the VM has ended and boots again", "restarts", d.state.Restarts, "in", pause)
	d.report(slog.LevelInfo, fmt.Sprintf("the guest has restarted itself, or ended, and boots again in %v", pause))
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-d.stop:
		return false
	}
}

// restartPause bounds how often a guest that restarts itself for ever is booted: the first time at once, and then after a pause that
// doubles up to a minute. A guest that has run for a minute is booted at once again.
type restartPause struct {
	short int // successive runs that were shorter than a minute
}

func (p *restartPause) next(ran time.Duration) time.Duration {
	if ran >= maxBackoff {
		p.short = 0
	}
	pause := time.Duration(0)
	if p.short > 0 {
		pause = min(defaultBackoff<<min(p.short-1, 10), maxBackoff)
	}
	p.short++
	return pause
}

// restarts reports whether the VM is to start again after an end that no client or signal ordered: Config.Restart.
func (d *daemon) restarts(err error) bool {
	switch d.settings().Restart {
	case Always:
		return true
	case OnFailure:
		return !wanted(err)
	}
	return false
}

// bootVM boots the VM, and gives up when the daemon is to stop meanwhile.
func (d *daemon) bootVM(restore *Restoration) (VM, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	booted := make(chan struct{})
	go func() {
		select {
		case <-d.stop:
			cancel(errGivenUp)
		case <-booted:
		}
	}()
	config := d.settings()
	var err error
	if d.image.Name != "" {
		config.Image, config.Platform = d.image.Name, d.image.Architecture.Platform()
	} else if restore == nil || restore.Hibernated && restore.FilesOnly { // otherwise the saved machine says it
		err = d.paths.bootImage(&config)
	}
	if restore.wakes() {
		config.Network.Forwards = restore.forwards(config.Network.Forwards)
	}
	var v VM
	if err == nil {
		var started atomic.Bool
		log := lograte.New(d.logger.Handler(), time.Now).Around(func(next slog.Handler) slog.Handler { return startLog{next, d.report, &started} })
		v, err = d.boot(ctx, booting{d.name, config, restore, d.paths, d.listeners.listen, d.report, d.overrun, d.confine, slog.New(log), d.state.Restarts > 0, d.store.Version})
		started.Store(true)
	}
	close(booted)
	if err != nil && context.Cause(ctx) != nil {
		err = errGivenUp
	}
	identified := d.identified()
	if err == nil {
		if err = identified; err == nil && restore != nil {
			err = d.paths.restored()
		}
		if err != nil {
			err = errors.Join(err, v.Close())
		} else if restore != nil {
			restore.forgetSaved()
		}
	}
	if err != nil {
		return nil, d.stillAsleep(restore, err)
	}
	image := v.Image()
	d.image = image.Key()
	if config.DiskSize >= 0 {
		if err := d.paths.writeDiskImage(d.image); err != nil {
			d.logger.Warn("say which image the disk belongs to", "error", err)
		}
	}
	return v, nil
}

// endedByItself frees a VM that ended without an order to stop. It reports whether its guest restarts itself.
func (d *daemon) endedByItself(v VM) (again bool) {
	err := v.Wait(context.Background())
	if err == nil {
		err = errors.New("the VM has ended by itself")
	}
	var guest *vm.GuestError
	rebooted := errors.As(err, &guest) && guest.Reason == vm.Rebooted
	again = !d.isStopping() && (rebooted || d.restarts(err))
	if !again {
		d.mu.Lock()
		d.failure = err
		d.change()
		d.mu.Unlock()
		d.logger.Error("the VM has ended by itself", "error", err)
	}
	if err := v.Close(); err != nil {
		d.logger.Warn("free the VM", "error", err)
	}
	return again
}

// stopVM stops the VM in order, or at once after forceStop.
func (d *daemon) stopVM(v VM) {
	d.falling.Lock()
	asleep := d.asleep.Load() // then what it would still do is lost
	d.falling.Unlock()
	d.mu.Lock()
	grace := d.grace
	d.mu.Unlock()
	if grace <= 0 || asleep {
		if err := v.Close(); err != nil {
			d.logger.Warn("switch the VM off", "error", err)
		}
		return
	}
	ctx, cancel := context.WithTimeout(d.hard, grace)
	defer cancel()
	image := v.Image()
	if signal, err := image.StopSignalNumber(); err == nil && signal != 0 { // VM.Stop logs the error
		half, cancel := context.WithTimeout(ctx, grace/2)
		if err := v.Resume(half); err == nil { // programs of a paused guest get no signals
			d.jobs.EndDurable(half, signal)
		}
		cancel()
	}
	if err := v.Stop(ctx); err != nil {
		d.logger.Warn("stop the VM", "error", err)
	}
}

// awaitClients keeps a daemon whose VM has failed for clients that ask why: until one has connected and all have left, or for
// failedTime.
func (d *daemon) awaitClients() {
	if d.failed() == nil || d.isStopping() {
		return
	}
	deadline := time.NewTimer(d.timing.failedTime)
	defer deadline.Stop()
	ticker := time.NewTicker(min(d.timing.stateCheck, 20*time.Millisecond))
	defer ticker.Stop()
	for {
		if connected, ever := d.clients.count(); ever > 0 && connected == 0 {
			return
		}
		select {
		case <-deadline.C:
			return
		case <-d.stop:
			return
		case <-ticker.C:
		}
	}
}

// watch stops the daemon when its state file is no longer its own, when it is idle, and at the end of its lifetime.
func (d *daemon) watch(ctx context.Context) {
	ticker := time.NewTicker(d.timing.stateCheck)
	defer ticker.Stop()
	rest := resting{free: freeMemory}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if d.timing.ownProcess {
			rest.look(time.Now())
		}
		if why := d.reasonToStop(time.Now()); why != "" {
			d.order(why, d.timing.grace)
			return
		}
		if why := d.reasonToHibernate(ctx, time.Now()); why != "" && d.hibernate(ctx, why) {
			return
		}
	}
}

// reasonToStop returns why the daemon is to stop; empty when it is not.
func (d *daemon) reasonToStop(now time.Time) string {
	if s, err := d.paths.readState(d.name); shortage.Is(err) && !errors.Is(err, fs.ErrPermission) {
		// Nothing is known of the file, for example because this process has no descriptor left. It is read again later.
	} else if err != nil {
		return fmt.Sprintf("its state file is gone or damaged: %v", err)
	} else if s.Token != d.state.Token {
		return "its state file is another's"
	}
	config := d.settings()
	if limit := time.Duration(config.MaxLifetime); limit > 0 && now.Sub(d.began) >= limit {
		return fmt.Sprintf("it has run for %v, its maximum lifetime", limit)
	}
	if idle := d.idleFor(now); config.IdleTimeout > 0 && idle >= time.Duration(config.IdleTimeout) {
		return fmt.Sprintf("it has not been used for %v", idle.Round(time.Second))
	}
	return ""
}

// idleFor returns for how long there has been no client, no request to a preview and no running job since the boot.
func (d *daemon) idleFor(now time.Time) time.Duration {
	select {
	case <-d.booted:
	default:
		return 0
	}
	if v, err := d.running(); err == nil && v.Paused() {
		return 0 // it was paused to be resumed
	}
	connected, left := d.clients.last()
	visiting, gone := d.visitors.last()
	active, ended := d.jobs.Used()
	if connected > 0 || visiting > 0 || active > 0 {
		return 0
	}
	for _, later := range []time.Time{gone, ended, d.started} {
		if left.Before(later) {
			left = later
		}
	}
	return now.Sub(left)
}

// progressLine is a line about the boot.
type progressLine struct {
	level slog.Level
	text  string
}

// maxLines bounds the lines of a boot that are kept for clients that connect later.
const maxLines = 32

// report passes a line to all clients that wait for the boot. A slow one loses lines.
func (d *daemon) report(level slog.Level, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	line := progressLine{level, text}
	if d.lines = append(d.lines, line); len(d.lines) > maxLines {
		d.lines = d.lines[1:]
	}
	for _, c := range d.subscribers {
		select {
		case c <- line:
		default:
		}
	}
}

// subscribe returns the lines so far and a channel for further ones.
func (d *daemon) subscribe() (past []progressLine, next <-chan progressLine, cancel func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id, c := d.nextSubscriber, make(chan progressLine, maxLines)
	d.nextSubscriber++
	d.subscribers[id] = c
	return append(past, d.lines...), c, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.subscribers, id)
	}
}
