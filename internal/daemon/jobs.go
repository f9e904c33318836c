package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/storage/journal"
	"agentvm/internal/work/job"
	"agentvm/vm"
)

const (
	// maxRunning bounds the jobs of a VM that run at a time, maxEnded the durable ones that have ended and are kept.
	maxRunning = 512
	maxEnded   = 100
)

// How many bytes of a durable job's output are kept. Of other jobs only a window or two is kept, for clients that attach later.
const (
	defaultOutput = 16 << 20
	minOutput     = 64 << 10
	maxOutput     = 64 << 30
)

var errUnseen = errors.New("the daemon was killed while the job ran")

// jobs are the jobs of one VM. Those of clients end with the client, unless they are durable: these have files below dir.
type jobs struct {
	*job.Table
	dir string
}

func newJobs(dir string, logger *slog.Logger, now func() time.Time, observe func(job.Info)) *jobs {
	return &jobs{job.NewTable(job.Config{Logger: logger, Now: now, MaxRunning: maxRunning, MaxEnded: maxEnded, Observe: observe}), dir}
}

// purpose says for whom a job runs.
type purpose bool

const (
	forClient purpose = false // a client
	forVM     purpose = true  // the VM itself: a sidecar
)

// start runs a program in v.
func (m *jobs) start(ctx context.Context, v VM, r guestrpc.Request, o daemonrpc.JobOptions, whose purpose) (*job.Job, error) {
	options := job.Options{
		ID: job.NewID(), Label: o.Label, Args: r.Args, Terminal: r.Terminal != nil, Durable: o.Durable,
		Keep: journal.Config{Head: job.Window, Tail: 2 * job.Window}, Input: o.Input, Background: whose == forVM,
	}
	if o.Durable {
		options.Dir = filepath.Join(m.dir, options.ID)
		keep := int64(min(max(cmp.Or(o.MaxOutput, defaultOutput), minOutput), maxOutput))
		options.Keep = journal.Config{Head: keep / 2, Tail: keep / 2}
	}
	if o.Input {
		options.First = r.Input
	}
	key := r.Key
	if whose == forVM {
		key = options.ID
	}
	return m.Start(options, func(s job.Streams) (job.Process, error) {
		if !o.Input && !o.Adopt && len(r.Input) > 0 {
			s.Stdin = bytes.NewReader(r.Input)
		}
		c := vm.Command{
			Args: r.Args, Env: r.Env, Dir: r.Dir, User: r.User, Timeout: o.Timeout, Terminal: (*vm.Size)(r.Terminal),
			Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Key: key,
		}
		if o.Adopt {
			p, err := v.Adopt(ctx, o.Received, c)
			return wrap(p), err
		}
		p, err := v.Start(ctx, c)
		return wrap(p), err
	})
}

func wrap(p vm.Process) job.Process {
	return job.Wrap(p, func(r *vm.Result) job.End {
		return job.End{Code: r.ExitCode, Signal: r.Signal, TimedOut: r.TimedOut}
	})
}

// adopt continues with a job of the VM itself that ran when v was saved. One that has ended meanwhile is only returned.
func (m *jobs) adopt(ctx context.Context, v VM, id string) (*job.Job, error) {
	return m.Continue(id, bool(forVM), func(written journal.Cursor, s job.Streams) (job.Process, error) {
		p, err := v.Adopt(ctx, uint64(written), vm.Command{Key: id, Stdout: s.Stdout, Stderr: s.Stderr})
		return wrap(p), err
	})
}

// list describes all, oldest first.
func (m *jobs) list() (list []job.Info) {
	for _, j := range m.List() {
		list = append(list, j.Info())
	}
	return list
}

// view is one client's view of a job. It implements daemonrpc.JobHandler.
type view struct {
	*job.Job
	jobs  *jobs
	owner bool // started it
}

// Output also notes how far the owner has read. A place that the output has not reached yet is waited for.
func (v *view) Output(ctx context.Context, from vm.Cursor, limit int, wait time.Duration) (vm.JobOutput, error) {
	if v.owner {
		v.Consume(uint64(from))
	}
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	o, err := v.Job.Output(limited, from, limit)
	if errors.Is(err, journal.ErrCursor) {
		if err = v.Await(limited, from); err == nil {
			o, err = v.Job.Output(limited, from, limit)
		}
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return vm.JobOutput{}, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return vm.JobOutput{Next: from}, nil
	case errors.Is(err, journal.ErrCursor): // the job has ended before that place
		end, err := v.Wait(ctx)
		o = vm.JobOutput{Next: from, End: &end, Err: err}
	default:
		return vm.JobOutput{}, err
	}
	if o.Err != nil {
		if len(o.Chunks) == 0 {
			return vm.JobOutput{}, &capnprpc.Error{Kind: capnprpc.KindState, Message: o.End.Error}
		}
		o.End, o.Err = nil, nil // the next call returns the error
	}
	return o, nil
}

func (v *view) Resize(ctx context.Context, size guestrpc.Size) error {
	return v.Job.Resize(ctx, size.Columns, size.Rows)
}

// Release ends a job that was started for this client only.
func (v *view) Release() {
	if v.owner && !v.Info().Durable {
		v.jobs.KillAndRemove(v.Job)
	}
}

// Job is a job as a client sees it: a *daemonrpc.JobClient of a running VM, or one of PastJobs.
type Job interface {
	ID() string
	Info(ctx context.Context) (job.Info, error)
	Output(ctx context.Context, from vm.Cursor, limit int, wait time.Duration) (vm.JobOutput, error)
	Input(ctx context.Context, data []byte, end bool) error
	Signal(ctx context.Context, number int) error
	Kill(ctx context.Context) error
	Resize(ctx context.Context, size guestrpc.Size) error
	Remove(ctx context.Context) error
	Release()
}

var (
	_ Job = (*daemonrpc.JobClient)(nil)
	_ Job = pastJob{}
)

// PastJobs are the durable jobs of a VM that does not run, read from its directory. Nothing there is changed, so that several
// processes can read at the same time, and continue to read when the VM is started meanwhile.
type PastJobs struct {
	name string
	jobs *jobs
}

// PastJobs reads them. It returns ErrRunning when the VM has a daemon, which lists them itself.
func (s Store) PastJobs(name string) (*PastJobs, error) {
	p, err := s.existing(name)
	if err != nil {
		return nil, err
	}
	alive, unlock, err := probe(p)
	if err != nil {
		return nil, err
	}
	if alive {
		return nil, fmt.Errorf("%s: %w", name, ErrRunning)
	}
	defer func() { _ = unlock() }() // no daemon begins before all journals are open
	past := &PastJobs{name, newJobs(p.jobs(), slog.New(slog.NewTextHandler(io.Discard, nil)), time.Now, nil)}
	past.jobs.Peek(p.jobs(), errUnseen)
	return past, nil
}

// List describes them, oldest first.
func (p *PastJobs) List() []job.Info { return p.jobs.list() }

// Job finds one. When there is none, errors.Is(err, fs.ErrNotExist) holds.
func (p *PastJobs) Job(id string) (Job, error) {
	j, err := p.jobs.Find(id)
	if err != nil {
		return nil, err
	}
	return pastJob{&view{Job: j}, p.name}, nil
}

// Close frees what is open.
func (p *PastJobs) Close() { p.jobs.Close() }

// pastJob is a job whose end may not be recorded.
type pastJob struct {
	*view
	vm string
}

func (j pastJob) Info(context.Context) (job.Info, error) { return j.view.Info(), nil }

// Remove fails: only a daemon removes jobs, because no other process may have their journals open for writing.
func (j pastJob) Remove(context.Context) error {
	return fmt.Errorf("%s: %w: start it to remove a job of it, or remove all of it with agentvm rm", j.vm, ErrNotRunning)
}
