// Package agenttool is the common part of the tools for agents, those of package tools and those of the Model Context Protocol: parts of outputs
// and files, short enough for a model to read, edits, and commands whose callers no longer wait.
package agenttool

import (
	"bytes"
	"context"
	"time"
	"unicode/utf8"

	"agentvm/internal/storage/journal"
	"agentvm/vm"
)

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

// Prefix returns how many bytes at the beginning of b cost at most limit, and what they cost.
func Prefix(b []byte, limit int) (n, spent int) {
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

// Piece is a part of a job's output.
type Piece struct {
	Chunks     []journal.Chunk // never empty ones
	From, Next vm.Cursor
	Lost       uint64 // bytes at its beginning that are no longer kept
	End        *vm.JobEnd
	Err        error // with End: why it is not known how the job has ended

	spent int // what it costs
}

// Read reads output from a place on, until it has cost limit, the job ends, or wait does. What is there already, up to a total, is read without
// regard to wait; the error is ctx's or the VM's.
func Read(ctx, wait context.Context, j vm.Job, from, total vm.Cursor, limit int) (Piece, error) {
	p := Piece{From: from, Next: from}
	for p.spent < limit {
		reading := wait
		if p.Next < total {
			reading = ctx
		}
		o, err := j.Output(reading, p.Next, limit-p.spent)
		if err != nil {
			if ctx.Err() == nil && reading.Err() != nil {
				return p, nil
			}
			return p, err
		}
		if p.Lost += o.Lost; len(p.Chunks) == 0 {
			p.From += vm.Cursor(o.Lost)
		}
		p.Next = o.Next
		for i, c := range o.Chunks {
			n, spent := Prefix(c.Data, limit-p.spent)
			p.spent += spent
			if n > 0 {
				p.Chunks = append(p.Chunks, journal.Chunk{Stream: c.Stream, Data: bytes.Clone(c.Data[:n])})
			}
			if n < len(c.Data) { // the rest does not fit
				p.Next -= vm.Cursor(len(c.Data) - n)
				for _, later := range o.Chunks[i+1:] {
					p.Next -= vm.Cursor(len(later.Data))
				}
				return p, nil
			}
		}
		if p.End, p.Err = o.End, o.Err; p.End != nil {
			return p, nil
		}
	}
	return p, nil
}

// cut drops what costs more than limit at the end.
func (p *Piece) cut(limit int) {
	p.spent = 0
	for i, c := range p.Chunks {
		n, spent := Prefix(c.Data, limit-p.spent)
		p.spent += spent
		if n == len(c.Data) {
			continue
		}
		for _, later := range p.Chunks[i:] {
			p.Next -= vm.Cursor(len(later.Data))
		}
		p.Next += vm.Cursor(n)
		p.Chunks[i].Data = c.Data[:n]
		p.Chunks = p.Chunks[:i+min(n, 1)]
		return
	}
}

// cutFront drops what costs more than limit at the beginning.
func (p *Piece) cutFront(limit int) {
	for i := len(p.Chunks) - 1; i >= 0; i-- {
		data := p.Chunks[i].Data
		at := suffix(data, limit)
		_, spent := Prefix(data[at:], limit)
		limit -= spent
		if at == 0 {
			continue
		}
		p.From = p.Next
		p.Chunks = p.Chunks[i:]
		if p.Chunks[0].Data = data[at:]; at == len(data) {
			p.Chunks = p.Chunks[1:]
		}
		for _, c := range p.Chunks {
			p.From -= vm.Cursor(len(c.Data))
		}
		return
	}
}

// HoldBack leaves an unfinished character at the end to the next read.
func (p *Piece) HoldBack() {
	if len(p.Chunks) == 0 || p.End != nil {
		return
	}
	last := &p.Chunks[len(p.Chunks)-1]
	for n := 1; n < min(utf8.UTFMax, len(last.Data)); n++ {
		if at := len(last.Data) - n; utf8.RuneStart(last.Data[at]) {
			if !utf8.FullRune(last.Data[at:]) {
				last.Data = last.Data[:at]
				p.Next -= vm.Cursor(n)
			}
			return
		}
	}
}

// Text is what both streams have written, in its order.
func (p *Piece) Text() string {
	var b bytes.Buffer
	for _, c := range p.Chunks {
		b.Write(bytes.ToValidUTF8(c.Data, []byte("\uFFFD")))
	}
	return b.String()
}

// Output is the beginning and the end of what a job has written from a place on.
type Output struct {
	Head  Piece
	Tail  *Piece    // nil when Head is all of it. Between Head.Next and Tail.From something may be left out
	Total vm.Cursor // what the job has written so far
	End   *vm.JobEnd
	Err   error // with End: why it is not known how the job has ended
}

// Next is where to read on.
func (o *Output) Next() vm.Cursor {
	if o.Tail != nil {
		return o.Tail.Next
	}
	return o.Head.Next
}

// Await waits for a job's end or for that of wait, and returns output from a place on that costs at most limit. The error is ctx's or the VM's.
func Await(ctx, wait context.Context, j vm.Job, from vm.Cursor, limit int) (Output, error) {
	head, err := Read(ctx, wait, j, from, 0, limit)
	if err != nil {
		return Output{}, err
	}
	out := Output{Head: head, End: head.End, Err: head.Err}
	if out.End == nil && wait.Err() == nil { // it is full: what follows is not needed until the end
		if e, err := j.Wait(wait); err == nil {
			out.End = &e
		} else if wait.Err() == nil {
			out.End, out.Err = &e, err
		}
	}
	if err := ctx.Err(); err != nil {
		return Output{}, err
	}
	info, err := j.Info(ctx)
	if err != nil {
		return Output{}, err
	}
	if out.End == nil && !info.Ended.IsZero() { // just now
		e, err := j.Wait(ctx)
		out.End, out.Err = &e, err
	}
	if out.Total = vm.Cursor(info.OutputBytes); out.Total <= head.Next {
		if out.End == nil {
			out.Head.HoldBack()
		}
		return out, nil
	}
	out.Head.cut(limit / 2)
	stopped, stop := context.WithCancel(ctx)
	stop()
	begin := max(out.Head.Next, out.Total-min(vm.Cursor(limit/2), out.Total))
	tail, err := Read(ctx, stopped, j, begin, out.Total, 6*limit) // no byte costs more than 6
	if err != nil {
		return Output{}, err
	}
	tail.cutFront(limit / 2)
	if tail.End = out.End; out.End == nil {
		tail.HoldBack()
	}
	out.Tail = &tail
	return out, nil
}

// KillTime is how long the guest may take to kill a command.
const KillTime = 10 * time.Second

// Kill kills a job whose call was cancelled, and forgets it.
func Kill(ctx context.Context, j vm.Job) {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), KillTime)
	defer cancel()
	if j.Kill(late) == nil {
		if _, err := j.Wait(late); err == nil {
			_, _ = j.Remove(late), j.Close()
		}
	}
}
