package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// followPause is how often a file that is being followed is looked at.
	followPause = 200 * time.Millisecond
	// maxLogLine is the longest line in bytes that is read; what is longer was not written by agentvm.
	maxLogLine = 1 << 20
)

// readLines gives each line of a file to use, without its end. With more it then waits for further lines, until ctx
// ends or more says that none will come. A file that has become shorter is read from its beginning again, after the rest of
// what was there, where that is kept under the same name with ".1".
func readLines(ctx context.Context, path string, more func() bool, use func(line []byte) error) error {
	file, err := openHostFile(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	r := &lineReader{file: file, buffered: bufio.NewReaderSize(file, 64<<10)}
	defer r.close()
	last := more == nil
	for {
		line, err := r.next(last)
		if err == nil {
			err = use(line)
			if err != nil {
				return err
			}
			continue
		}
		moved := false
		if errors.Is(err, io.EOF) {
			moved, err = r.advance()
		}
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", path, err)
		case moved:
		case last:
			return nil
		case !more():
			last = true // what was written before the end is still to be read
		default:
			select {
			case <-time.After(followPause):
			case <-ctx.Done():
				return nil // the user has seen enough
			}
		}
	}
}

// lineReader reads lines of a file that may be growing.
type lineReader struct {
	file     *os.File
	buffered *bufio.Reader
	partial  []byte
	at       int64    // bytes read so far
	rest     *os.File // what was written before the file became shorter, while that is read; else nil
}

func (r *lineReader) close() {
	_ = r.file.Close()
	if r.rest != nil {
		_ = r.rest.Close()
	}
}

// next returns the next line, valid until the next call, or io.EOF. A last line without an end counts when last is set;
// otherwise it is kept until its rest has been written.
func (r *lineReader) next(last bool) ([]byte, error) {
	for {
		piece, err := r.buffered.ReadSlice('\n')
		r.at += int64(len(piece))
		r.partial = append(r.partial, piece...)
		if len(r.partial) > maxLogLine {
			return nil, fmt.Errorf("a line is longer than %d bytes: this is no log of agentvm", maxLogLine)
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
func (r *lineReader) take(n int) []byte {
	line := r.partial[:len(r.partial)-n]
	r.partial = r.partial[:0]
	return line
}

// advance continues at the end of what has been read: with the rest of a file that was cut off meanwhile, and after that with its new
// beginning. It says whether there is more to read.
func (r *lineReader) advance() (moved bool, err error) {
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
	if r.rest = openRest(r.file.Name()+".1", r.at); r.rest != nil {
		r.buffered.Reset(r.rest)
	} else {
		r.restart()
	}
	return true, nil
}

// restart reads the file from its beginning.
func (r *lineReader) restart() {
	r.at, r.partial = 0, r.partial[:0]
	r.buffered.Reset(r.file)
}

// openRest opens the file into which a log was rotated, from an offset on; nil when it is not there.
func openRest(path string, from int64) *os.File {
	file, err := openHostFile(path, os.O_RDONLY)
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
