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

// readLines gives each line of a file to use, without its end. With follow it then waits for further lines, until ctx
// ends; a file that has become shorter is read from its beginning again.
func readLines(ctx context.Context, path string, follow bool, use func(line []byte) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	r := &lineReader{file: file, buffered: bufio.NewReaderSize(file, 64<<10)}
	for {
		line, err := r.next(!follow)
		switch {
		case err == nil:
			if err := use(line); err != nil {
				return err
			}
			continue
		case !errors.Is(err, io.EOF):
			return fmt.Errorf("%s: %w", path, err)
		case !follow:
			return nil
		}
		if err := r.wait(ctx); err != nil {
			if ctx.Err() != nil {
				return nil // somebody has seen enough
			}
			return fmt.Errorf("%s: %w", path, err)
		}
	}
}

// lineReader reads lines of a file that may be growing.
type lineReader struct {
	file     *os.File
	buffered *bufio.Reader
	partial  []byte
	at       int64 // bytes read so far
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

// wait returns after a moment, with the reader at the beginning of a file that was cut off.
func (r *lineReader) wait(ctx context.Context) error {
	select {
	case <-time.After(followPause):
	case <-ctx.Done():
		return ctx.Err()
	}
	info, err := r.file.Stat()
	if err != nil || info.Size() >= r.at {
		return err
	}
	r.at, r.partial = 0, r.partial[:0]
	_, err = r.file.Seek(0, io.SeekStart)
	r.buffered.Reset(r.file)
	return err
}
