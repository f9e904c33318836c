package main

import (
	"errors"
	"os"
	"os/exec"
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

// executeInstead executes another program and ends with its exit code: Windows has no other way.
func executeInstead(path string, args []string) error {
	child := exec.Command(path, args[1:]...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := child.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		os.Exit(ended.ExitCode())
	}
	return err
}
