// Package tail reads the lines of a log to which another process appends, and which is rotated from time to time: the old lines are then in a
// file of the same name with ".1". A Reader belongs to one goroutine.
package tail

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
)

// MaxLine is the longest line in bytes that is read; what is longer was not written by agentvm.
const MaxLine = 1 << 20

// Reader reads lines of a file that may be growing.
type Reader struct {
	open     func(path string) (*os.File, error)
	file     *os.File
	buffered *bufio.Reader
	partial  []byte
	at       int64    // bytes read so far
	rest     *os.File // what was written before the file became shorter, while that is read; else nil
}

// Open opens a log. open opens it for reading, and later the one with ".1"; nil: os.Open.
func Open(path string, open func(path string) (*os.File, error)) (*Reader, error) {
	if open == nil {
		open = os.Open
	}
	file, err := open(path)
	if err != nil {
		return nil, err
	}
	return &Reader{open: open, file: file, buffered: bufio.NewReaderSize(file, 64<<10)}, nil
}

// Close closes the files.
func (r *Reader) Close() error {
	err := r.file.Close()
	if r.rest != nil {
		_ = r.rest.Close()
	}
	return err
}

// SkipTo leaves out all but the lines that begin in the last n bytes. It is to be called before the first line is read.
func (r *Reader) SkipTo(n int64) error {
	info, err := r.file.Stat()
	if err != nil || info.Size() <= n {
		return err
	}
	if r.at, err = r.file.Seek(info.Size()-n-1, io.SeekStart); err != nil { // one byte more: it may be the end of the line before
		return err
	}
	r.buffered.Reset(r.file)
	if _, err = r.Next(false); errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}

// Next returns the next line without its end, valid until the next call, or io.EOF. A last line without an end counts when last is set;
// otherwise it is kept until its rest has been written.
func (r *Reader) Next(last bool) ([]byte, error) {
	for {
		piece, err := r.buffered.ReadSlice('\n')
		r.at += int64(len(piece))
		r.partial = append(r.partial, piece...)
		if len(r.partial) > MaxLine {
			return nil, fmt.Errorf("a line is longer than %d bytes: this is no log of agentvm", MaxLine)
		}
		switch {
		case err == nil:
			return r.take(1), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && last && len(r.partial) > 0:
			return r.take(0), nil
		default:
			return nil, err
		}
	}
}

// take returns the line without its last n bytes.
func (r *Reader) take(n int) []byte {
	line := r.partial[:len(r.partial)-n]
	r.partial = r.partial[:0]
	return line
}

// Poll gives each whole line that is there, and that was not read before, to use.
func (r *Reader) Poll(use func(line []byte) error) error {
	for {
		line, err := r.Next(false)
		if err == nil {
			err = use(line)
			if err != nil {
				return err
			}
			continue
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		if moved, err := r.Advance(); !moved {
			return err
		}
	}
}

// Advance continues at the end of what has been read: with the rest of a file that was cut off meanwhile, and after that with its new
// beginning. It says whether there is more to read.
func (r *Reader) Advance() (moved bool, err error) {
	if r.rest != nil { // it has been read
		err := r.rest.Close()
		r.rest = nil
		r.restart()
		return true, err
	}
	info, err := r.file.Stat()
	if err != nil || info.Size() >= r.at {
		return false, err
	}
	if _, err = r.file.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	if r.rest = r.openRest(r.file.Name()+".1", r.at); r.rest != nil {
		r.buffered.Reset(r.rest)
	} else {
		r.restart()
	}
	return true, nil
}

// restart reads the file from its beginning.
func (r *Reader) restart() {
	r.at, r.partial = 0, r.partial[:0]
	r.buffered.Reset(r.file)
}

// openRest opens the file into which a log was rotated, from an offset on; nil when it is not there.
func (r *Reader) openRest(path string, from int64) *os.File {
	file, err := r.open(path)
	if err != nil {
		return nil
	}
	if info, err := file.Stat(); err == nil && info.Size() >= from {
		if _, err = file.Seek(from, io.SeekStart); err == nil {
			return file
		}
	}
	_ = file.Close()
	return nil
}
