package vm

import "time"

// Result is how a command ended and what it wrote.
type Result struct {
	// Stdout and Stderr are what the command wrote to streams that had no writer, byte for byte; both streams are
	// separate unless the command had a terminal.
	Stdout, Stderr []byte
	// StdoutTruncated and StderrTruncated say what is missing when the command wrote more than was to be kept.
	StdoutTruncated, StderrTruncated Truncation
	// ExitCode is 0 to 255; 126 and 127 when the command could not be executed or found, 128+Signal after a signal.
	ExitCode int
	// Signal is the Linux number of the signal that ended the command, or 0.
	Signal int
	// TimedOut says that the command was ended because its Timeout had passed.
	TimedOut bool
	// ShellEnded says that the Shell which ran the command is gone, see Shell.Restart.
	ShellEnded bool
	// Duration is the time from the request to the end, on the host.
	Duration time.Duration
}
