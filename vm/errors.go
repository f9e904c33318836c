package vm

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"agentvm/internal/machine"
)

// ErrStopped is returned for commands that were running, or are started, when the VM has been stopped by Stop or Close.
var ErrStopped = errors.New("the VM has been stopped")

// ErrShellEnded is returned by a Shell whose process in the guest is gone; Restart starts a new one.
var ErrShellEnded = errors.New("the shell has ended")

// Reason is how a guest ended by itself.
type Reason string

// Reasons.
const (
	PoweredOff Reason = "powered itself off"
	Rebooted   Reason = "rebooted itself" // a VM does not start again
	Panicked   Reason = "had a kernel panic"
	Failed     Reason = "reported a failure"
	Lost       Reason = "no longer answers" // it runs, but its supervisor is gone
	Broken     Reason = "broke its machine" // the emulator failed: a bug of this program
	Overran    Reason = "cannot be stopped" // see OverrunError: a bug of this program
)

// GuestError says that the guest ended by itself, and how.
type GuestError struct {
	Reason Reason
	// Console is the end of what the kernel printed, at most 64 KiB. The guest chose them: they may hold
	// anything.
	Console []byte
	// Err is the emulator's error, if there is one.
	Err error
}

// consoleLines is how many lines of the console an error shows.
const consoleLines = 12

// Error names the reason and shows the console's last lines, with what a terminal would interpret replaced.
func (e *GuestError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the guest %s", e.Reason)
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	text := readable(e.Console, consoleLines)
	if text == "" {
		b.WriteString(" (its console is empty)")
		return b.String()
	}
	b.WriteString("; its console ends with")
	for line := range strings.SplitSeq(text, "\n") {
		b.WriteString("\n  | ")
		b.WriteString(line)
	}
	return b.String()
}

// Unwrap returns Err.
func (e *GuestError) Unwrap() error { return e.Err }

// explain returns how the machine ended as an error.
func explain(exit machine.Exit, err error, console []byte) *GuestError {
	e := &GuestError{Console: console, Err: err}
	switch {
	case err != nil:
		e.Reason = Broken
	case exit.Reason == machine.PowerOff:
		e.Reason = PoweredOff
	case bytes.Contains(console, []byte(panicWords)):
		e.Reason = Panicked
	case exit.Reason == machine.Reboot:
		e.Reason = Rebooted
	default:
		e.Reason, e.Err = Failed, fmt.Errorf("code %d", exit.Code)
	}
	return e
}
