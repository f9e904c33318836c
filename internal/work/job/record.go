package job

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
	"agentvm/internal/storage/journal"
)

// record is job.json: what is known of a job at its start. How it has ended is the last record of its journal, an End.
type record struct {
	ID       string    `json:"id"`
	Label    string    `json:"label,omitempty"`
	Args     []string  `json:"args"`
	Started  time.Time `json:"started"`
	Durable  bool      `json:"durable"`
	Terminal bool      `json:"terminal,omitempty"`
}

const (
	// maxRecord bounds a job.json, in bytes: arguments may be long.
	maxRecord = 8 << 20
	// maxError bounds an error's text in an End, in bytes.
	maxError = 1 << 10
)

// ErrInterrupted is the error of a job when the process that ran its VM ended first, so that its end was not seen.
var ErrInterrupted = errors.New("the program that ran the VM ended first")

// errNoEnd is about a journal without an End.
var errNoEnd = errors.New("its journal has no end")

// RecordPath and JournalPath are the files of a job in its directory.
func RecordPath(dir string) string { return filepath.Join(dir, "job.json") }

// JournalPath is the file of a job's output.
func JournalPath(dir string) string { return filepath.Join(dir, "journal") }

// NewID returns a random id of eight hexadecimal digits.
func NewID() string {
	b := make([]byte, 4)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func newJob(dir string) *Job {
	return &Job{dir: dir, ended: make(chan struct{}), moved: make(chan struct{})}
}

// create makes a job with its journal.
func (t *Table) create(o Options) (*Job, error) {
	j := newJob(o.Dir)
	j.table = t
	j.record = record{ID: o.ID, Label: o.Label, Args: o.Args, Started: t.config.Now(), Durable: o.Durable, Terminal: o.Terminal}
	if o.Input {
		j.input = newInput(o.First)
	}
	var err error
	if o.Dir == "" {
		j.log, err = journal.Create("", o.Keep)
		return j, err
	}
	err = os.MkdirAll(o.Dir, 0o700)
	if err == nil {
		j.log, err = journal.Create(JournalPath(o.Dir), o.Keep)
	}
	if err != nil {
		return nil, fmt.Errorf("keep the job's output: %w", err)
	}
	b, err := json.Marshal(j.record)
	if err == nil {
		err = atomicfile.Write(RecordPath(o.Dir), b)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keep the job's output: %w", err), j.discard())
	}
	return j, nil
}

// discard frees and deletes the job's output, and its directory unless that has other files.
func (j *Job) discard() error {
	err := j.log.Remove()
	if j.dir == "" {
		return err
	}
	if e := os.Remove(RecordPath(j.dir)); !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	_ = os.Remove(JournalPath(j.dir)) // a damaged one, which is not open
	_ = os.Remove(j.dir)
	return err
}

// finish records the job's end. err is why there is no code, or nil.
func (j *Job) finish(end End, err error) {
	if err != nil {
		end.Error = err.Error()[:min(len(err.Error()), maxError)]
	}
	b, recordErr := json.Marshal(end)
	if recordErr == nil {
		recordErr = j.log.Finish(b)
	}
	if recordErr != nil {
		j.table.config.Logger.Warn("the end of a job is not recorded", "job", j.record.ID, "error", recordErr)
	}
	j.end, j.err = end, err
	close(j.ended)
	if recordErr != nil {
		_ = j.log.Close() // otherwise readers would wait for ever
	}
}

// Open opens what a job has left in its directory, for reading. The VM that ran it must have ended, or Job.Close must have been called.
// Close frees the Job, Remove deletes its files.
func Open(dir string) (*Job, error) {
	j, err := open(dir, journal.OpenReadOnly)
	if err != nil {
		return nil, err
	}
	if err := j.readEnd(); err != nil {
		j.interrupted(ErrInterrupted)
	}
	return j, nil
}

func open(dir string, openJournal func(string) (*journal.Log, error)) (*Job, error) {
	j := newJob(dir)
	b, err := private.ReadFile(RecordPath(dir), maxRecord)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		j.record.ID = filepath.Base(dir) // of an earlier version's vm.StartProcess, which kept the output only
	case err == nil:
		err = json.Unmarshal(b, &j.record)
		fallthrough
	default:
		if err != nil {
			return nil, err
		}
	}
	j.log, err = openJournal(JournalPath(dir))
	return j, err
}

// readEnd reads how the job has ended.
func (j *Job) readEnd() error {
	end, _ := j.log.Size()
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // Read still returns what is there
	b, err := j.log.Read(ctx, end, 1)
	if err != nil || !b.End {
		return errNoEnd
	}
	how := struct {
		End
		Result *struct { // as earlier versions' vm.StartProcess wrote it
			ExitCode, Signal int
			TimedOut         bool
		} `json:"result"`
	}{}
	if err := json.Unmarshal(b.Result, &how); err != nil {
		return fmt.Errorf("how it ended cannot be read: %w", err)
	}
	if r := how.Result; r != nil && how.Error == "" {
		how.Code, how.Signal, how.TimedOut = r.ExitCode, r.Signal, r.TimedOut
	}
	if j.end = how.End; j.end.Error == ErrInterrupted.Error() {
		j.err = ErrInterrupted
	} else if j.end.Error != "" {
		j.err = errors.New(j.end.Error)
	}
	close(j.ended)
	return nil
}

// interrupted says that it is not known how the job has ended.
func (j *Job) interrupted(why error) {
	j.end, j.err = End{Ended: j.lastWrite(), Error: why.Error()}, why
	close(j.ended)
}
