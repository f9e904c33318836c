package mcp

import (
	"bytes"
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"agentvm/internal/journal"
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

// cost is how many bytes the character at the beginning of b takes in JSON, and size how many it has in b.
func cost(b []byte) (cost, size int) {
	r, size := utf8.DecodeRune(b)
	switch {
	case r == utf8.RuneError && size <= 1:
		return 3, 1 // it is written as U+FFFD
	case r == '"' || r == '\\' || r == '\n' || r == '\r' || r == '\t':
		return 2, size
	case r < ' ':
		return 6, size
	}
	return size, size
}

// prefix returns how many bytes at the beginning of b cost at most limit, and what they cost.
func prefix(b []byte, limit int) (n, spent int) {
	for n < len(b) {
		c, size := cost(b[n:])
		if spent+c > limit {
			break
		}
		n, spent = n+size, spent+c
	}
	return n, spent
}

// suffix returns where the end of b begins that costs at most limit.
func suffix(b []byte, limit int) int {
	total := 0
	for i := 0; i < len(b); {
		c, size := cost(b[i:])
		total, i = total+c, i+size
	}
	at := 0
	for total > limit {
		c, size := cost(b[at:])
		total, at = total-c, at+size
	}
	return at
}

// piece is a part of a job's output.
type piece struct {
	chunks     []journal.Chunk // never empty ones
	from, next vm.Cursor
	spent      int    // what it costs
	lost       uint64 // bytes at its beginning that are no longer kept
	end        *vm.JobEnd
	err        error // with end: why it is not known how the job has ended
}

// readPiece reads output from a place on, until it has cost limit, the job ends, or wait does. What is there already, up to a total, is read without
// regard to wait; the error is ctx's or the VM's.
func readPiece(ctx, wait context.Context, j vm.Job, from, total vm.Cursor, limit int) (piece, error) {
	p := piece{from: from, next: from}
	for p.spent < limit {
		reading := wait
		if p.next < total {
			reading = ctx
		}
		o, err := j.Output(reading, p.next, limit-p.spent)
		if err != nil {
			if ctx.Err() == nil && reading.Err() != nil {
				return p, nil
			}
			return p, err
		}
		if p.lost += o.Lost; len(p.chunks) == 0 {
			p.from += vm.Cursor(o.Lost)
		}
		p.next = o.Next
		for i, c := range o.Chunks {
			n, spent := prefix(c.Data, limit-p.spent)
			p.spent += spent
			if n > 0 {
				p.chunks = append(p.chunks, journal.Chunk{Stream: c.Stream, Data: bytes.Clone(c.Data[:n])})
			}
			if n < len(c.Data) { // the rest does not fit
				p.next -= vm.Cursor(len(c.Data) - n)
				for _, later := range o.Chunks[i+1:] {
					p.next -= vm.Cursor(len(later.Data))
				}
				return p, nil
			}
		}
		if p.end, p.err = o.End, o.Err; p.end != nil {
			return p, nil
		}
	}
	return p, nil
}

// cut drops what costs more than limit at the end.
func (p *piece) cut(limit int) {
	p.spent = 0
	for i, c := range p.chunks {
		n, spent := prefix(c.Data, limit-p.spent)
		p.spent += spent
		if n == len(c.Data) {
			continue
		}
		for _, later := range p.chunks[i:] {
			p.next -= vm.Cursor(len(later.Data))
		}
		p.next += vm.Cursor(n)
		p.chunks[i].Data = c.Data[:n]
		p.chunks = p.chunks[:i+min(n, 1)]
		return
	}
}

// cutFront drops what costs more than limit at the beginning.
func (p *piece) cutFront(limit int) {
	for i := len(p.chunks) - 1; i >= 0; i-- {
		data := p.chunks[i].Data
		at := suffix(data, limit)
		_, spent := prefix(data[at:], limit)
		limit -= spent
		if at == 0 {
			continue
		}
		p.from = p.next
		p.chunks = p.chunks[i:]
		if p.chunks[0].Data = data[at:]; at == len(data) {
			p.chunks = p.chunks[1:]
		}
		for _, c := range p.chunks {
			p.from -= vm.Cursor(len(c.Data))
		}
		return
	}
}

// holdBack leaves an unfinished character at the end to the next read.
func (p *piece) holdBack() {
	if len(p.chunks) == 0 || p.end != nil {
		return
	}
	last := &p.chunks[len(p.chunks)-1]
	for n := 1; n < min(utf8.UTFMax, len(last.Data)); n++ {
		if at := len(last.Data) - n; utf8.RuneStart(last.Data[at]) {
			if !utf8.FullRune(last.Data[at:]) {
				last.Data = last.Data[:at]
				p.next -= vm.Cursor(n)
			}
			return
		}
	}
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
func (o *processOutput) add(p piece) {
	for _, c := range p.chunks {
		valid := string(bytes.ToValidUTF8(c.Data, []byte("\uFFFD")))
		if c.Stream == journal.Stderr {
			o.Stderr += valid
		} else {
			o.Stdout += valid
		}
		o.text = append(o.text, valid...)
	}
	o.Lost += p.lost
	o.Next = uint64(p.next)
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
