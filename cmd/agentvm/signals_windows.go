package main

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

// forwarded are the signals that reach the command: Windows has Ctrl-C, and the end of the session as SIGTERM.
var forwarded = []os.Signal{os.Interrupt, syscall.SIGTERM}

// signalNumber is a signal's number on Linux.
func signalNumber(s os.Signal) int {
	if s == syscall.SIGTERM {
		return 15
	}
	return signalInterrupt
}

// ignoreBrokenPipes has nothing to do: writing to a pipe without a reader is an error anyway.
func ignoreBrokenPipes() {}

func isBrokenPipe(err error) bool {
	return errors.Is(err, windows.ERROR_BROKEN_PIPE) || errors.Is(err, windows.ERROR_NO_DATA)
}
