package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"agentvm/internal/host/atomicfile"
)

// maxLog bounds daemon.log, in bytes. At that size it replaces daemon.log.1.
const maxLog = 1 << 20

// logFile is a log of bounded size: the daemon's, or that of its VM's network. It is rotated by copying, not by renaming, so that the
// daemon's standard error, to which a panic writes, still leads to the current file. All writers open it to append.
type logFile struct {
	path  string
	limit int64

	mu   sync.Mutex
	file *os.File
}

func openLog(path string, limit int64) (*logFile, error) {
	f, err := openAppend(path)
	if err != nil {
		return nil, err
	}
	return &logFile{path: path, limit: limit, file: f}, nil
}

func openAppend(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open a log of the daemon: %w", err)
	}
	return f, nil
}

// Write appends a line. A log that cannot be rotated grows further.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.file.Write(p)
	if info, statErr := l.file.Stat(); statErr == nil && info.Size() >= l.limit {
		_ = l.rotate()
	}
	return n, err
}

// rotate copies the log to ".1" and empties it. The caller holds mu.
func (l *logFile) rotate() error {
	content, err := readTail(l.path, 2*l.limit)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(l.path+".1", content); err != nil {
		return err
	}
	return os.Truncate(l.path, 0)
}

// Close closes the file.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}

// readTail returns the last limit bytes of a file.
func readTail(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := max(info.Size()-limit, 0)
	b, err := io.ReadAll(io.NewSectionReader(f, from, limit))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b, err
}
