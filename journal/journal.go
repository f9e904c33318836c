// Package journal keeps the output of one process, on disk or in memory: all of a short one, the beginning and the end of
// a long one. Whoever reads names the place by a [Cursor] and learns how many bytes are no longer there.
//
// Any number of goroutines may read a [Log] while others append to it. Appends are put in one order, which every reader
// sees, and never wait for a reader; a reader that has everything waits without polling. A log belongs to one process at
// a time: nothing here keeps a second one out.
//
// What Append has taken survives the death of this process at any moment, but not that of the computer: only Finish
// makes the file durable. Open tells a last record that was cut short, which it drops, from a damaged file, which it
// refuses. docs/journal.md has the format.
package journal

import (
	"context"
	"errors"
	"io"
)

// Stream says where bytes come from.
type Stream uint8

// The streams of a process.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// Cursor is a place between two bytes of a log: the count of bytes, of both streams, before it. 0 is the beginning.
type Cursor uint64

// Config says how much a log keeps. The zero value is useful.
type Config struct {
	Head   int64     // bytes kept of the beginning; 0 is 8 MiB, at most 1 TiB
	Tail   int64     // bytes kept of the end; 0 is 8 MiB, at most 1 TiB
	Random io.Reader // salt of the checksums; nil is crypto/rand
}

// Chunk is bytes of one stream. The reader owns them.
type Chunk struct {
	Stream Stream
	Data   []byte
}

// Batch is what one Read found.
type Batch struct {
	Chunks []Chunk
	Next   Cursor // behind the last chunk: where to go on
	Lost   uint64 // bytes between the cursor of the Read and the first chunk, which are no longer kept
	End    bool   // nothing comes after Next
	Result []byte // what Finish was given; with End only
}

// What goes wrong with a log that is not damaged.
var (
	ErrFinished = errors.New("the journal is finished")
	ErrClosed   = errors.New("the journal is closed")
	ErrCursor   = errors.New("the cursor lies behind the end of the journal")
)

// CorruptError says that a file is not a journal, or not any more.
type CorruptError struct {
	Path   string
	Offset int64 // in the file, in bytes
	Cause  string
}

func (e *CorruptError) Error() string { return "journal " + e.Path + " is damaged: " + e.Cause }

// Log is one journal.
type Log struct{}

// Create makes an empty log in a new file of mode 0600, or in memory when path is empty.
func Create(path string, c Config) (*Log, error) { return nil, errors.ErrUnsupported }

// Open opens the log of an earlier process to read it or to go on with it. A damaged file is a *CorruptError.
func Open(path string) (*Log, error) { return nil, errors.ErrUnsupported }

// Append adds bytes of a stream. It does not keep p and does not wait for readers.
func (l *Log) Append(s Stream, p []byte) error { return errors.ErrUnsupported }

// Finish ends the log with a small record of how it ended, at most MaxResult bytes, and makes the file durable.
func (l *Log) Finish(result []byte) error { return errors.ErrUnsupported }

// Read returns up to max bytes from a cursor on. It waits for a byte, the end, or ctx.
func (l *Log) Read(ctx context.Context, from Cursor, max int) (Batch, error) {
	return Batch{}, errors.ErrUnsupported
}

// Size returns how many bytes were appended, and how many of them are kept.
func (l *Log) Size() (total Cursor, kept int64) { return 0, 0 }

// Close frees the log; its file stays. Readers that wait get ErrClosed.
func (l *Log) Close() error { return nil }

// Remove closes the log and deletes its file.
func (l *Log) Remove() error { return nil }
