//go:build !linux

package disk

import (
	"errors"
	"os"
)

// syncData makes a file durable.
func syncData(file *os.File) error { return file.Sync() }

// punch exists only on Linux; elsewhere the caller writes zeros.
func punch(*os.File, int64, int64) error { return errors.ErrUnsupported }
