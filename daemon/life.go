package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// errGivenUp is why a boot that was interrupted has failed.
var errGivenUp = errors.New("the VM was stopped while it booted")

// live boots the VM, waits for its end or the order to stop it, and closes halted.
func (d *daemon) live() {
	defer close(d.halted)
	v, err := d.bootVM()
	d.mu.Lock()
	d.vm, d.failure = v, err
	d.mu.Unlock()
	close(d.booted)
	if err != nil {
		d.logger.Error("the VM could not be started", "error", err)
		return
	}
	d.logger.Info("the VM runs", "took", time.Since(d.started))
	defer d.runSidecars(v)()
	select {
	case <-v.Done():
		d.endedByItself(v)
	case <-d.stop:
		d.stopVM(v)
	}
}

// bootVM boots unless the daemon is told to stop meanwhile.
func (d *daemon) bootVM() (VM, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	booted := make(chan struct{})
	go func() {
		select {
		case <-d.stop:
			cancel(errGivenUp)
		case <-booted:
		}
	}()
	v, err := d.boot(ctx, booting{d.name, d.config, d.restore, d.paths, d.report, d.logger})
	close(booted)
	if err != nil && context.Cause(ctx) != nil {
		err = errGivenUp
	}
	if err == nil && d.restore != nil {
		if err = d.paths.restored(); err != nil {
			err = errors.Join(err, v.Close())
		}
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (d *daemon) endedByItself(v VM) {
	err := v.Wait(context.Background())
	if err == nil {
		err = errors.New("the VM has ended by itself")
	}
	d.logger.Error("the VM has ended by itself", "error", err)
	d.mu.Lock()
	d.failure = err
	d.mu.Unlock()
	if err := v.Close(); err != nil {
		d.logger.Warn("free the VM", "error", err)
	}
}

// stopVM stops in order, or at once when that is wanted meanwhile.
func (d *daemon) stopVM(v VM) {
	d.mu.Lock()
	grace := d.grace
	d.mu.Unlock()
	if grace <= 0 {
		if err := v.Close(); err != nil {
			d.logger.Warn("switch the VM off", "error", err)
		}
		return
	}
	ctx, cancel := context.WithTimeout(d.hard, grace)
	defer cancel()
	if err := v.Stop(ctx); err != nil {
		d.logger.Warn("stop the VM", "error", err)
	}
}

// awaitTold keeps a daemon whose VM has failed a little, so that clients can ask why: until one has been there and all
// have left, or for failedTime.
func (d *daemon) awaitTold() {
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

// watch stops the daemon when its state file is no longer its own, when nobody uses it, and when its time is over.
func (d *daemon) watch(ctx context.Context) {
	ticker := time.NewTicker(d.timing.stateCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if why := d.reasonToStop(time.Now()); why != "" {
			d.order(why, d.timing.grace)
			return
		}
	}
}

// reasonToStop is empty when there is none.
func (d *daemon) reasonToStop(now time.Time) string {
	if s, err := d.paths.readState(d.name); err != nil {
		return fmt.Sprintf("its state file is gone or damaged: %v", err)
	} else if s.Token != d.state.Token {
		return "its state file is another's"
	}
	if most := time.Duration(d.config.MaxLifetime); most > 0 && now.Sub(d.started) >= most {
		return fmt.Sprintf("it has run for %v, its maximum lifetime", most)
	}
	if idle := d.idleFor(now); d.config.IdleTimeout > 0 && idle >= time.Duration(d.config.IdleTimeout) {
		return fmt.Sprintf("nobody has used it for %v", idle.Round(time.Second))
	}
	return ""
}

// idleFor is how long there has been no client, no visitor and no running job, since the boot.
func (d *daemon) idleFor(now time.Time) time.Duration {
	select {
	case <-d.booted:
	default:
		return 0
	}
	if v, err := d.running(); err == nil && v.Paused() {
		return 0 // whoever paused it wants to go on
	}
	connected, left := d.clients.last()
	visiting, gone := d.visitors.last()
	active, ended := d.jobs.used()
	if connected > 0 || visiting > 0 || active > 0 {
		return 0
	}
	for _, later := range []time.Time{gone, ended} {
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

// maxLines is how many lines of a boot are kept for clients that come later.
const maxLines = 32

// report passes a line to all who wait for the boot; one that is too slow loses lines.
func (d *daemon) report(level slog.Level, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	line := progressLine{level, text}
	if d.lines = append(d.lines, line); len(d.lines) > maxLines {
		d.lines = d.lines[1:]
	}
	for _, c := range d.told {
		select {
		case c <- line:
		default:
		}
	}
}

// subscribe returns the lines so far and those that come.
func (d *daemon) subscribe() (past []progressLine, next <-chan progressLine, cancel func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id, c := d.nextTold, make(chan progressLine, maxLines)
	d.nextTold++
	d.told[id] = c
	return append(past, d.lines...), c, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.told, id)
	}
}
