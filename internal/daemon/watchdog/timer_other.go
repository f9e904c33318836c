//go:build !linux

package watchdog

import (
	"errors"
	"syscall"
	"time"
)

// There is no watchdog here: Start fails.
const (
	Signal   = syscall.Signal(0)
	reminder = Signal
)

type timerID struct{}

func create(syscall.Signal) (timerID, error)         { return timerID{}, errors.ErrUnsupported }
func restoreDefault(syscall.Signal) error            { return errors.ErrUnsupported }
func (timerID) set(after, every time.Duration) error { return nil }
func (timerID) remove() error                        { return nil }
