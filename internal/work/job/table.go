package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/errno"
	"agentvm/internal/storage/journal"
)

// killTime is how long KillAndRemove waits for a job's end.
const killTime = 15 * time.Second

// Config is that of a Table. Limits of 0 are none.
type Config struct {
	Logger     *slog.Logger
	Now        func() time.Time
	MaxRunning int // jobs that run at a time
	MaxJobs    int // jobs that run or have ended
	MaxEnded   int // durable jobs that have ended and are kept; the oldest are removed
	// Observe is called when a job has started and when it has ended. nil: no observer.
	Observe func(Info)
}

// Table has the jobs of one VM.
type Table struct {
	config  Config
	running sync.WaitGroup // goroutines of jobs
	ending  chan struct{}  // closed when the VM is about to end: no write waits for an owner any more
	endOnce sync.Once

	mu         sync.Mutex
	byID       map[string]*Job
	started    int
	active     int       // jobs that run or are being started
	background int       // those of them that are not use of the VM
	idle       time.Time // when the last job that was use ended
	ended      error     // why none can be started
	suspended  bool      // see Suspend
}

// NewTable makes a Table. Wait, then Close, free what it uses.
func NewTable(c Config) *Table {
	return &Table{config: c, byID: make(map[string]*Job), idle: c.Now(), ending: make(chan struct{})}
}

// Options say how a job lives.
type Options struct {
	ID         string // within its VM: letters, digits, "-", "_" and "."; default: NewID
	Label      string
	Args       []string // the program's, for Info, as Terminal is
	Terminal   bool
	Dir        string         // is made when it is missing and gets the record and the output; empty: they stay in memory
	Keep       journal.Config // how much output is kept
	Durable    bool           // it does not wait for its owner, whom Consume and Abandon describe
	Input      bool           // the program gets the Job's Input
	First      []byte         // the beginning of the Input
	Background bool           // it is no use of the VM: see Used
}

// Streams are what a job's program reads and writes. Stdin is nil without Options.Input.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Start starts a job, whose program spawn starts.
func (t *Table) Start(o Options, spawn func(Streams) (Process, error)) (*Job, error) {
	o.ID = cmp.Or(o.ID, NewID())
	if err := checkID(o.ID); err != nil {
		return nil, err
	}
	if err := t.enter(o); err != nil {
		return nil, err
	}
	j, err := t.create(o)
	if err != nil {
		t.leave(o)
		return nil, err
	}
	s := Streams{Stdout: stream{j, journal.Stdout}, Stderr: stream{j, journal.Stderr}}
	if j.input != nil {
		s.Stdin = j.input
	}
	process, err := spawn(s)
	if err != nil {
		j.input.close()
		t.leave(o)
		return nil, errors.Join(err, j.discard())
	}
	j.run(process, o.Background)
	t.add(j)
	t.observe(j)
	t.follow(j, o)
	return j, nil
}

// follow waits in a goroutine, which enter has counted, for the end of a job.
func (t *Table) follow(j *Job, o Options) {
	go func() {
		defer t.leave(o)
		if j.follow() {
			t.observe(j)
			t.prune()
		}
	}()
}

// Continue continues with a job that Load has left open: its output is appended to the same journal. find finds its program, whose output had that
// many bytes. When it fails, or there is no such job, Continue has done nothing; of a job that has ended it returns the Job.
func (t *Table) Continue(id string, background bool, find func(written journal.Cursor, s Streams) (Process, error)) (*Job, error) {
	j, err := t.Find(id)
	if err != nil || j.hasEnded() && !errors.Is(j.err, ErrDamaged) {
		return j, err
	}
	if j.hasEnded() {
		return nil, j.err
	}
	o := Options{ID: id, Background: background}
	t.mu.Lock()
	if err = t.ended; err == nil {
		t.count(o)
	}
	t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	total, _ := j.Size()
	process, err := find(total, Streams{Stdout: stream{j, journal.Stdout}, Stderr: stream{j, journal.Stderr}})
	if err != nil {
		t.leave(o)
		return nil, err
	}
	j.run(process, background)
	t.follow(j, o)
	return j, nil
}

// Suspend says that the VM is saved: durable jobs that the end of this VM interrupts have not ended, and Load and Continue continue with them
// where the VM continues.
func (t *Table) Suspend() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.suspended = true
}

func (t *Table) isSuspended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.suspended
}

func (t *Table) observe(j *Job) {
	if t.config.Observe != nil {
		t.config.Observe(j.Info())
	}
}

func (t *Table) add(j *Job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started++
	j.serial = t.started
	t.byID[j.record.ID] = j
}

// enter counts a job that begins, and reserves its id. leave counts one that has ended.
func (t *Table) enter(o Options) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, taken := t.byID[o.ID]
	limit := func(what string) error {
		return &capnprpc.Error{Kind: capnprpc.KindLimit, Errno: errno.EAGAIN, Message: what + ": that is the limit"}
	}
	switch {
	case t.ended != nil:
		return t.ended
	case taken:
		return &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EEXIST, Message: fmt.Sprintf("there is a job %s already", o.ID)}
	case t.config.MaxRunning > 0 && t.active >= t.config.MaxRunning:
		return limit(fmt.Sprintf("%d jobs run already", t.active))
	case t.config.MaxJobs > 0 && len(t.byID) >= t.config.MaxJobs:
		return limit(fmt.Sprintf("there are %d jobs already, remove some that have ended", len(t.byID)))
	}
	t.byID[o.ID] = nil
	t.count(o)
	return nil
}

// count counts a job that begins. The caller holds mu.
func (t *Table) count(o Options) {
	t.active++
	if o.Background {
		t.background++
	}
	t.running.Add(1)
}

func (t *Table) leave(o Options) {
	t.mu.Lock()
	if j, there := t.byID[o.ID]; there && j == nil { // it was not started
		delete(t.byID, o.ID)
	}
	t.active--
	if o.Background {
		t.background--
	} else {
		t.idle = t.config.Now()
	}
	t.mu.Unlock()
	t.running.Done()
}

// Find returns the job with an id. When there is none errors.Is(err, fs.ErrNotExist) holds.
func (t *Table) Find(id string) (*Job, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if j := t.byID[id]; j != nil {
		return j, nil
	}
	return nil, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.ENOENT, Message: fmt.Sprintf("no job %.40q", id)}
}

// List returns all jobs, oldest first.
func (t *Table) List() (list []*Job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, j := range t.byID {
		if j != nil {
			list = append(list, j)
		}
	}
	slices.SortFunc(list, func(a, b *Job) int {
		return cmp.Or(a.record.Started.Compare(b.record.Started), a.serial-b.serial)
	})
	return list
}

// Count returns how many jobs run.
func (t *Table) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.active
}

// EndDurable sends a signal, by its Linux number, to the durable jobs that run, except those with Options.Background, and returns when all of
// them have ended, or with ctx.
func (t *Table) EndDurable(ctx context.Context, signal int) {
	var running []*Job
	for _, j := range t.List() {
		if j.record.Durable && !j.isBackground() && !j.hasEnded() && j.Signal(ctx, signal) == nil {
			running = append(running, j)
		}
	}
	for _, j := range running {
		select {
		case <-j.Done():
		case <-ctx.Done():
			return
		}
	}
}

// Used returns how many jobs run except those with Options.Background, and when the last one ended.
func (t *Table) Used() (active int, idle time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.active - t.background, t.idle
}

// forget takes a job out of the table. It reports whether it was there.
func (t *Table) forget(j *Job) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[j.record.ID] != j {
		return false
	}
	delete(t.byID, j.record.ID)
	return true
}

// KillAndRemove kills and removes a job whose owner has gone. It does not wait.
func (t *Table) KillAndRemove(j *Job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != nil { // the VM has ended, with its jobs
		return
	}
	t.running.Add(1)
	go func() {
		defer t.running.Done()
		ctx, cancel := context.WithTimeout(context.Background(), killTime)
		defer cancel()
		if err := j.Kill(ctx); err != nil && !j.hasEnded() {
			t.config.Logger.Warn("a job of a client that has gone was not killed", "job", j.record.ID, "error", err)
		}
		<-j.ended
		t.remove(j)
	}()
}

// remove is Remove that logs its error.
func (t *Table) remove(j *Job) {
	if err := j.Remove(); err != nil {
		t.config.Logger.Warn("forget a job", "job", j.record.ID, "error", err)
	}
}

// prune deletes the oldest durable jobs that have ended when there are too many.
func (t *Table) prune() {
	if t.config.MaxEnded <= 0 {
		return
	}
	var ended []*Job
	for _, j := range t.List() {
		if j.hasEnded() && j.record.Durable {
			ended = append(ended, j)
		}
	}
	slices.SortFunc(ended, func(a, b *Job) int { return b.end.Ended.Compare(a.end.Ended) })
	for _, j := range ended[min(t.config.MaxEnded, len(ended)):] {
		t.remove(j)
	}
}

// Wait waits for the jobs of a VM that has ended. From now on none can be started: Start returns cause.
func (t *Table) Wait(cause error) {
	t.mu.Lock()
	t.ended = cause
	t.mu.Unlock()
	t.UnblockWriters()
	t.running.Wait()
}

// UnblockWriters ends the waiting of programs' writes for slow owners, because the VM is to end.
func (t *Table) UnblockWriters() { t.endOnce.Do(func() { close(t.ending) }) }

// Release ends the waiting for slow owners, because the programs that wrote the output have ended.
func (t *Table) Release() {
	for _, j := range t.List() {
		if !j.hasEnded() {
			j.Abandon()
		}
	}
}

// Close frees what is open, after Wait. The jobs' files stay.
func (t *Table) Close() {
	for _, j := range t.List() {
		_ = j.log.Close()
	}
}
