package tools

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentvm/client"
	"agentvm/internal/api/agenttool"
	"agentvm/internal/work/headtail"
	"agentvm/vm"
)

// Bash is Anthropic's tool bash: a session of a shell that keeps its directory, variables, functions and programs in the background from call to call.
// The shell is bash where the VM has it, or else /bin/sh. A command gets no standard input, and its two streams are one.
type Bash struct {
	v    client.AnyVM
	o    Options
	turn chan struct{} // holds one value while no call runs
	now  *session      // nil before the first call, and after a restart
}

func newBash(v client.AnyVM, o Options) *Bash {
	b := &Bash{v: v, o: o, turn: make(chan struct{}, 1)}
	b.turn <- struct{}{}
	return b
}

// BashInput is the input of a call: a command, or Restart.
type BashInput struct {
	Command string `json:"command,omitempty"`
	Restart bool   `json:"restart,omitempty"`
}

// Call runs a command in the session, or replaces the session by a new one. After a command that took too long, or ended the shell, only a restart
// helps, as with Anthropic's own. Calls wait for each other. The error is ctx's; the session has then ended.
func (b *Bash) Call(ctx context.Context, in BashInput) (Result, error) {
	select {
	case <-b.turn:
		defer func() { b.turn <- struct{}{} }()
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
	switch {
	case in.Restart:
		if err := b.end(); err != nil {
			return Result{}, err
		}
		return Result{Text: "the shell has been restarted"}, nil
	case strings.TrimSpace(in.Command) == "" || strings.ContainsRune(in.Command, 0):
		return mistake("command: want shell source without NUL, or restart"), nil
	case b.now != nil && b.now.dead != "":
		return mistake("%s: call with restart first", b.now.dead), nil
	}
	if b.now == nil {
		var err error
		if b.now, err = b.begin(ctx); err != nil {
			return Result{}, err
		}
	}
	return b.now.run(ctx, in.Command, b.o)
}

// Close ends the session and all that runs in it. What a shell that has ended by itself has left in the background runs on.
func (b *Bash) Close() error {
	<-b.turn
	defer func() { b.turn <- struct{}{} }()
	return b.end()
}

func (b *Bash) end() error {
	s := b.now
	if b.now = nil; s == nil {
		return nil
	}
	return s.end()
}

// session is a shell that runs one command after another.
type session struct {
	process vm.Process
	input   *io.PipeWriter
	output  *sessionOutput
	dead    string // why the shell runs no more commands
}

func (b *Bash) begin(ctx context.Context) (*session, error) {
	r, w := io.Pipe()
	s := &session{input: w, output: &sessionOutput{kept: headtail.New(b.o.MaxOutput), limit: b.o.MaxOutput}}
	command := vm.Command{
		Line: "exec 2>&1; command -v bash >/dev/null && exec bash; exec /bin/sh", Dir: b.o.Dir, User: b.o.User, Env: b.o.Env, Stdin: r, Stdout: s.output, Stderr: io.Discard,
	}
	var err error
	if s.process, err = b.v.Start(ctx, command); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return s, nil
}

// end kills the shell and all that it has started.
func (s *session) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), agenttool.KillTime)
	defer cancel()
	err := s.process.Kill(ctx)
	if err == nil {
		_, err = s.process.Wait(ctx)
	}
	return errors.Join(err, s.input.Close())
}

// run runs a command. The shell says by a mark, of which the command knows nothing, that it has ended and how.
func (s *session) run(ctx context.Context, command string, o Options) (Result, error) {
	var random [16]byte
	rand.Read(random[:])
	mark := hex.EncodeToString(random[:])
	code := s.output.expect("\n" + mark + " ")
	// Without the word command a mistake in the source would end the shell.
	source := fmt.Sprintf("command eval '%s' </dev/null\nprintf '\\n%%s %%d\\n' %s $?\n", strings.ReplaceAll(command, "'", `'\''`), mark)
	writing := make(chan struct{})
	go func() { // the pipe is closed with the session
		defer close(writing)
		_, _ = io.WriteString(s.input, source)
	}()
	timer := time.NewTimer(o.Timeout)
	defer timer.Stop()
	select {
	case n := <-code:
		<-writing
		text := s.output.take()
		if n != 0 {
			text = lines(text) + fmt.Sprintf("[exit code %d]", n)
		}
		return Result{Text: text}, nil
	case <-s.process.Done():
		s.dead = "the shell has ended"
		if r, err := s.process.Wait(ctx); err == nil {
			s.dead = fmt.Sprintf("the shell has ended with exit code %d", r.ExitCode)
		}
	case <-timer.C:
		s.dead = fmt.Sprintf("the command was killed, with the shell, because it took more than %g seconds", o.Timeout.Seconds())
	case <-ctx.Done():
		s.dead = "the shell was killed, because the call before was cancelled"
		return Result{}, errors.Join(ctx.Err(), s.end())
	}
	text := s.output.take()
	if err := s.end(); err != nil {
		return Result{}, err
	}
	return mistake("%s%s: call with restart to go on", lines(text), s.dead), nil
}

// sessionOutput receives what a shell writes, and finds the mark in it.
type sessionOutput struct {
	mu      sync.Mutex
	limit   int
	kept    *headtail.Buffer
	pending []byte // what may be the beginning of the mark
	mark    []byte // nil: none is expected
	code    chan int
}

// maxCode is how long the exit code behind the mark is at most, with the end of its line.
const maxCode = 12

// expect says which mark ends the next command, and returns where its exit code comes.
func (o *sessionOutput) expect(mark string) <-chan int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mark, o.code = []byte(mark), make(chan int, 1)
	return o.code
}

// take returns what has been written before the mark, or so far.
func (o *sessionOutput) take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mark != nil { // it has not come
		_, _ = o.kept.Write(o.pending)
		o.pending, o.mark = nil, nil
	}
	b, gap := o.kept.Take()
	o.kept = headtail.New(o.limit)
	text := string(b)
	if gap.Dropped > 0 {
		text = text[:gap.Offset] + leftOut(int(gap.Dropped)) + text[gap.Offset:]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// Write implements io.Writer.
func (o *sessionOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending = append(o.pending, p...)
	if o.mark != nil {
		if before, after, found := bytes.Cut(o.pending, o.mark); found {
			digits, rest, whole := bytes.Cut(after, []byte("\n"))
			if !whole && len(after) < maxCode {
				return len(p), nil
			}
			n, err := strconv.Atoi(string(digits))
			if err != nil {
				n = -1 // a program has found the mark in the shell's memory, and deceives only its own model
			}
			_, _ = o.kept.Write(before)
			o.pending, o.mark = bytes.Clone(rest), nil
			o.code <- n
		}
	}
	keep := 0
	if o.mark != nil {
		keep = min(len(o.pending), len(o.mark)-1)
	} else if len(o.code) > 0 {
		return len(p), nil // it belongs to the next command
	}
	_, _ = o.kept.Write(o.pending[:len(o.pending)-keep])
	o.pending = append(o.pending[:0], o.pending[len(o.pending)-keep:]...)
	return len(p), nil
}
