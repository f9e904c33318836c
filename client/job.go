package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"agentvm/internal/daemon"
	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/vm"
)

// StartJob is vm.VM.StartJob. The daemon keeps the job's output, also after the VM's end, and chooses where, and what the job is called.
// Command.Stdin is passed on for as long as this connection lives.
func (v *VM) StartJob(ctx context.Context, c vm.Command, o vm.JobOptions) (vm.Job, error) {
	switch {
	case c.Stdout != nil || c.Stderr != nil:
		return nil, errors.New("start a job: its output goes to its journal: the command has no Stdout or Stderr")
	case o.ID != "" || o.Dir != "":
		return nil, fmt.Errorf("start a job: the VM's daemon chooses its ID and Dir: %w", fs.ErrInvalid)
	}
	j, err := v.startJob(ctx, c, daemonrpc.JobOptions{
		Durable: true, Input: !o.NoInput, Label: o.Label, MaxOutput: uint64(max(o.Head+o.Tail, 0)),
	})
	if err != nil {
		return nil, err
	}
	if c.Stdin != nil {
		go feed(v.ctx, j, c.Stdin) // the reader ends it, or Close does
	}
	return j, nil
}

// startJob starts a command. Of c, the streams and MaxOutput do not count. A job that is not durable is killed when it is closed, or the
// connection ends.
func (v *VM) startJob(ctx context.Context, c vm.Command, o daemonrpc.JobOptions) (*job, error) {
	args := c.Args
	if !o.Adopt {
		var err error
		if args, err = c.Arguments(); err != nil {
			return nil, err
		}
	}
	params := guestrpc.ExecParams{Args: args, Env: c.Env, Dir: c.Dir, User: c.User, Key: c.Key}
	if c.Terminal != nil {
		params.Terminal = &guestrpc.Size{Columns: c.Terminal.Columns, Rows: c.Terminal.Rows}
	}
	o.Timeout = c.Timeout
	j, err := v.daemon.StartJob(ctx, params, nil, o)
	if err != nil {
		return nil, v.explain(err)
	}
	return &job{j, v.explain}, nil
}

// Jobs is vm.VM.Jobs.
func (v *VM) Jobs(ctx context.Context) ([]vm.JobInfo, error) {
	list, err := v.daemon.Jobs(ctx)
	return list, v.explain(err)
}

// Job is vm.VM.Job.
func (v *VM) Job(ctx context.Context, id string) (vm.Job, error) {
	j, err := v.daemon.Job(ctx, id)
	if err != nil {
		return nil, v.explain(err)
	}
	return &job{j, v.explain}, nil
}

// Jobs describes the jobs of a VM. Of one that does not run these are the jobs whose output is kept.
func (s *Store) Jobs(ctx context.Context, name string) (list []vm.JobInfo, err error) {
	v, past, err := s.openJobs(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case past != nil:
		defer past.Close()
		return past.List(), nil
	}
	defer v.Close()
	return v.Jobs(ctx)
}

// WithJob calls do with a job of a VM, also of one that does not run, whose jobs can be read and not changed. When there is no such job
// errors.Is(err, fs.ErrNotExist) holds.
func (s *Store) WithJob(ctx context.Context, name, id string, do func(vm.Job) error) error {
	v, past, err := s.openJobs(ctx, name)
	switch {
	case err != nil:
		return err
	case past != nil:
		defer past.Close()
		j, err := past.Job(id)
		if err != nil {
			return err
		}
		return do(&job{j, func(err error) error { return err }})
	}
	defer v.Close()
	j, err := v.Job(ctx, id)
	if err != nil {
		return err
	}
	defer j.Close()
	return do(j)
}

// SidecarJob returns the ID of the last run of a VM's sidecar. When it has not run, errors.Is(err, fs.ErrNotExist) holds.
func (s *Store) SidecarJob(ctx context.Context, name, sidecar string) (id string, err error) {
	config, err := s.Config(name)
	if err != nil {
		return "", err
	}
	var names []string
	for _, one := range config.Sidecars {
		names = append(names, one.Name)
	}
	if !slices.Contains(names, sidecar) {
		return "", fmt.Errorf("%s has no sidecar %.80q, but %q: %w", name, sidecar, names, fs.ErrNotExist)
	}
	list, err := s.Jobs(ctx, name)
	if err != nil {
		return "", err
	}
	for _, j := range slices.Backward(list) {
		if j.Label == daemon.SidecarLabel(sidecar) {
			return j.ID, nil
		}
	}
	return "", fmt.Errorf("the sidecar %s of %s has not run yet: %w", sidecar, name, fs.ErrNotExist)
}

// openJobs returns a connection to a VM, or what is left of the jobs of one that does not run.
func (s *Store) openJobs(ctx context.Context, name string) (*VM, *daemon.PastJobs, error) {
	v, err := s.Open(ctx, name)
	if !errors.Is(err, ErrNotRunning) {
		return v, nil, err
	}
	past, err := s.vms.PastJobs(name)
	return nil, past, err
}

// job is a job that a daemon keeps.
type job struct {
	remote  daemon.Job
	explain func(error) error
}

// ID implements vm.Job.
func (j *job) ID() string { return j.remote.ID() }

// Info implements vm.Job.
func (j *job) Info(ctx context.Context) (vm.JobInfo, error) {
	i, err := j.remote.Info(ctx)
	return i, j.explain(err)
}

// outputWait is how long one call to the daemon waits for output, and outputSize how many bytes its answer has by default.
const (
	outputWait = 30 * time.Second
	outputSize = 64 << 10
)

// Output implements vm.Job.
func (j *job) Output(ctx context.Context, from vm.Cursor, limit int) (vm.JobOutput, error) {
	if limit <= 0 {
		limit = outputSize
	}
	for {
		o, err := j.remote.Output(ctx, from, limit, outputWait)
		if err != nil {
			if i, infoErr := j.remote.Info(ctx); infoErr == nil && !i.Ended.IsZero() && i.Error != "" { // how it has ended is not known
				return vm.JobOutput{Next: from, End: &vm.JobEnd{Ended: i.Ended, Error: i.Error}, Err: j.explain(err)}, nil
			}
			return vm.JobOutput{}, j.explain(err)
		}
		if len(o.Chunks) == 0 && o.End == nil && o.Next == from && ctx.Err() == nil {
			continue // nothing was written meanwhile
		}
		if o.End != nil && o.End.Ended.IsZero() {
			if i, err := j.remote.Info(ctx); err == nil {
				o.End.Ended = i.Ended
			}
		}
		return o, ctx.Err()
	}
}

// Wait implements vm.Job.
func (j *job) Wait(ctx context.Context) (vm.JobEnd, error) {
	i, err := j.Info(ctx)
	if err != nil {
		return vm.JobEnd{}, err
	}
	for next := vm.Cursor(i.OutputBytes); ; {
		o, err := j.Output(ctx, next, 0)
		if err != nil {
			return vm.JobEnd{}, err
		}
		if o.End != nil {
			return *o.End, o.Err
		}
		next = o.Next
	}
}

// Input implements vm.Job.
func (j *job) Input(ctx context.Context, data []byte, end bool) error {
	for len(data) > daemonrpc.MaxInput {
		if err := j.remote.Input(ctx, data[:daemonrpc.MaxInput], false); err != nil {
			return j.explain(err)
		}
		data = data[daemonrpc.MaxInput:]
	}
	return j.explain(j.remote.Input(ctx, data, end))
}

// Stdin implements vm.Job.
func (j *job) Stdin() io.WriteCloser { return stdin{j} }

type stdin struct{ j vm.Job }

func (s stdin) Write(p []byte) (int, error) {
	if err := s.j.Input(context.Background(), p, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (s stdin) Close() error {
	if err := s.j.Input(context.Background(), nil, true); !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
}

// Signal implements vm.Job.
func (j *job) Signal(ctx context.Context, number int) error {
	return j.explain(j.remote.Signal(ctx, number))
}

// Kill implements vm.Job.
func (j *job) Kill(ctx context.Context) error { return j.explain(j.remote.Kill(ctx)) }

// Resize implements vm.Job.
func (j *job) Resize(ctx context.Context, size vm.Size) error {
	return j.explain(j.remote.Resize(ctx, guestrpc.Size{Columns: size.Columns, Rows: size.Rows}))
}

// Remove implements vm.Job.
func (j *job) Remove(ctx context.Context) error { return j.explain(j.remote.Remove(ctx)) }

// Close implements vm.Job.
func (j *job) Close() error {
	j.remote.Release()
	return nil
}

// inputSize is how many bytes of a reader are passed on at a time.
const inputSize = 64 << 10

// feed passes input on until it ends, the program reads no more, or ctx ends. What a Read returns after that is lost.
func feed(ctx context.Context, j vm.Job, r io.Reader) {
	b := make([]byte, inputSize)
	for {
		n, err := r.Read(b)
		if ctx.Err() != nil {
			return
		}
		if sendErr := j.Input(ctx, b[:n], err != nil); sendErr != nil || err != nil {
			return // the program's end shows in its output
		}
	}
}
