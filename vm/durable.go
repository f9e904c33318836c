package vm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"agentvm/internal/journal"
)

// MaxProcesses is how many durable processes, running or ended, a VM remembers.
const MaxProcesses = 4096

// Durable says how the output of a process is kept. The zero value keeps it in memory.
type Durable struct {
	// ID names the process within its VM: letters, digits, "-", "_" and ".". Default: ten random letters and digits.
	ID string
	// Dir is a directory, which is made when it is missing, that gets the file of the journal. Default: none, memory.
	Dir string
	// Journal says how much is kept.
	Journal journal.Config
}

// journalFile is the journal's name in Durable.Dir.
const journalFile = "journal"

// Job is a command whose output is kept.
//
//	guest ── output ──► journal ◄── Output(from), by any number of readers, at any time
//	guest ◄── stdin ── pipe ◄── Stdin()
//	process ends ──► result kept, journal finished ──► ended
type Job struct {
	process
	id      string
	record  *Record
	stdin   *io.PipeWriter // nil: the command has a Stdin of its own
	input   *io.PipeReader
	ended   chan struct{} // closed when exit and exitErr are set
	exit    *Result
	exitErr error
	mu      sync.Mutex
	lost    error // the journal's first error: output is missing
	serial  int   // counts the VM's durable processes from 1
	listed  bool  // started, so Jobs lists it; guarded by VM.mu
	forgets sync.Once
}

// StartJob starts a command whose output is kept in a journal. Output reads it from any place on, also after the
// process, its VM, or this program has ended. The process need not be waited for, and does not wait for readers. ctx bounds the start
// only.
//
// Its input is what is written to Stdin, or Command.Stdin. Command.Stdout and Stderr must be nil. A process remains among
// the VM's Jobs until Remove.
func (v *VM) StartJob(ctx context.Context, c Command, d Durable) (*Job, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("start a process: the output of a durable one goes to its journal: it has no Stdout or Stderr")
	}
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	if err := v.alive(); err != nil {
		return nil, err
	}
	p := &Job{process: process{vm: v}, id: d.ID, ended: make(chan struct{})}
	if err := v.register(p); err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	err := p.launch(ctx, c, d)
	if err != nil {
		v.forget(p)
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	p.listed = true
	return p, nil
}

func (d *Durable) check() error {
	if d.ID == "" {
		d.ID = strings.ToLower(rand.Text()[:10])
	}
	for _, r := range d.ID {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", r) {
			return fmt.Errorf("%.80q is no id: it has characters other than letters, digits, '-', '_' and '.'", d.ID)
		}
	}
	if len(d.ID) > 64 || strings.HasPrefix(d.ID, ".") {
		return fmt.Errorf("%.80q is no id: it is too long or begins with a dot", d.ID)
	}
	return nil
}

// register reserves the process's id.
func (v *VM) register(p *Job) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.jobs[p.id] != nil:
		return fmt.Errorf("there is a process %s already: %w", p.id, fs.ErrExist)
	case len(v.jobs) >= MaxProcesses:
		return &LimitError{Limit: Limit{Name: "processes that a VM remembers", Max: MaxProcesses}}
	case v.jobs == nil:
		v.jobs = make(map[string]*Job)
	}
	v.started++
	p.serial = v.started
	v.jobs[p.id] = p
	return nil
}

func (v *VM) forget(p *Job) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.jobs[p.id] == p {
		delete(v.jobs, p.id)
	}
}

// launch makes the journal, starts the command, and waits for its end in a tracked goroutine.
func (p *Job) launch(ctx context.Context, c Command, d Durable) error {
	path := ""
	if d.Dir != "" {
		if err := os.MkdirAll(d.Dir, 0o700); err != nil {
			return fmt.Errorf("start a process: %w", err)
		}
		path = filepath.Join(d.Dir, journalFile)
	}
	log, err := journal.Create(path, d.Journal)
	if err != nil {
		return fmt.Errorf("start a process: %w", err)
	}
	p.record = &Record{log}
	c.Stdout, c.Stderr = journalWriter{p, journal.Stdout}, journalWriter{p, journal.Stderr}
	if c.Stdin == nil {
		p.input, p.stdin = io.Pipe()
		c.Stdin = p.input
	}
	if err := p.vm.start(ctx, c, &p.process); err != nil {
		p.closeInput()
		return errors.Join(err, log.Remove())
	}
	if err := p.vm.goTracked(p.waitForEnd); err != nil { // the VM has just ended
		p.closeInput()
		return errors.Join(err, log.Remove())
	}
	return nil
}

// waitForEnd waits for the process's end, in a tracked goroutine.
func (p *Job) waitForEnd() {
	d := p
	result, err := p.process.Wait(context.Background())
	if result == nil { // it could not be killed at its timeout
		<-p.remote.Done()
		var e error
		result, e = p.process.result(true)
		err = errors.Join(err, e)
	}
	d.closeInput()
	d.mu.Lock()
	if d.lost != nil {
		err = errors.Join(err, fmt.Errorf("output was lost: %w", d.lost))
	}
	d.mu.Unlock()
	if e := d.record.finish(result, err); e != nil && !errors.Is(e, journal.ErrClosed) {
		err = errors.Join(err, e)
	}
	d.exit, d.exitErr = result, err
	close(d.ended)
}

// Done is closed when the command has ended, and its journal with it.
func (d *Job) Done() <-chan struct{} { return d.ended }

// Wait is Process.Wait. The Result has no output; each caller gets it.
func (d *Job) Wait(ctx context.Context) (*Result, error) {
	select {
	case <-d.ended:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if d.exit == nil {
		return nil, d.exitErr
	}
	r := *d.exit
	return &r, d.exitErr
}

func (d *Job) closeInput() {
	if d.input != nil {
		_ = d.input.CloseWithError(syscall.EPIPE)
	}
}

// journalWriter writes a stream's output to the journal. It never fails: after an error it still tries to keep later output.
type journalWriter struct {
	d      *Job
	stream journal.Stream
}

func (w journalWriter) Write(b []byte) (int, error) {
	if err := w.d.record.log.Append(w.stream, b); err != nil && !errors.Is(err, journal.ErrClosed) {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		if w.d.lost == nil {
			w.d.lost = err
		}
	}
	return len(b), nil
}

// Jobs returns the VM's jobs, running and ended, in the order of their starts.
func (v *VM) Jobs() []*Job {
	v.mu.Lock()
	defer v.mu.Unlock()
	var list []*Job
	for _, p := range v.jobs {
		if p.listed {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *Job) int { return a.serial - b.serial })
	return list
}

// Job returns the job with an id. When there is none errors.Is(err, fs.ErrNotExist) holds.
func (v *VM) Job(id string) (*Job, error) {
	for _, p := range v.Jobs() {
		if p.ID() == id {
			return p, nil
		}
	}
	return nil, fmt.Errorf("process %.80q: %w", id, fs.ErrNotExist)
}

// ID is the job's name within its VM.
func (p *Job) ID() string { return p.id }

// Stdin returns the input of a job that was started without a Stdin. It must be closed at the end of the
// input. A Write waits while the process does not read. After the process's end errors.Is(err, syscall.EPIPE) holds.
func (p *Job) Stdin() io.WriteCloser {
	if p.stdin == nil {
		return noInput{}
	}
	return p.stdin
}

// noInput is the Stdin of processes that cannot be written to.
type noInput struct{}

func (noInput) Write([]byte) (int, error) {
	return 0, errors.New("this process has an input of its own: only a job that was started without Stdin can be written to")
}
func (noInput) Close() error { return nil }

// Output returns output from a place on, at most max bytes, or waits for some: see Record.Output.
func (p *Job) Output(ctx context.Context, from Cursor, max int) (Output, error) {
	return p.record.Output(ctx, from, max)
}

// Remove forgets a process that has ended, and its output: the journal's file is deleted. One that runs gives an error for
// which errors.Is(err, syscall.EBUSY) holds.
func (p *Job) Remove() error { return p.drop((*Record).Remove) }

// Forget is Remove that leaves the journal's file in place, where OpenRecord finds it.
func (p *Job) Forget() error { return p.drop((*Record).Close) }

func (p *Job) drop(how func(*Record) error) (err error) {
	select {
	case <-p.ended:
	default:
		return fmt.Errorf("process %s runs: kill it first: %w", p.id, syscall.EBUSY)
	}
	p.forgets.Do(func() {
		p.vm.forget(p)
		err = how(p.record)
	})
	return err
}
