package daemon

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"agentvm/internal/atomicfile"
	"agentvm/internal/capnprpc"
	"agentvm/internal/daemonrpc"
	"agentvm/internal/errno"
	"agentvm/internal/guestrpc"
	"agentvm/internal/journal"
	"agentvm/internal/private"
	"agentvm/internal/shortage"
	"agentvm/vm"
)

const (
	// maxRunning bounds the jobs of a VM that run at a time, maxEnded the durable ones that have ended and are kept.
	maxRunning = 512
	maxEnded   = 100
	// killTime is how long killAndRemove waits for a job's end.
	killTime = 15 * time.Second
)

// jobs are the jobs of one VM.
type jobs struct {
	dir    string
	logger *slog.Logger
	now    func() time.Time

	running sync.WaitGroup // goroutines of jobs
	ending  chan struct{}  // closed when the VM is about to end: no write waits for a client any more
	endOnce sync.Once

	mu       sync.Mutex
	byID     map[string]*job
	active   int       // jobs that run or are being started
	sidecars int       // those of them that are sidecars
	idle     time.Time // when the last job that is no sidecar ended
	closed   bool
}

func newJobs(dir string, logger *slog.Logger, now func() time.Time) *jobs {
	return &jobs{dir: dir, logger: logger, now: now, byID: make(map[string]*job), idle: now(), ending: make(chan struct{})}
}

// purpose says for whom a job runs.
type purpose bool

const (
	forClient purpose = false // a client
	forVM     purpose = true  // the VM itself: a sidecar
)

// start runs a program in v.
func (m *jobs) start(ctx context.Context, v VM, r guestrpc.Request, o daemonrpc.JobOptions, whose purpose) (*job, error) {
	if err := m.enter(whose); err != nil {
		return nil, err
	}
	j, err := m.create(r, o)
	if err != nil {
		m.leave(whose)
		return nil, err
	}
	j.process, err = v.Start(ctx, j.command(r, o))
	if err != nil {
		m.leave(whose)
		return nil, errors.Join(err, j.discard())
	}
	m.mu.Lock()
	m.byID[j.record.ID] = j
	m.mu.Unlock()
	go func() { // counted by enter
		defer m.leave(whose)
		j.follow()
		m.prune()
	}()
	return j, nil
}

// enter counts a job that begins. leave counts one that has ended.
func (m *jobs) enter(whose purpose) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return vm.ErrStopped
	case m.active >= maxRunning:
		return &capnprpc.Error{Kind: capnprpc.KindLimit, Errno: errno.EAGAIN, Message: fmt.Sprintf("%d jobs run already: that is the limit", m.active)}
	}
	m.active++
	if whose == forVM {
		m.sidecars++
	}
	m.running.Add(1)
	return nil
}

func (m *jobs) leave(whose purpose) {
	m.mu.Lock()
	m.active--
	if whose == forVM {
		m.sidecars--
	} else {
		m.idle = m.now()
	}
	m.mu.Unlock()
	m.running.Done()
}

// create makes a job with its journal.
func (m *jobs) create(r guestrpc.Request, o daemonrpc.JobOptions) (*job, error) {
	j := &job{manager: m, ended: make(chan struct{}), moved: make(chan struct{})}
	j.record = record{
		ID: newID(), Label: o.Label, Args: r.Args, Started: m.now(), Durable: o.Durable, Terminal: r.Terminal != nil,
	}
	if o.Input {
		j.input = newInput(r.Input)
	}
	var err error
	if !o.Durable {
		j.log, err = journal.Create("", journal.Config{Head: window, Tail: 2 * window})
		return j, err
	}
	j.dir = filepath.Join(m.dir, j.record.ID)
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep the job's output: %w", err)
	}
	keep := int64(min(max(cmp.Or(o.MaxOutput, defaultOutput), minOutput), maxOutput))
	j.log, err = journal.Create(journalPath(j.dir), journal.Config{Head: keep / 2, Tail: keep / 2})
	if err == nil {
		err = j.save()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keep the job's output: %w", err), j.discard())
	}
	return j, nil
}

func newID() string {
	b := make([]byte, 4)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func (j *job) save() error {
	b, err := json.Marshal(j.record)
	if err != nil {
		return err
	}
	return atomicfile.Write(recordPath(j.dir), b)
}

// discard frees and deletes the job's output.
func (j *job) discard() (err error) {
	if j.log != nil {
		err = j.log.Remove()
	}
	if j.dir != "" {
		err = errors.Join(err, os.RemoveAll(j.dir))
	}
	return err
}

func (j *job) command(r guestrpc.Request, o daemonrpc.JobOptions) vm.Command {
	c := vm.Command{
		Args: r.Args, Env: r.Env, Dir: r.Dir, User: r.User, Timeout: o.Timeout, Terminal: (*vm.Size)(r.Terminal),
		Stdout: stream{j, journal.Stdout}, Stderr: stream{j, journal.Stderr},
	}
	switch {
	case j.input != nil:
		c.Stdin = j.input
	case len(r.Input) > 0:
		c.Stdin = bytes.NewReader(r.Input)
	}
	return c
}

// find returns the job with an id.
func (m *jobs) find(id string) (*job, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if j := m.byID[id]; j != nil {
		return j, nil
	}
	return nil, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.ENOENT, Message: fmt.Sprintf("no job %.40q", id)}
}

// list describes all, oldest first.
func (m *jobs) list() []daemonrpc.JobInfo {
	var list []daemonrpc.JobInfo
	for _, j := range m.all() {
		list = append(list, j.info())
	}
	slices.SortFunc(list, func(a, b daemonrpc.JobInfo) int { return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID)) })
	return list
}

func (m *jobs) all() (list []*job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, j := range m.byID {
		list = append(list, j)
	}
	return list
}

// count returns how many jobs run.
func (m *jobs) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.active
}

// used returns how many jobs run except sidecars, and when the last one ended.
func (m *jobs) used() (active int, idle time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.active - m.sidecars, m.idle
}

// remove deletes a job that has ended, with its output.
func (m *jobs) remove(j *job) error {
	if !j.hasEnded() {
		return &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.EBUSY, Message: "the job runs: kill it first"}
	}
	m.mu.Lock()
	_, there := m.byID[j.record.ID]
	delete(m.byID, j.record.ID)
	m.mu.Unlock()
	if !there {
		return nil
	}
	return j.discard()
}

// killAndRemove kills and deletes a job whose client has gone. It does not wait.
func (m *jobs) killAndRemove(j *job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed { // the VM has ended, with its jobs
		return
	}
	m.running.Add(1)
	go func() {
		defer m.running.Done()
		ctx, cancel := context.WithTimeout(context.Background(), killTime)
		defer cancel()
		if err := j.kill(ctx); err != nil && !j.hasEnded() {
			m.logger.Warn("a job of a client that has gone was not killed", "job", j.record.ID, "error", err)
		}
		<-j.ended
		if err := m.remove(j); err != nil {
			m.logger.Warn("forget a job", "job", j.record.ID, "error", err)
		}
	}()
}

// prune deletes the oldest durable jobs that have ended when there are too many.
func (m *jobs) prune() {
	var ended []*job
	for _, j := range m.all() {
		if j.hasEnded() && j.record.Durable {
			ended = append(ended, j)
		}
	}
	slices.SortFunc(ended, func(a, b *job) int { return b.result.Ended.Compare(a.result.Ended) })
	for _, j := range ended[min(maxEnded, len(ended)):] {
		if err := m.remove(j); err != nil {
			m.logger.Warn("forget a job", "job", j.record.ID, "error", err)
		}
	}
}

// wait waits for the jobs of a VM that has ended. From now on none can be started.
func (m *jobs) wait() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.unblockWriters()
	m.running.Wait()
}

// unblockWriters ends the waiting of programs' writes for slow clients, because the VM is to end.
func (m *jobs) unblockWriters() { m.endOnce.Do(func() { close(m.ending) }) }

// release ends the waiting for slow clients, because the programs that wrote the output have ended.
func (m *jobs) release() {
	for _, j := range m.all() {
		if !j.hasEnded() {
			j.abandon()
		}
	}
}

// close frees what is open, after wait.
func (m *jobs) close() {
	for _, j := range m.all() {
		_ = j.log.Close()
	}
}

// load finds the jobs of earlier daemons. Those whose end was not recorded have ended, too.
func (m *jobs) load() {
	for _, dir := range m.directories() {
		atomicfile.RemoveAllTemporary(dir)
		j, err := m.open(dir, true)
		if err == nil {
			err = j.conclude()
		}
		if shortage.Is(err) || errors.Is(err, private.ErrNotPrivate) {
			m.logger.Warn("the output of an earlier job cannot be read now; it is kept", "job", filepath.Base(dir), "error", err, "advice", shortage.Advice(err))
			continue
		}
		if err != nil {
			m.logger.Warn("the output of an earlier job cannot be read and is deleted", "job", filepath.Base(dir), "error", err)
			_ = os.RemoveAll(dir)
			continue
		}
		m.mu.Lock()
		m.byID[j.record.ID] = j
		m.mu.Unlock()
	}
	m.prune()
}

// directories returns the directories of all kept jobs.
func (m *jobs) directories() (list []string) {
	entries, _ := os.ReadDir(m.dir) // none when that fails
	for _, e := range entries {
		list = append(list, filepath.Join(m.dir, e.Name()))
	}
	return list
}

// open opens a job of an earlier daemon.
func (m *jobs) open(dir string, write bool) (*job, error) {
	j := &job{manager: m, dir: dir, ended: make(chan struct{}), moved: make(chan struct{})}
	b, err := private.ReadFile(recordPath(dir), maxRecord)
	if err == nil {
		err = json.Unmarshal(b, &j.record)
	}
	if err == nil && j.record.ID != filepath.Base(dir) {
		err = fmt.Errorf("it is of job %.40q", j.record.ID)
	}
	if err != nil {
		return nil, err
	}
	open := journal.OpenReadOnly
	if write {
		open = journal.Open
	}
	j.log, err = open(journalPath(dir))
	return j, err
}

// maxRecord bounds a job.json, in bytes: arguments may be long.
const maxRecord = 8 << 20

// errNoEnd is about the journal of a job whose daemon was killed.
var errNoEnd = errors.New("its journal has no end")

// readEnd reads how the job has ended.
func (j *job) readEnd() error {
	end, _ := j.log.Size()
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // Read still returns what is there
	b, err := j.log.Read(ctx, end, 1)
	if err != nil || !b.End {
		return errNoEnd
	}
	var how result
	if err := json.Unmarshal(b.Result, &how); err != nil {
		return err
	}
	j.result = &how
	close(j.ended)
	return nil
}

// conclude reads how the job has ended, or records that it is not known.
func (j *job) conclude() error {
	err := j.readEnd()
	if errors.Is(err, errNoEnd) {
		j.finish(result{Ended: lastWrite(j.dir, j.manager.now()), Error: errUnseen.Error()})
		return nil
	}
	if err != nil {
		return errors.Join(err, j.log.Close())
	}
	return nil
}

// lastWrite returns when a job wrote its last output, or now when that is not known.
func lastWrite(dir string, now time.Time) time.Time {
	info, err := os.Stat(journalPath(dir))
	if err != nil {
		return now
	}
	return info.ModTime()
}
