//go:build !linux

package watchdog

import (
	"errors"
	"syscall"
	"time"
)

// Signal is zero, because there is no watchdog here.
const Signal = syscall.Signal(0)

type timerID struct{}

func create() (timerID, error)          { return timerID{}, errors.ErrUnsupported }
func (timerID) set(time.Duration) error { return nil }
func (timerID) remove() error           { return nil }
