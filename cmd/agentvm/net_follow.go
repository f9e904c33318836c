package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"agentvm/internal/host/tail"
)

// followPause is how often a file that is being followed is looked at.
const followPause = 200 * time.Millisecond

// readLines gives each line of a file to use, without its end. With more it then waits for further lines, until ctx
// ends or more says that none will come. A file that has become shorter is read from its beginning again, after the rest of
// what was there, where that is kept under the same name with ".1".
func readLines(ctx context.Context, path string, more func() bool, use func(line []byte) error) error {
	r, err := tail.Open(path, func(path string) (*os.File, error) { return openHostFile(path, os.O_RDONLY) })
	if err != nil {
		return err
	}
	defer r.Close()
	last := more == nil
	for {
		line, err := r.Next(last)
		if err == nil {
			err = use(line)
			if err != nil {
				return err
			}
			continue
		}
		moved := false
		if errors.Is(err, io.EOF) {
			moved, err = r.Advance()
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
