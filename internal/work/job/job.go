// Package job runs programs in a VM and keeps their output, so that any number of readers get it, even after the end of the program and
// of the process that ran the VM.
package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
	"agentvm/internal/storage/journal"
)

// Window is how many bytes of output a job that is not durable may be ahead of its owner.
const Window = 1 << 20

// Process is the program of a job.
type Process interface {
	// Wait returns Code, Signal and TimedOut of its End. It may return an error as well, or only an error when they are not known.
	Wait(ctx context.Context) (*End, error)
	Signal(ctx context.Context, signal int) error
	Kill(ctx context.Context) error
	Resize(ctx context.Context, columns, rows uint16) error
}

// lateTime is how long a command that could not be killed at its timeout may still take to end. Then its job ends with an error.
const lateTime = 10 * time.Second

// Wrap makes a Process of a vm.Process, which this package, below package vm, cannot name; end reads its result.
func Wrap[R any, S ~struct{ Columns, Rows uint16 }](p command[R, S], end func(*R) End) Process {
	return wrapped[R, S]{p, end}
}

type command[R, S any] interface {
	Wait(ctx context.Context) (*R, error)
	Done() <-chan struct{}
	Signal(ctx context.Context, signal int) error
	Kill(ctx context.Context) error
	Resize(ctx context.Context, size S) error
}

type wrapped[R any, S ~struct{ Columns, Rows uint16 }] struct {
	command[R, S]
	end func(*R) End
}

func (p wrapped[R, S]) Wait(ctx context.Context) (*End, error) {
	r, err := p.command.Wait(ctx)
	late := r == nil && ctx.Err() == nil // it could not be killed at its timeout
	if late {
		select {
		case <-p.Done():
		case <-time.After(lateTime): // a guest that does not answer never ends it
			return nil, err
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		}
		var e error
		r, e = p.command.Wait(ctx)
		err = errors.Join(err, e)
	}
	if r == nil {
		return nil, err
	}
	how := p.end(r)
	how.TimedOut = how.TimedOut || late
	return &how, err
}

func (p wrapped[R, S]) Resize(ctx context.Context, columns, rows uint16) error {
	return p.command.Resize(ctx, S{columns, rows})
}

// Job is a program that was started by a Table, or that has run before, under another process.
//
//	Input ──► program ── write ──► journal ──► Output(from), by any number of readers, at any time
//	                       ▲ waits when the owner is a window behind, unless the job is durable
//
// Its methods may be called from several goroutines.
type Job struct {
	table  *Table // nil after Open
	dir    string // empty in memory
	log    *journal.Log
	input  *input // nil: none
	ended  chan struct{}
	serial int // of the table, in the order of starts

	record record
	end    End // valid after ended is closed, as err is
	err    error

	mu       sync.Mutex
	consumed uint64        // by the owner, in bytes of output
	written  uint64        // bytes of output
	moved    chan struct{} // closed and replaced when consumed has grown or the owner has gone
	orphan   bool          // the owner has gone

	process    Process // nil until started, and for jobs that have run before
	background bool    // see Options.Background
}

// End says how a job has ended.
type End struct {
	Ended    time.Time `json:"ended,omitzero"`
	Code     int       `json:"code"` // 0 to 255; 128+Signal after a signal
	Signal   int       `json:"signal,omitempty"`
	TimedOut bool      `json:"timedOut,omitempty"`
	Error    string    `json:"error,omitempty"` // why there is no code
}

func (e *End) exit() *guestrpc.ExitStatus {
	if e.Error != "" {
		return nil
	}
	return &guestrpc.ExitStatus{Code: e.Code, Signal: e.Signal}
}

// Info describes a job.
type Info struct {
	ID          string
	Label       string
	Args        []string
	Started     time.Time
	Ended       time.Time            // zero while it runs
	Exit        *guestrpc.ExitStatus // nil while it runs, or when it is not known
	TimedOut    bool
	Durable     bool
	Terminal    bool
	OutputBytes uint64 // written so far
	Error       string // why there is no Exit although it has ended
}

// ID names the job within its VM.
func (j *Job) ID() string { return j.record.ID }

// Info describes the job.
func (j *Job) Info() Info {
	total, _ := j.log.Size()
	i := Info{
		ID: j.record.ID, Label: j.record.Label, Args: j.record.Args, Started: j.record.Started,
		Durable: j.record.Durable, Terminal: j.record.Terminal, OutputBytes: uint64(total),
	}
	if j.hasEnded() {
		i.Ended, i.Exit, i.TimedOut, i.Error = j.end.Ended, j.end.exit(), j.end.TimedOut, j.end.Error
	}
	return i
}

// Done is closed when the job has ended.
func (j *Job) Done() <-chan struct{} { return j.ended }

func (j *Job) hasEnded() bool {
	select {
	case <-j.ended:
		return true
	default:
		return false
	}
}

// Wait returns how the job has ended. The error says why that is not known, or is ctx's.
func (j *Job) Wait(ctx context.Context) (End, error) {
	select {
	case <-j.ended:
		return j.end, j.err
	case <-ctx.Done():
		return End{}, ctx.Err()
	}
}

// stream takes the program's output of one kind.
type stream struct {
	j    *Job
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
func (j *Job) reserve(n uint64) {
	for {
		j.mu.Lock()
		if j.record.Durable || j.orphan || j.written-min(j.consumed, j.written) < Window {
			j.written += n
			j.mu.Unlock()
			return
		}
		wait := j.moved
		j.mu.Unlock()
		select {
		case <-wait:
		case <-j.table.ending: // the VM's end waits for this write
			j.Abandon()
		}
	}
}

// Consume notes how far the owner of a job that is not durable has read.
func (j *Job) Consume(to uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if to > j.consumed {
		j.consumed = to
		j.wakeWriters()
	}
}

// Abandon notes that the owner reads no more: the program's writes wait for it no longer.
func (j *Job) Abandon() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.orphan = true
	j.wakeWriters()
}

// wakeWriters wakes reserve. The caller holds mu.
func (j *Job) wakeWriters() {
	close(j.moved)
	j.moved = make(chan struct{})
}

// run makes p the job's program.
func (j *Job) run(p Process, background bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.process, j.background = p, background
}

// program returns the job's program while it runs; nil when it has ended, or is not known yet.
func (j *Job) program() Process {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.hasEnded() {
		return nil
	}
	return j.process
}

func (j *Job) isBackground() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.background
}

// follow waits for the program's end and records it. It returns false when the program has not ended, but its VM, which was saved.
func (j *Job) follow() bool {
	how, err := j.program().Wait(context.Background())
	j.input.close()
	end := End{Ended: j.table.config.Now()}
	if how != nil && (err == nil || how.Code != 0 || how.Signal != 0) {
		end.Code, end.Signal, end.TimedOut, err = how.Code, how.Signal, how.TimedOut, nil
	}
	if err != nil && j.record.Durable && j.table.isSuspended() {
		return false
	}
	j.finish(end, err)
	return true
}

// Lose ends a job that Load has left open and that is not continued. why is its error.
func (j *Job) Lose(why error) { j.finish(End{Ended: j.table.config.Now()}, why) }

// Output is a part of what a job has written, and how it ended.
type Output struct {
	Chunks []journal.Chunk
	Next   journal.Cursor // where the next read continues
	Lost   uint64         // bytes between the requested place and the first chunk, which are no longer kept
	End    *End           // not nil: the job has ended so and nothing follows Next
	Err    error          // with End: why it is not known how
}

// Output returns output from a place on, at most limit bytes, or 64 KiB when limit is not positive. It waits for a byte, for the end or for
// ctx, whose error it returns. A place behind all output is journal.ErrCursor.
func (j *Job) Output(ctx context.Context, from journal.Cursor, limit int) (Output, error) {
	reading, ended := ctx, j.hasEnded()
	if ended { // a journal without an end, as a process leaves it that was killed, gets no more; what is there is read nevertheless
		stopped, stop := context.WithCancel(ctx)
		stop()
		reading = stopped
	}
	b, err := j.log.Read(reading, from, limit)
	o := Output{Chunks: b.Chunks, Next: b.Next, Lost: b.Lost}
	switch {
	case err == nil && !b.End:
		return o, nil
	case err == nil, errors.Is(err, journal.ErrClosed), ended && ctx.Err() == nil && errors.Is(err, context.Canceled):
	default:
		return o, err
	}
	<-j.ended // finish closes it a moment after the journal's end: a caller that sees the end can rely on End
	o.End, o.Err = &j.end, j.err
	return o, nil
}

// Await waits until the output reaches a place. It is an error when the job has ended before.
func (j *Job) Await(ctx context.Context, place journal.Cursor) error {
	for {
		written, _ := j.log.Size()
		if written >= place {
			return nil
		}
		o, err := j.Output(ctx, written, 1)
		if err != nil {
			return err
		}
		if o.End != nil {
			return journal.ErrCursor
		}
	}
}

// Size is how many bytes the program has written, and how many of them are kept.
func (j *Job) Size() (total journal.Cursor, kept int64) { return j.log.Size() }

// Input passes data on to the program's standard input, which ends after it when end is set. It waits while the program does not read.
// It does not keep data. When the program reads no more errors.Is(err, syscall.EPIPE) holds.
func (j *Job) Input(ctx context.Context, data []byte, end bool) error {
	if j.input == nil {
		return errInputEnded
	}
	return j.input.write(ctx, data, end)
}

// Stdin returns the program's standard input, for Input without a context. Close ends the input.
func (j *Job) Stdin() io.WriteCloser { return stdin{j} }

type stdin struct{ j *Job }

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

// Signal sends a signal, by its Linux number, to the program's process group. After the job's end errors.Is(err, syscall.ESRCH) holds.
func (j *Job) Signal(ctx context.Context, number int) error {
	p := j.program()
	if p == nil {
		return &capnprpc.Error{Kind: capnprpc.KindSystem, Errno: errno.ESRCH, Message: "the job has ended"}
	}
	return p.Signal(ctx, number)
}

// Kill ends the program and everything it has started. Killing a job that has ended is not an error.
func (j *Job) Kill(ctx context.Context) error {
	p := j.program()
	if p == nil {
		return nil
	}
	j.Abandon() // a write that waits for its owner must not keep it alive
	return p.Kill(ctx)
}

// Resize changes the size of the program's terminal, in characters. After the job's end it does nothing.
func (j *Job) Resize(ctx context.Context, columns, rows uint16) error {
	p := j.program()
	if p == nil {
		return nil
	}
	return p.Resize(ctx, columns, rows)
}

// Remove forgets a job that has ended and deletes its files. When it runs errors.Is(err, syscall.EBUSY) holds.
func (j *Job) Remove() error { return j.leave(j.discard) }

// Close forgets a job that has ended. What is in memory is lost; its files stay, and Open opens them. When it runs
// errors.Is(err, syscall.EBUSY) holds.
func (j *Job) Close() error { return j.leave(j.log.Close) }

func (j *Job) leave(do func() error) error {
	if !j.hasEnded() {
		return &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.EBUSY, Message: "the job runs: kill it first"}
	}
	if j.table != nil && !j.table.forget(j) {
		return nil
	}
	return do()
}

// checkID refuses ids that are no names of files.
func checkID(id string) error {
	problem := ""
	switch {
	case strings.ContainsFunc(id, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", r)
	}):
		problem = "it has characters other than letters, digits, '-', '_' and '.'"
	case len(id) > 64 || strings.HasPrefix(id, "."):
		problem = "it is too long or begins with a dot"
	default:
		return nil
	}
	return &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: fmt.Sprintf("%.80q is no id: %s", id, problem)}
}
