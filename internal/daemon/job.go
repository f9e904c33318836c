package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"sync"
	"time"

	"agentvm/internal/capnprpc"
	"agentvm/internal/daemonrpc"
	"agentvm/internal/errno"
	"agentvm/internal/guestrpc"
	"agentvm/internal/journal"
	"agentvm/vm"
)

// window is how many bytes of output a job that is not durable may be ahead of its client.
const window = 1 << 20

// How many bytes of a durable job's output are kept. Of other jobs only a window or two is kept, for clients that attach later.
const (
	defaultOutput = 16 << 20
	minOutput     = 64 << 10
	maxOutput     = 64 << 30
)

// job is a program that a client has started, or that ran under an earlier daemon.
//
//	client ── input ──► program ── write ──► journal ── output ──► clients
//	                                 ▲ waits when the owner is a window behind, unless the job is durable
type job struct {
	manager *jobs
	dir     string // of a durable job; otherwise empty
	log     *journal.Log
	input   *input     // nil: none
	process vm.Process // nil until started, and for jobs of earlier daemons
	ended   chan struct{}

	mu       sync.Mutex
	record   record
	result   *result       // set before ended is closed
	consumed uint64        // by the owner, in bytes of output
	written  uint64        // bytes of output
	moved    chan struct{} // closed and replaced when consumed has grown or the owner has gone
	orphan   bool          // the owner has gone
}

// record is job.json: what is known of a job at its start.
type record struct {
	ID       string    `json:"id"`
	Label    string    `json:"label,omitempty"`
	Args     []string  `json:"args"`
	Started  time.Time `json:"started"`
	Durable  bool      `json:"durable"`
	Terminal bool      `json:"terminal,omitempty"`
}

// result says how a job has ended. It is the last record of the job's journal.
type result struct {
	Ended    time.Time `json:"ended,omitzero"`
	Code     int       `json:"code"`
	Signal   int       `json:"signal,omitempty"`
	TimedOut bool      `json:"timedOut,omitempty"`
	Error    string    `json:"error,omitempty"` // why there is no code
}

func (r *result) exit() *guestrpc.ExitStatus {
	if r == nil || r.Error != "" {
		return nil
	}
	return &guestrpc.ExitStatus{Code: r.Code, Signal: r.Signal}
}

// info describes the job.
func (j *job) info() daemonrpc.JobInfo {
	total, _ := j.log.Size()
	j.mu.Lock()
	defer j.mu.Unlock()
	i := daemonrpc.JobInfo{
		ID: j.record.ID, Label: j.record.Label, Args: j.record.Args, Started: j.record.Started,
		Durable: j.record.Durable, Terminal: j.record.Terminal, OutputBytes: uint64(total), Exit: j.result.exit(),
	}
	if j.result != nil {
		i.Ended, i.TimedOut, i.Error = j.result.Ended, j.result.TimedOut, j.result.Error
	}
	return i
}

// hasEnded reports whether the job has ended.
func (j *job) hasEnded() bool {
	select {
	case <-j.ended:
		return true
	default:
		return false
	}
}

// stream takes the program's output of one kind.
type stream struct {
	j    *job
	kind journal.Stream
}

var _ io.Writer = stream{}

func (s stream) Write(p []byte) (int, error) {
	s.j.reserve(uint64(len(p)))
	if err := s.j.log.Append(s.kind, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// reserve waits until the owner has read enough for n more bytes.
func (j *job) reserve(n uint64) {
	for {
		j.mu.Lock()
		if j.record.Durable || j.orphan || j.written-min(j.consumed, j.written) < window {
			j.written += n
			j.mu.Unlock()
			return
		}
		wait := j.moved
		j.mu.Unlock()
		select {
		case <-wait:
		case <-j.manager.ending: // the VM's end waits for this write
			j.abandon()
		}
	}
}

// consume notes how far the owner has read. abandon notes that it reads no more.
func (j *job) consume(to uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if to > j.consumed {
		j.consumed = to
		j.wakeWriters()
	}
}

func (j *job) abandon() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.orphan = true
	j.wakeWriters()
}

// wakeWriters wakes reserve. The caller holds mu.
func (j *job) wakeWriters() {
	close(j.moved)
	j.moved = make(chan struct{})
}

// follow waits for the program's end and records it.
func (j *job) follow() {
	r, err := j.process.Wait(context.Background())
	j.input.close()
	end := result{Ended: j.manager.now()}
	switch {
	case r != nil && (err == nil || r.ExitCode != 0 || r.Signal != 0):
		end.Code, end.Signal, end.TimedOut = r.ExitCode, r.Signal, r.TimedOut
	case err != nil:
		end.Error = err.Error()
	}
	j.finish(end)
}

// maxError bounds an error's text in a result, in bytes.
const maxError = 1 << 10

func (j *job) finish(end result) {
	end.Error = end.Error[:min(len(end.Error), maxError)]
	b, err := json.Marshal(end)
	if err == nil {
		err = j.log.Finish(b)
	}
	if err != nil {
		j.manager.logger.Warn("the end of a job is not recorded", "job", j.record.ID, "error", err)
	}
	j.mu.Lock()
	j.result = &end
	j.mu.Unlock()
	close(j.ended)
	if err != nil {
		_ = j.log.Close() // otherwise readers would wait for ever
	}
}

// output reads the journal.
func (j *job) output(ctx context.Context, from uint64, limit int, wait time.Duration) (daemonrpc.JobOutput, error) {
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	b, err := j.log.Read(limited, journal.Cursor(from), limit)
	if errors.Is(err, journal.ErrCursor) && !j.hasEnded() {
		if err = j.awaitOutput(limited, journal.Cursor(from)); err == nil {
			b, err = j.log.Read(limited, journal.Cursor(from), limit)
		}
	}
	if b.End || errors.Is(err, journal.ErrClosed) {
		select {
		case <-j.ended: // finish closes it a moment after the journal's end: a client that sees the end can rely on the result
		case <-ctx.Done():
			return daemonrpc.JobOutput{}, ctx.Err()
		}
	}
	switch {
	case errors.Is(err, journal.ErrClosed):
		return j.end(daemonrpc.JobOutput{Next: from})
	case err == nil && b.End:
		return j.end(outputOf(b))
	case err == nil:
		return outputOf(b), nil
	case ctx.Err() != nil:
		return daemonrpc.JobOutput{}, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return daemonrpc.JobOutput{Next: from}, nil
	case errors.Is(err, journal.ErrCursor): // the cursor is beyond the end
		return j.end(daemonrpc.JobOutput{Next: from})
	}
	return daemonrpc.JobOutput{}, err
}

// awaitOutput waits until the output reaches the cursor from, or the job has ended.
func (j *job) awaitOutput(ctx context.Context, from journal.Cursor) error {
	for {
		end, _ := j.log.Size()
		if journal.Cursor(end) >= from {
			return nil
		}
		b, err := j.log.Read(ctx, journal.Cursor(end), 1)
		if err != nil {
			return err
		}
		if b.End {
			select {
			case <-j.ended:
				return journal.ErrCursor
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func outputOf(b journal.Batch) daemonrpc.JobOutput {
	o := daemonrpc.JobOutput{Next: uint64(b.Next), Lost: b.Lost}
	for _, c := range b.Chunks {
		o.Chunks = append(o.Chunks, daemonrpc.JobChunk{Stream: daemonrpc.JobStream(c.Stream), Data: c.Data})
	}
	return o
}

// end adds how the job has ended. When that is an error, chunks are returned first, and the next call returns the error.
func (j *job) end(o daemonrpc.JobOutput) (daemonrpc.JobOutput, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	o.TimedOut, o.Exit = j.result.TimedOut, j.result.exit()
	if o.Exit == nil && len(o.Chunks) == 0 {
		return o, &capnprpc.Error{Kind: capnprpc.KindState, Message: j.result.Error}
	}
	return o, nil
}

// kill ends the program.
func (j *job) kill(ctx context.Context) error {
	if j.process == nil || j.hasEnded() {
		return nil
	}
	j.abandon() // a write that waits for a client must not keep it alive
	return j.process.Kill(ctx)
}

// view is one client's view of a job. It implements daemonrpc.JobHandler.
type view struct {
	*job
	owner bool // started it
}

func (v *view) Info() daemonrpc.JobInfo { return v.info() }

// Output also notes how far the owner has read.
func (v *view) Output(ctx context.Context, from uint64, limit int, wait time.Duration) (daemonrpc.JobOutput, error) {
	if v.owner {
		v.consume(from)
	}
	return v.output(ctx, from, limit, wait)
}

func (v *view) Input(ctx context.Context, data []byte, end bool) error {
	if v.input == nil {
		return errInputEnded
	}
	return v.input.write(ctx, data, end)
}

// errEnded is the error for a signal to a job that has ended.
var errEnded = &capnprpc.Error{Kind: capnprpc.KindSystem, Errno: errno.ESRCH, Message: "the job has ended"}

func (v *view) Signal(ctx context.Context, number int) error {
	if v.process == nil || v.hasEnded() {
		return errEnded
	}
	return v.process.Signal(ctx, number)
}

func (v *view) Kill(ctx context.Context) error { return v.kill(ctx) }

func (v *view) Resize(ctx context.Context, size guestrpc.Size) error {
	if v.process == nil || v.hasEnded() {
		return nil
	}
	return v.process.Resize(ctx, vm.Size(size))
}

func (v *view) Remove() error { return v.manager.remove(v.job) }

// Release ends a job that was started for this client only.
func (v *view) Release() {
	if v.owner && !v.info().Durable {
		v.manager.killAndRemove(v.job)
	}
}

func recordPath(dir string) string  { return filepath.Join(dir, "job.json") }
func journalPath(dir string) string { return filepath.Join(dir, "journal") }
