package daemon

import (
	"cmp"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"agentvm/egress"
	"agentvm/images"
	"agentvm/internal/daemon/confine"
	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
	"agentvm/internal/storage/snapshot"
	"agentvm/internal/work/job"
	"agentvm/vm"
)

// handler is what clients call. It implements daemonrpc.Handler.
type handler struct{ d *daemon }

var _ daemonrpc.Handler = handler{}

// Info describes the daemon.
func (h handler) Info() daemonrpc.Info {
	d := h.d
	c := d.settings()
	i := daemonrpc.Info{
		Name: d.name, Pid: d.state.Pid, Version: d.store.Version, Started: d.started, Mounts: texts(c.Mounts),
		Image: cmp.Or(c.Image, images.DefaultName()), Memory: cmp.Or(c.Memory, vm.DefaultMemory),
		Ports: texts(c.Network.Forwards),
	}
	for key, value := range c.Labels {
		i.Labels = append(i.Labels, key+"="+value)
	}
	slices.Sort(i.Labels)
	i.Config, _ = json.Marshal(c)
	i.Clients, _ = d.clients.count()
	i.Jobs = d.jobs.Count()
	d.describe(&i)
	return i
}

// texts returns how a configuration writes the values.
func texts[T encoding.TextMarshaler](list []T) (out []string) {
	for _, v := range list {
		text, _ := v.MarshalText() // fails for none of them
		out = append(out, string(text))
	}
	return out
}

// describe sets the fields that change during the daemon's life.
func (d *daemon) describe(i *daemonrpc.Info) {
	d.mu.Lock()
	v, failure, stopping := d.vm, d.failure, d.stopping
	i.Health, i.Sidecars = d.health, infosOf(d.sidecars)
	d.mu.Unlock()
	switch {
	case failure != nil:
		i.State, i.Error = daemonrpc.Failed, failure.Error()
	case stopping || v != nil && halted(v):
		i.State = daemonrpc.Stopping
	case v != nil && v.Paused():
		i.State = daemonrpc.Paused
	case v != nil:
		i.State = daemonrpc.Running
	}
	if v != nil {
		v.Describe(i)
	}
}

// AwaitReady waits for the boot and reports its progress.
func (h handler) AwaitReady(ctx context.Context, progress func(slog.Level, string)) error {
	past, next, cancel := h.d.subscribe()
	defer cancel()
	for _, line := range past {
		progress(line.level, line.text)
	}
	for {
		_, changed, err := h.d.settled()
		if changed == nil {
			for len(next) > 0 {
				line := <-next
				progress(line.level, line.text)
			}
			return err
		}
		select {
		case line := <-next:
			progress(line.level, line.text)
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// halted reports whether nothing runs in a VM any more. The daemon may not have decided yet whether it boots again.
func halted(v VM) bool {
	select {
	case <-v.Halted():
		return true
	default:
		return false
	}
}

// settled is running, unless the VM boots, restarts or has just ended: then it returns a channel that is closed when that has changed.
func (d *daemon) settled() (v VM, changed <-chan struct{}, err error) {
	d.mu.Lock()
	booting := (d.vm == nil || halted(d.vm)) && d.failure == nil && !d.stopping
	changed = d.changed
	d.mu.Unlock()
	if booting {
		return nil, changed, nil
	}
	v, err = d.running()
	return v, nil, err
}

// await is running that waits while the VM boots or restarts, and while the VM is still gone, whose guest was about to end.
func (d *daemon) await(ctx context.Context, gone VM) (VM, error) {
	for {
		v, changed, err := d.settled()
		if changed == nil {
			if err != nil || v != gone {
				return v, err
			}
			d.mu.Lock()
			changed = d.changed
			same := d.vm == gone && d.failure == nil && !d.stopping
			d.mu.Unlock()
			if !same {
				continue
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// leaving reports whether a program was certainly not started because its guest restarts or powers off, so that it can be started again.
func leaving(err error) bool {
	var refused *capnprpc.Error
	return errors.As(err, &refused) && refused.Kind == capnprpc.KindState && refused.Errno == errno.ESHUTDOWN
}

// running returns the VM, or an error when it does not run yet, or no longer.
func (d *daemon) running() (VM, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.failure != nil:
		failed := &capnprpc.Error{Kind: capnprpc.KindState, Message: d.failure.Error()}
		if errno.In(d.failure) == errno.EADDRINUSE { // the client may choose another port
			failed.Errno = errno.EADDRINUSE
		}
		return nil, failed
	case d.stopping:
		return nil, &capnprpc.Error{Kind: capnprpc.KindState, Message: vm.ErrStopped.Error()}
	case d.vm == nil:
		return nil, &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.EAGAIN, Message: "the VM boots"}
	}
	return d.vm, nil
}

// awake is running for requests that the guest has to answer at once: a paused VM is an error.
func (d *daemon) awake() (VM, error) {
	v, err := d.running()
	if err == nil && v.Paused() {
		return nil, &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.EAGAIN, Message: "the VM is paused: continue it with agentvm resume " + d.name}
	}
	return v, err
}

// VM implements daemonrpc.Handler.
func (h handler) VM(answering bool) (daemonrpc.VM, error) {
	if answering {
		return h.d.awake()
	}
	return h.d.running()
}

// Pause stops the VM until Resume.
func (h handler) Pause(ctx context.Context) error {
	v, err := h.d.running()
	if err != nil {
		return err
	}
	h.d.logger.Info("the VM is paused")
	err = v.Pause(ctx)
	if err == nil {
		h.d.event(Event{Kind: EventPaused})
	}
	return err
}

// Resume continues it.
func (h handler) Resume(ctx context.Context) error {
	v, err := h.d.running()
	if err != nil {
		return err
	}
	h.d.logger.Info("the VM is resumed")
	err = v.Resume(ctx)
	if err == nil {
		h.d.event(Event{Kind: EventResumed})
	}
	return err
}

// Snapshot writes the VM into a new file.
func (h handler) Snapshot(ctx context.Context, o daemonrpc.SnapshotRequest) (meta snapshot.Meta, err error) {
	v, err := h.d.running()
	if err != nil {
		return meta, err
	}
	if !filepath.IsAbs(o.Path) {
		return meta, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: fmt.Sprintf("snapshot %.200q: the path must be absolute", o.Path)}
	}
	began := time.Now()
	started, err := json.Marshal(h.d.settings().Started())
	if err != nil {
		return meta, err
	}
	meta, err = v.Snapshot(ctx, o.Path, vm.SnapshotOptions{Comment: o.Comment, Base: o.Layered, Brief: o.Layered, Started: started})
	h.d.logger.Info("snapshot", "path", o.Path, "took", time.Since(began), "error", err)
	if errors.Is(err, fs.ErrPermission) && len(h.d.inForce()) > 0 {
		err = fmt.Errorf("%w (the VM's process is confined: it writes snapshots below %s)", err, h.d.imageStore())
	}
	return meta, err
}

// StartJob starts a program; while the VM boots, or its guest restarts itself, it waits.
func (h handler) StartJob(ctx context.Context, r guestrpc.Request, o daemonrpc.JobOptions) (daemonrpc.JobHandler, error) {
	var gone VM
	for {
		v, err := h.d.await(ctx, gone)
		if err != nil {
			return nil, err
		}
		j, err := h.d.jobs.start(ctx, v, r, o, forClient)
		if err == nil {
			return &view{Job: j, jobs: h.d.jobs, owner: true}, nil
		}
		if !leaving(err) {
			return nil, err
		}
		gone = v
	}
}

// Job finds a job.
func (h handler) Job(id string) (daemonrpc.JobHandler, error) {
	j, err := h.d.jobs.Find(id)
	if err != nil {
		return nil, err
	}
	return &view{Job: j, jobs: h.d.jobs}, nil
}

// Jobs lists them.
func (h handler) Jobs() []job.Info { return h.d.jobs.list() }

// Stop stops the VM and with it the daemon.
func (h handler) Stop(ctx context.Context, grace time.Duration) error {
	h.d.order("a client's order", grace)
	select {
	case <-h.d.halted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Confinement is what confines this process.
func (h handler) Confinement() []confine.Layer { return h.d.inForce() }

// Flows lists the flows that are open.
func (h handler) Flows(ctx context.Context) ([]vm.Flow, error) {
	v, err := h.d.running()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime) // the guest may hang
	defer cancel()
	return v.Flows(ctx)
}

// Denials returns the last denials, newest last.
func (h handler) Denials(ctx context.Context) ([]egress.Event, error) {
	v, err := h.d.running()
	if err != nil {
		return nil, err
	}
	v.SettleDenials(ctx)
	return v.Denials(ctx)
}
