package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"agentvm/rpc"
	"agentvm/vm"
)

// handler is what clients call. It implements rpc.DaemonHandler.
type handler struct{ d *daemon }

var _ rpc.DaemonHandler = handler{}

// Info describes the daemon.
func (h handler) Info() rpc.DaemonInfo {
	d := h.d
	i := rpc.DaemonInfo{
		Name: d.name, Pid: d.state.Pid, Version: d.store.Version, Started: d.started, Mounts: d.config.Mounts,
		Image: cmp.Or(d.config.Image, "alpine"), Memory: cmp.Or(d.config.Memory, vm.DefaultMemory),
		Ports: slices.Clone(d.config.Network.Forwards),
	}
	for key, value := range d.config.Labels {
		i.Labels = append(i.Labels, key+"="+value)
	}
	slices.Sort(i.Labels)
	i.Config, _ = json.Marshal(d.config)
	i.Clients, _ = d.clients.count()
	i.Jobs = d.jobs.count()
	d.describe(&i)
	return i
}

// describe fills in what changes over the daemon's life.
func (d *daemon) describe(i *rpc.DaemonInfo) {
	d.mu.Lock()
	v, failure, stopping := d.vm, d.failure, d.stopping
	d.mu.Unlock()
	switch {
	case failure != nil:
		i.State, i.Error = rpc.DaemonFailed, failure.Error()
	case stopping:
		i.State = rpc.DaemonStopping
	case v != nil && v.Paused():
		i.State = rpc.DaemonPaused
	case v != nil:
		i.State = rpc.DaemonRunning
	}
	if v != nil {
		v.Describe(i)
	}
}

// AwaitReady waits for the boot and tells of it.
func (h handler) AwaitReady(ctx context.Context, progress func(slog.Level, string)) error {
	past, next, cancel := h.d.subscribe()
	defer cancel()
	for _, line := range past {
		progress(line.level, line.text)
	}
	for {
		select {
		case line := <-next:
			progress(line.level, line.text)
		case <-h.d.booted:
			_, err := h.d.running()
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// running is the VM; an error when there is none yet, or none any more.
func (d *daemon) running() (VM, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.failure != nil:
		return nil, &rpc.Error{Kind: rpc.KindState, Message: d.failure.Error()}
	case d.stopping:
		return nil, &rpc.Error{Kind: rpc.KindState, Message: vm.ErrStopped.Error()}
	case d.vm == nil:
		return nil, &rpc.Error{Kind: rpc.KindState, Errno: errnoAgain, Message: "the VM boots"}
	}
	return d.vm, nil
}

// awake is running for what only the guest can answer and nobody is to wait for.
func (d *daemon) awake() (VM, error) {
	v, err := d.running()
	if err == nil && v.Paused() {
		return nil, &rpc.Error{Kind: rpc.KindState, Errno: errnoAgain, Message: "the VM is paused: let it go on with agentvm resume " + d.name}
	}
	return v, err
}

// Pause has the VM stand still.
func (h handler) Pause(ctx context.Context) error {
	v, err := h.d.running()
	if err != nil {
		return err
	}
	h.d.logger.Info("the VM is paused")
	return v.Pause(ctx)
}

// Resume has it go on.
func (h handler) Resume(ctx context.Context) error {
	v, err := h.d.running()
	if err != nil {
		return err
	}
	h.d.logger.Info("the VM goes on")
	return v.Resume(ctx)
}

// Snapshot writes the VM into a new file.
func (h handler) Snapshot(ctx context.Context, o rpc.SnapshotOrder) ([]byte, error) {
	v, err := h.d.running()
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(o.Path) {
		return nil, &rpc.Error{Kind: rpc.KindInvalid, Errno: errnoInvalid, Message: fmt.Sprintf("snapshot %.200q: the path must be absolute", o.Path)}
	}
	if _, err := os.Lstat(o.Path); err == nil {
		return nil, &fs.PathError{Op: "create", Path: o.Path, Err: syscall.EEXIST}
	}
	began := time.Now()
	started, err := json.Marshal(h.d.config.Started())
	if err != nil {
		return nil, err
	}
	meta, err := v.Snapshot(ctx, o.Path, vm.SnapshotOptions{Comment: o.Comment, Base: o.Layered, Started: started})
	h.d.logger.Info("snapshot", "path", o.Path, "took", time.Since(began), "error", err)
	if err != nil {
		return nil, err
	}
	return json.Marshal(meta)
}

// StartJob starts a program; while the VM boots, it waits.
func (h handler) StartJob(ctx context.Context, r rpc.Request, o rpc.JobOptions) (rpc.JobHandler, error) {
	select {
	case <-h.d.booted:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	v, err := h.d.running()
	if err != nil {
		return nil, err
	}
	j, err := h.d.jobs.start(ctx, v, r, o, forClient)
	if err != nil {
		return nil, err
	}
	return &view{job: j, owner: true}, nil
}

// Job finds a job.
func (h handler) Job(id string) (rpc.JobHandler, error) {
	j, err := h.d.jobs.find(id)
	if err != nil {
		return nil, err
	}
	return &view{job: j}, nil
}

// Jobs lists them.
func (h handler) Jobs() []rpc.JobInfo { return h.d.jobs.list() }

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

// Stats reads the guest's counters.
func (h handler) Stats(ctx context.Context) (rpc.Stats, error) {
	v, err := h.d.awake()
	if err != nil {
		return rpc.Stats{}, err
	}
	return v.Stats(ctx)
}

// Ask puts a question to the VM, or an order to the daemon.
func (h handler) Ask(ctx context.Context, name string, question []byte) ([]byte, error) {
	if name == "preview" {
		return h.openPreviews(ctx)
	}
	v, err := h.d.running()
	if err != nil {
		return nil, err
	}
	return v.Ask(ctx, name, question)
}

// Files is the guest's bulk connection.
func (h handler) Files(ctx context.Context) (*rpc.FilesClient, error) {
	v, err := h.d.awake()
	if err != nil {
		return nil, err
	}
	return v.Files(ctx)
}
