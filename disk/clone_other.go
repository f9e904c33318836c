//go:build !linux && !darwin

package disk

import (
	"errors"
	"os"
)

// reflink is for systems whose file systems mostly can.
func reflink(*os.File, string) error { return errors.ErrUnsupported }
