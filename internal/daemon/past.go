package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"agentvm/internal/daemonrpc"
	"agentvm/internal/guestrpc"
)

// Job is a job as a client sees it: a *daemonrpc.JobClient of a running VM, or one of PastJobs.
type Job interface {
	ID() string
	Info(ctx context.Context) (daemonrpc.JobInfo, error)
	Output(ctx context.Context, from uint64, limit int, wait time.Duration) (daemonrpc.JobOutput, error)
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
	past := &PastJobs{name, newJobs(p.jobs(), slog.New(slog.NewTextHandler(io.Discard, nil)), time.Now)}
	past.jobs.peek()
	return past, nil
}

// List describes them, oldest first.
func (p *PastJobs) List() []daemonrpc.JobInfo { return p.jobs.list() }

// Job finds one. When there is none, errors.Is(err, fs.ErrNotExist) holds.
func (p *PastJobs) Job(id string) (Job, error) {
	j, err := p.jobs.find(id)
	if err != nil {
		return nil, err
	}
	return pastJob{&view{job: j}, p.name}, nil
}

// Close frees what is open.
func (p *PastJobs) Close() { p.jobs.close() }

// pastJob is a job whose end may not be recorded.
type pastJob struct {
	*view
	vm string
}

func (j pastJob) ID() string { return j.record.ID }

func (j pastJob) Info(context.Context) (daemonrpc.JobInfo, error) { return j.info(), nil }

// Remove fails: only a daemon removes jobs, because no other process may have their journals open for writing.
func (j pastJob) Remove(context.Context) error {
	return fmt.Errorf("%s: %w: start it to remove a job of it, or remove all of it with agentvm rm", j.vm, ErrNotRunning)
}

// Output never waits, because no more output follows.
func (j pastJob) Output(ctx context.Context, from uint64, limit int, _ time.Duration) (daemonrpc.JobOutput, error) {
	o, err := j.output(ctx, from, limit, 0)
	if err == nil && o.Exit == nil && len(o.Chunks) == 0 { // a journal without an end
		return j.end(o)
	}
	return o, err
}

func (j pastJob) Input(context.Context, []byte, bool) error { return errInputEnded }

// peek finds the jobs of earlier daemons without changing anything.
func (m *jobs) peek() {
	for _, dir := range m.directories() {
		j, err := m.open(dir, false)
		if err != nil {
			continue // the next daemon logs it and deletes it
		}
		if err := j.readEnd(); err != nil {
			j.result = &result{Ended: lastWrite(dir, m.now()), Error: errUnseen.Error()}
			close(j.ended)
		}
		m.byID[j.record.ID] = j
	}
}

var errUnseen = errors.New("the daemon was killed while the job ran")
