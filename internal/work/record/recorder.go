package record

import (
	"bytes"
	"cmp"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"agentvm/egress"
)

// DefaultLimit is how many bytes a recording has at most unless NewRecorder says otherwise.
const DefaultLimit = 64 << 20

// room is kept for the event that says that a recording is full.
const room = 256

// Recorder writes a recording. A nil one records nothing.
type Recorder struct {
	mu     sync.Mutex // also held while out is written to, which keeps the lines in the order of their times
	out    io.Writer
	start  time.Time
	left   int64 // bytes
	full   bool
	last   uint64 // the last command's number
	hidden []replacement
	err    error // the first of out
}

// replacement is a text that no recording has, and what it has in its place.
type replacement struct{ secret, placeholder string }

// NewRecorder makes a recorder that writes whole lines to w, limit bytes at most (0: DefaultLimit; at least 4 KiB): what comes later is left out, and
// the last line says so. The guest waits while w blocks. The caller closes w when all VMs that have the recorder are closed.
func NewRecorder(w io.Writer, limit int64) *Recorder {
	r := &Recorder{out: w, start: time.Now(), left: max(cmp.Or(limit, DefaultLimit), 4<<10)}
	r.write(header{"recording", version, r.start.UTC()})
	return r
}

// Err returns the first error of writing. After it nothing is written.
func (r *Recorder) Err() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Hide has a placeholder stand for a secret from now on, in every text that is recorded.
func (r *Recorder) Hide(secret, placeholder string) {
	if r == nil || secret == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The longest first: it may begin with another one.
	r.hidden = append(r.hidden, replacement{secret, placeholder})
	slices.SortStableFunc(r.hidden, func(a, b replacement) int { return len(b.secret) - len(a.secret) })
}

// replace returns text with the placeholders in place of secrets, and what is left at its end because a secret may begin there; nothing is
// left when final. The caller holds mu.
func (r *Recorder) replace(text []byte, final bool) (out, rest []byte) {
	if len(r.hidden) == 0 {
		return text, nil
	}
	for len(text) > 0 {
		n := 1
		with := text[:1]
		for _, h := range r.hidden {
			if text[0] != h.secret[0] {
				continue
			}
			if bytes.HasPrefix(text, []byte(h.secret)) {
				n, with = len(h.secret), []byte(h.placeholder)
				break
			}
			if !final && len(text) < len(h.secret) && strings.HasPrefix(h.secret, string(text)) {
				return out, slices.Clone(text)
			}
		}
		out, text = append(out, with...), text[n:]
	}
	return out, nil
}

// clean returns a text of at most limit bytes without secrets. The caller holds mu.
func (r *Recorder) clean(text string, limit int) string {
	b, _ := r.replace([]byte(text), true)
	return string(b[:min(len(b), limit)])
}

// event writes an event. The caller holds mu.
func (r *Recorder) event(e Event) {
	if r.full {
		return
	}
	e.At = time.Since(r.start).Microseconds()
	r.write(e)
}

// write writes a line. The caller holds mu, or is the only user.
func (r *Recorder) write(v any) {
	if r.err != nil {
		return
	}
	line, err := Encode(v)
	if err == nil && int64(len(line)) > r.left-room {
		r.full = true
		line, err = Encode(Event{At: time.Since(r.start).Microseconds(), Kind: Full})
	}
	if err == nil {
		r.left -= int64(len(line))
		_, err = r.out.Write(line)
	}
	r.err = err
}

// Network records what the policy decided, and calls next, which may be nil.
func (r *Recorder) Network(next func(egress.Event)) func(egress.Event) {
	if r == nil {
		return next
	}
	return func(e egress.Event) {
		kept := e
		r.mu.Lock()
		kept.Names = nil
		for _, name := range e.Names {
			kept.Names = append(kept.Names, r.clean(name, maxName))
		}
		for _, text := range []*string{&kept.Query, &kept.Answer, &kept.Rule, &kept.Message, &kept.Process} {
			*text = r.clean(*text, maxName)
		}
		r.event(Event{Kind: Network, Network: &kept})
		r.mu.Unlock()
		if next != nil {
			next(e)
		}
	}
}

// File records a change of a file by the API. err is nil when it succeeded.
func (r *Recorder) File(operation, path string, err error) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := Event{Kind: File, Operation: operation, Path: r.clean(path, maxName)}
	if err != nil {
		e.Error = r.clean(err.Error(), maxName)
	}
	r.event(e)
}

// Command is a command that is recorded. A nil one records nothing.
type Command struct {
	recorder *Recorder
	id       uint64
	pending  [2][]byte // of standard output and standard error: where a secret may begin
}

// Start records the start of a command as e describes it: Line or Args, Dir, User, Columns and Rows.
func (r *Recorder) Start(e Event) *Command {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	e.Kind, e.ID = Exec, r.last
	line, args, size := r.clean(e.Line, maxText), []string(nil), 0
	e.Cut = len(line) == maxText
	for _, a := range e.Args {
		a = r.clean(a, maxText-size)
		args, size = append(args, a), size+len(a)+16 // an empty one takes place, too
		if e.Cut = size >= maxText; e.Cut {
			break
		}
	}
	e.Line, e.Args, e.Dir, e.User = line, args, r.clean(e.Dir, maxName), r.clean(e.User, maxName)
	r.event(e)
	return &Command{recorder: r, id: e.ID}
}

// Tee returns a writer that passes everything on to w and records what w has taken, as output of a stream: 1 or 2.
func (c *Command) Tee(stream int, w io.Writer) io.Writer {
	if c == nil {
		return w
	}
	return &tee{c, stream, w}
}

type tee struct {
	command *Command
	stream  int
	w       io.Writer
}

func (t *tee) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	if n > 0 {
		t.command.output(t.stream, p[:min(n, len(p))], false)
	}
	return n, err
}

// output records output, or with final what is pending.
func (c *Command) output(stream int, p []byte, final bool) {
	r := c.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	pending := &c.pending[stream-1]
	text := p
	if len(*pending) > 0 {
		text = append(*pending, p...)
	}
	text, *pending = r.replace(text, final)
	for len(text) > 0 {
		n := min(len(text), maxOutput)
		for back := 0; n < len(text) && back < utf8.UTFMax && n > 1 && !utf8.RuneStart(text[n]); back++ {
			n-- // a character is not torn apart
		}
		e := Event{Kind: Output, ID: c.id, Stream: stream}
		if utf8.Valid(text[:n]) {
			e.Text = string(text[:n])
		} else {
			e.Base64 = text[:n]
		}
		r.event(e)
		text = text[n:]
	}
}

// End records how the command has ended, or err when that is not known.
func (c *Command) End(code, signal int, err error) {
	if c == nil {
		return
	}
	for stream := 1; stream <= 2; stream++ {
		c.output(stream, nil, true)
	}
	r := c.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	e := Event{Kind: End, ID: c.id, Code: code, Signal: signal}
	if err != nil {
		e = Event{Kind: End, ID: c.id, Error: r.clean(cmp.Or(err.Error(), "unknown"), maxName)}
	}
	r.event(e)
}
