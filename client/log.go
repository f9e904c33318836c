package client

import (
	"errors"
	"io/fs"

	"agentvm/internal/host/tail"
)

// Log is the log of a VM's daemon, read while it grows. It belongs to one goroutine.
type Log struct{ lines growingLog }

// Log returns the log of a VM's daemon, whether the VM runs or not, from about the last so many bytes on. Close it.
func (s *Store) Log(name string, last int64) (*Log, error) {
	path, err := s.LogPath(name)
	if err != nil {
		return nil, err
	}
	return &Log{growingLog{path: path, last: last}}, nil
}

// Poll gives the whole lines, without their ends, that were written since the last call to use, until that returns an error. They are valid until
// use returns. Texts of the guest are in them. Poll does not wait.
func (l *Log) Poll(use func(line []byte) error) error { return l.lines.poll(use) }

// Close closes the file.
func (l *Log) Close() error { return l.lines.close() }

// growingLog reads a file of the store that may not be there yet.
type growingLog struct {
	path  string
	last  int64
	lines *tail.Reader // nil: there is no file yet
}

func (l *growingLog) poll(use func(line []byte) error) error {
	if l.lines == nil {
		lines, err := tail.Open(l.path, nil)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = lines.SkipTo(l.last)
		}
		if err != nil {
			return err
		}
		l.lines = lines
	}
	return l.lines.Poll(use)
}

func (l *growingLog) close() error {
	if l.lines == nil {
		return nil
	}
	return l.lines.Close()
}
