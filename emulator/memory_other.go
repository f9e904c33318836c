//go:build !unix

package emulator

import (
	"errors"
	"os"
)

const canMap = false // images are copied

// reserve relies on Go taking large allocations fresh and zeroed from the operating system, untouched.
func reserve(size uint64) ([]byte, error) { return make([]byte, size), nil }

func release([]byte) {}

// blank writes only where something is, so that the rest stays untouched.
func blank(part []byte) error {
	for i := range part {
		if part[i] != 0 {
			part[i] = 0
		}
	}
	return nil
}

func mapFile([]byte, *os.File, int64) error { return errors.ErrUnsupported }
