// Package journal keeps the output of one process, on disk or in memory: all of a short one, the beginning and the end of
// a long one. Whoever reads names the place by a [Cursor] and learns how many bytes are no longer there.
//
// Any number of goroutines may read a [Log] while others append to it. Appends are put in one order, which every reader
// sees, and never wait for a reader; a reader that has everything waits without polling. A log belongs to one process at
// a time: nothing here keeps a second one out.
//
// What Append has taken survives the death of this process at any moment, but not that of the computer: only Finish
// makes the file durable. A record is one write. Open drops a last record that fails its check, because it was being written;
// everything else that does not fit is a *CorruptError with offset and cause.
//
// A file has at most 34.1 MiB by default; format.go has the layout. Checksums start from a random salt, which the program does
// not know, so it cannot print bytes that look like a record.
//
// The package starts no goroutines, interprets no bytes, and neither compresses nor encrypts.
package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// Stream says where bytes come from.
type Stream uint8

// The streams of a process.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// String is "stdout" or "stderr".
func (s Stream) String() string {
	if s == Stderr {
		return "stderr"
	}
	return "stdout"
}

// Cursor is a place between two bytes of a log: the count of bytes, of both streams, before it. 0 is the beginning.
type Cursor uint64

// Config says how much a log keeps. The zero value is useful.
type Config struct {
	Head   int64     // bytes kept of the beginning; 0 is 8 MiB, at most 1 TiB
	Tail   int64     // bytes kept of the end; 0 is 8 MiB, at most 1 TiB
	Random io.Reader // salt of the checksums, 8 bytes; nil is crypto/rand
}

// Chunk is bytes of one stream. They belong to the reader.
type Chunk struct {
	Stream Stream
	Data   []byte
}

// Batch is what one Read found.
type Batch struct {
	Chunks []Chunk
	Next   Cursor // behind the last chunk: where to continue
	Lost   uint64 // bytes between the cursor of the Read and the first chunk, which are no longer kept
	End    bool   // the log is finished and nothing comes after Next
	Result []byte // what Finish was given; with End only
}

// What can be wrong with a call, while the log is sound.
var (
	ErrFinished = errors.New("it is finished")
	ErrClosed   = errors.New("it is closed")
	ErrCursor   = errors.New("the cursor lies behind the end")
)

// CorruptError says that a file is not a journal, or not any more.
type CorruptError struct {
	Path   string
	Offset int64 // in the file, in bytes
	Cause  string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("journal %s is damaged at byte %d: %s", e.Path, e.Offset, e.Cause)
}

// Log is one journal. Its file, whose headers format.go encodes:
//
//	file:  [header][result][head............][slot][slot][slot][slot][slot][slot][slot][slot][slot]
//	bytes: the first Config.Head of all .... then generation 1, 2, 3, ... each in slot (generation - 1) mod 9
type Log struct {
	name   string // for errors
	path   string // "" in memory
	layout layout
	store  storage

	// writing puts appends in order. Their file operations happen under it; readers never take it.
	writing sync.Mutex
	frame   []byte // the record being written

	mu       sync.Mutex
	head     *region
	tail     []*region // oldest first; what is here is not being overwritten
	gen      uint64    // of the newest slot, 0 before the first
	last     record    // the newest, which may still grow
	changed  chan struct{}
	finished bool
	result   []byte
	closed   bool
}

// Create makes an empty log in a new file of mode 0600, or in memory when path is empty. Nothing is kept of a failure.
func Create(path string, c Config) (*Log, error) {
	layout, err := newLayout(c)
	if err != nil {
		return nil, fmt.Errorf("create journal %s: %w", path, err)
	}
	var store storage = newMemory()
	if path != "" {
		if store, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return nil, fmt.Errorf("create journal: %w", err)
		}
	}
	l := newLog(path, layout, store)
	if _, err := store.WriteAt(layout.encode(), 0); err != nil {
		return nil, errors.Join(fmt.Errorf("create journal: %w", err), l.Remove())
	}
	return l, nil
}

func newLog(path string, layout layout, store storage) *Log {
	l := &Log{name: path, path: path, layout: layout, store: store, head: layout.headRegion()}
	if path == "" {
		l.name = "in memory"
	}
	return l
}

// fail says which journal an error is about.
func (l *Log) fail(doing string, err error) error {
	return fmt.Errorf("%s journal %s: %w", doing, l.name, err)
}

// Size returns how many bytes were appended, and how many of them a reader still gets.
func (l *Log) Size() (total Cursor, kept int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	total, kept = l.total(), l.head.payload()
	if len(l.tail) > 0 {
		kept += int64(total - l.floor())
	}
	return total, kept
}

// Close frees the log and wakes its readers with ErrClosed. The file stays; what is in memory goes.
func (l *Log) Close() error {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.wake()
	l.mu.Unlock()
	if closed {
		return nil
	}
	l.writing.Lock() // an append that has begun is completed
	defer l.writing.Unlock()
	return l.store.Close()
}

// Remove closes the log and deletes its file.
func (l *Log) Remove() error {
	err := l.Close()
	if l.path != "" {
		err = errors.Join(err, os.Remove(l.path))
	}
	return err
}

// wake tells the readers that wait. The caller holds mu.
func (l *Log) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}
