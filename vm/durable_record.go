package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"agentvm/internal/journal"
)

// Cursor is a place in a process's output: the count of bytes, of both streams, before it.
type Cursor = journal.Cursor

// Output is a part of what a process has written, and how it ended.
type Output struct {
	Chunks []journal.Chunk
	Next   Cursor  // where the next read continues
	Lost   uint64  // bytes between the requested place and the first chunk, which are no longer kept
	End    bool    // the process has ended and nothing follows Next
	Result *Result // with End: how it ended, without output; nil when that is not known
	Err    error   // with End: why it is not known, or what else failed
}

// Record is the kept output of a durable process, and its result.
type Record struct{ log *journal.Log }

// ErrInterrupted is the Output.Err of a process when the program that ran its VM ended first, so that its end was not seen.
var ErrInterrupted = errors.New("the program that ran the VM ended first")

// OpenRecord opens what a process has left in Durable.Dir. The VM that ran it must have ended, or Forget must have been
// called. The Record must be closed.
func OpenRecord(dir string) (*Record, error) {
	log, err := journal.Open(filepath.Join(dir, journalFile))
	if err != nil {
		return nil, err
	}
	r := &Record{log}
	err = r.finish(nil, ErrInterrupted)
	if err != nil && !errors.Is(err, journal.ErrFinished) {
		return nil, errors.Join(err, log.Close())
	}
	return r, nil
}

// Output returns output from a place on, at most max bytes, or 64 KiB when max is not positive. It waits for a byte, for the
// end or for ctx. Any number of readers may be at any place.
func (r *Record) Output(ctx context.Context, from Cursor, max int) (Output, error) {
	b, err := r.log.Read(ctx, from, max)
	o := Output{Chunks: b.Chunks, Next: b.Next, Lost: b.Lost, End: b.End}
	if err == nil && b.End {
		o.Result, o.Err = readEnding(b.Result)
	}
	return o, err
}

// Size is how many bytes the process has written, and how many of them are kept.
func (r *Record) Size() (total Cursor, kept int64) { return r.log.Size() }

// Close frees the record. A journal in memory is lost, a file stays.
func (r *Record) Close() error { return r.log.Close() }

// Remove closes the record and deletes its file.
func (r *Record) Remove() error { return r.log.Remove() }

// ending is the JSON in the journal that says how a process ended.
type ending struct {
	Result *Result `json:"result,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// maxReason bounds an error's text, which may hold a guest's console.
const maxReason = 1 << 10

func (r *Record) finish(result *Result, err error) error {
	e := ending{Result: result}
	if err != nil {
		text := readable([]byte(err.Error()), consoleLines)
		e.Error = text[:min(len(text), maxReason)]
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return r.log.Finish(b)
}

func readEnding(b []byte) (*Result, error) {
	var e ending
	if err := json.Unmarshal(b, &e); err != nil {
		return nil, fmt.Errorf("how it ended cannot be read: %w", err)
	}
	switch e.Error {
	case "":
		return e.Result, nil
	case ErrInterrupted.Error():
		return e.Result, ErrInterrupted
	}
	return e.Result, errors.New(e.Error)
}
