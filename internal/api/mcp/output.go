package mcp

import (
	"bytes"
	"fmt"
	"time"

	"agentvm/internal/api/agenttool"
	"agentvm/internal/storage/journal"
	"agentvm/vm"
)

// What a result has of a command's output or of a file, in bytes as JSON writes them, so that text of a guest is not longer in a result than it
// seems. Clients take at most 25,000 tokens or 50,000 characters of a result; a token is seldom less than two bytes.
const (
	defaultOutput = 16_000
	maxOutput     = 40_000
	minOutput     = 64 // a few characters of whatever kind
)

// budget is how many bytes a result may have when the client asks for n.
func budget(n int) (int, error) {
	switch {
	case n == 0:
		return defaultOutput, nil
	case n < minOutput || n > maxOutput:
		return 0, fmt.Errorf("max_output %d: want %d to %d bytes", n, minOutput, maxOutput)
	}
	return n, nil
}

// processOutput is what exec and process return.
type processOutput struct {
	VM       string  `json:"vm"`
	Process  string  `json:"process,omitempty" jsonschema:"id for the tool process, while the command runs or when there is more output than this"`
	Running  bool    `json:"running"`
	ExitCode *int    `json:"exit_code,omitempty" jsonschema:"128+N after signal N; missing while it runs"`
	Signal   int     `json:"signal,omitempty"`
	TimedOut bool    `json:"timed_out,omitempty" jsonschema:"it was ended because timeout_seconds had passed"`
	Stdout   string  `json:"stdout"`
	Stderr   string  `json:"stderr"`
	From     uint64  `json:"from,omitempty" jsonschema:"where this output begins, in bytes of both streams"`
	Next     uint64  `json:"next" jsonschema:"where to continue reading"`
	Total    uint64  `json:"bytes_total" jsonschema:"what it has written so far"`
	Omitted  *gap    `json:"omitted,omitempty" jsonschema:"what is left out of the middle: read it by process, action read"`
	Lost     uint64  `json:"bytes_lost,omitempty" jsonschema:"bytes that are no longer kept"`
	Seconds  float64 `json:"seconds" jsonschema:"since it was started"`
	Error    string  `json:"error,omitempty" jsonschema:"why it is not known how it has ended"`

	text []byte // both streams as they were written
}

// gap is a range of bytes of both streams: From is in it, To is not.
type gap struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// add adds output at the end.
func (o *processOutput) add(p agenttool.Piece) {
	for _, c := range p.Chunks {
		valid := string(bytes.ToValidUTF8(c.Data, []byte("\uFFFD")))
		if c.Stream == journal.Stderr {
			o.Stderr += valid
		} else {
			o.Stdout += valid
		}
		o.text = append(o.text, valid...)
	}
	o.Lost += p.Lost
	o.Next = uint64(p.Next)
}

// omit notes that what is between two pieces is left out.
func (o *processOutput) omit(from, to vm.Cursor) {
	o.Omitted = &gap{uint64(from), uint64(to)}
	mark := fmt.Sprintf("\n[... %d bytes left out: process read from %d ...]\n", to-from, from)
	if o.Stdout != "" || o.Stderr == "" {
		o.Stdout += mark
	} else {
		o.Stderr += mark
	}
	o.text = append(o.text, mark...)
}

// finish sets how the job has ended, or that it runs.
func (o *processOutput) finish(end *vm.JobEnd, err error, since time.Duration) {
	o.Seconds = float64(since.Milliseconds()) / 1000
	if o.Running = end == nil; o.Running {
		return
	}
	if o.Error = end.Error; o.Error == "" && err != nil {
		o.Error = err.Error()
	}
	o.Signal, o.TimedOut = end.Signal, end.TimedOut
	if o.Error == "" {
		o.ExitCode = &end.Code
	}
}

// String is the output for clients that show no structured content. What the guest does not say comes first, where it cannot be imitated.
func (o *processOutput) String() string {
	state := "running as process " + o.Process
	switch {
	case o.Error != "":
		state = "ended, it is not known how: " + o.Error
	case o.TimedOut:
		state = "ended by its timeout"
	case o.Signal != 0:
		state = fmt.Sprintf("ended by signal %d", o.Signal)
	case o.ExitCode != nil:
		state = fmt.Sprintf("exit code %d", *o.ExitCode)
	}
	state = fmt.Sprintf("[%s after %.1f s", state, o.Seconds)
	if o.Process != "" {
		state += fmt.Sprintf("; process %s, %d bytes of output, next %d", o.Process, o.Total, o.Next)
	}
	if o.Lost > 0 {
		state += fmt.Sprintf(", %d no longer kept", o.Lost)
	}
	return state + "]\n" + string(o.text)
}
