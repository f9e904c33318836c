package main

import (
	"errors"
	"unicode/utf8"

	"agentvm/vm"
)

// jsonResult is what exec --json prints. Output that is not UTF-8 is in base64, under the other name.
type jsonResult struct {
	ExitCode        int            `json:"exitCode"`
	Signal          int            `json:"signal,omitempty"`
	TimedOut        bool           `json:"timedOut,omitempty"`
	DurationMillis  int64          `json:"durationMillis"`
	Confined        bool           `json:"confined,omitempty"` // the process of a VM without a name
	Stdout          *string        `json:"stdout,omitempty"`
	StdoutBase64    []byte         `json:"stdoutBase64,omitempty"`
	StdoutTruncated *vm.Truncation `json:"stdoutTruncated,omitempty"`
	Stderr          *string        `json:"stderr,omitempty"`
	StderrBase64    []byte         `json:"stderrBase64,omitempty"`
	StderrTruncated *vm.Truncation `json:"stderrTruncated,omitempty"`
	Denied          []denial       `json:"denied,omitempty"`
	Error           string         `json:"error,omitempty"`
}

// printResult prints how a command ended, or why it could not be run, and returns the exit code for it.
func (c *cli) printResult(r *vm.Result, denied denials, err error) error {
	var out jsonResult
	code := error(nil)
	if r != nil {
		out = encodeResult(r)
		code = status(r)
		if r.TimedOut {
			out.ExitCode = exitTimeout // what this process exits with; the signal says how the command ended
		}
	}
	out.Denied, out.Confined = denied.list, c.confined
	if err != nil {
		out.Error, out.ExitCode = err.Error(), exitOwnFailure
		code = exitStatus(exitOwnFailure)
		var known exitStatus
		if errors.As(err, &known) {
			out.ExitCode, code = int(known), known
		}
	}
	if err := printJSON(c.stdout, out); err != nil {
		return err
	}
	return code
}

func encodeResult(r *vm.Result) jsonResult {
	out := jsonResult{
		ExitCode: r.ExitCode, Signal: r.Signal, TimedOut: r.TimedOut, DurationMillis: r.Duration.Milliseconds(),
		StdoutTruncated: nonZero(r.StdoutTruncated), StderrTruncated: nonZero(r.StderrTruncated),
	}
	out.Stdout, out.StdoutBase64 = encodeOutput(r.Stdout)
	out.Stderr, out.StderrBase64 = encodeOutput(r.Stderr)
	return out
}

func nonZero(t vm.Truncation) *vm.Truncation {
	if t == (vm.Truncation{}) {
		return nil
	}
	return &t
}

func encodeOutput(b []byte) (text *string, base64 []byte) {
	if !utf8.Valid(b) {
		return nil, b
	}
	s := string(b)
	return &s, nil
}
