//go:build unix

package main

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// forwarded are the signals that reach the command.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
}

// signalNumber is a signal's number on Linux; that of SIGUSR1 and SIGUSR2 is another on macOS.
func signalNumber(s os.Signal) int {
	switch s {
	case syscall.SIGHUP:
		return 1
	case syscall.SIGQUIT:
		return 3
	case syscall.SIGUSR1:
		return 10
	case syscall.SIGUSR2:
		return 12
	case syscall.SIGTERM:
		return 15
	default:
		return signalInterrupt
	}
}

// ignoreBrokenPipes makes writing to a pipe without a reader an error instead of the end of this process, which may have
// a terminal to put back.
func ignoreBrokenPipes() { signal.Ignore(syscall.SIGPIPE) }

func isBrokenPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }

// executeInstead makes this process another program.
func executeInstead(path string, args []string) error { return syscall.Exec(path, args, os.Environ()) }
