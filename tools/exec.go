package tools

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"agentvm/client"
	"agentvm/internal/api/agenttool"
	"agentvm/vm"
)

// Exec has OpenAI's tools exec_command and write_stdin: commands that are left running after a while, as sessions, and are written to and read on by
// their numbers.
type Exec struct {
	v client.AnyVM
	o Options

	mu       sync.Mutex
	last     int
	sessions map[int]*execSession // nil once closed
}

func newExec(v client.AnyVM, o Options) *Exec {
	return &Exec{v: v, o: o, sessions: map[int]*execSession{}}
}

// ExecCommandInput is the input of exec_command.
type ExecCommandInput struct {
	Cmd             string `json:"cmd"` // shell source
	Workdir         string `json:"workdir,omitempty"`
	Shell           string `json:"shell,omitempty"` // default: /bin/sh
	Login           *bool  `json:"login,omitempty"` // whether it is a login shell; default: true
	TTY             bool   `json:"tty,omitempty"`   // gives it a terminal, and with that an input
	YieldTimeMillis *int64 `json:"yield_time_ms,omitempty"`
	MaxOutputTokens *int   `json:"max_output_tokens,omitempty"`
}

// WriteStdinInput is the input of write_stdin. Without Chars it only waits and reads.
type WriteStdinInput struct {
	SessionID       int    `json:"session_id"`
	Chars           string `json:"chars,omitempty"`
	YieldTimeMillis *int64 `json:"yield_time_ms,omitempty"`
	MaxOutputTokens *int   `json:"max_output_tokens,omitempty"`
}

// JSON schemas of the inputs, for the definitions of the tools that a model is given.
var (
	ExecCommandSchema = json.RawMessage(`{"type":"object","required":["cmd"],"additionalProperties":false,"properties":{` +
		`"cmd":{"type":"string","description":"shell source"},"workdir":{"type":"string"},"shell":{"type":"string","description":"default /bin/sh"},` +
		`"login":{"type":"boolean","description":"default true"},"tty":{"type":"boolean","description":"a terminal, whose input write_stdin writes; default false"},` +
		`"yield_time_ms":{"type":"integer","description":"leave the command running after so long; default 10000"},"max_output_tokens":{"type":"integer"}}}`)
	WriteStdinSchema = json.RawMessage(`{"type":"object","required":["session_id"],"additionalProperties":false,"properties":{` +
		`"session_id":{"type":"integer"},"chars":{"type":"string","description":"default none: wait and read on"},` +
		`"yield_time_ms":{"type":"integer","description":"default 250"},"max_output_tokens":{"type":"integer"}}}`)
)

// ExecResult is a result of both tools.
type ExecResult struct {
	ChunkID            string  `json:"chunk_id"` // of this result
	WallTimeSeconds    float64 `json:"wall_time_seconds"`
	ExitCode           *int    `json:"exit_code,omitempty"`  // when it has ended
	SessionID          *int    `json:"session_id,omitempty"` // while it runs
	OriginalTokenCount int     `json:"original_token_count"` // of the output, before its middle was left out
	Output             string  `json:"output"`               // since the result before
}

// String is the result as models of OpenAI are used to read it.
func (r *ExecResult) String() string {
	state := "Process has ended, it is not known how"
	if r.ExitCode != nil {
		state = fmt.Sprintf("Process exited with code %d", *r.ExitCode)
	} else if r.SessionID != nil {
		state = fmt.Sprintf("Process running with session ID %d", *r.SessionID)
	}
	return fmt.Sprintf("Chunk ID: %s\nWall time: %.4f seconds\n%s\nOriginal token count: %d\nOutput:\n%s", r.ChunkID, r.WallTimeSeconds, state, r.OriginalTokenCount, r.Output)
}

func execText(r *ExecResult, err error) (Result, error) {
	if err != nil {
		return Result{}, err
	}
	return Result{Text: r.String()}, nil
}

// execSession is a command that runs, or ran when it was last read.
type execSession struct {
	id   int
	job  vm.Job
	tty  bool
	turn chan struct{} // holds one value while no reader runs
	next vm.Cursor
}

const (
	defaultExecYield  = 10 * time.Second
	defaultWriteYield = 250 * time.Millisecond
	maxExecYield      = 5 * time.Minute
	defaultMaxTokens  = 10_000
	maxMaxTokens      = 250_000
	bytesPerToken     = 4 // about, in English and in source code
	// maxSessions bounds the commands of a conversation that run.
	maxSessions = 64
)

func execBounds(yield *int64, standard time.Duration, tokens *int) (time.Duration, int, error) {
	wait, limit := standard, defaultMaxTokens
	if yield != nil {
		wait = min(time.Duration(max(*yield, 0)), maxExecYield/time.Millisecond) * time.Millisecond
	}
	if tokens != nil {
		if limit = min(*tokens, maxMaxTokens); limit < 1 {
			return 0, 0, fmt.Errorf("max_output_tokens %d: want at least 1", *tokens)
		}
	}
	return wait, max(limit*bytesPerToken, 64), nil
}

// Command starts a command, and returns when it has ended or yield_time_ms have passed. When ctx ends before that, the command is killed.
func (e *Exec) Command(ctx context.Context, in ExecCommandInput) (*ExecResult, error) {
	wait, limit, err := execBounds(in.YieldTimeMillis, defaultExecYield, in.MaxOutputTokens)
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(in.Cmd) == "" {
		return nil, errors.New("cmd is empty")
	}
	command := vm.Command{Args: []string{"/bin/sh", "-lc", in.Cmd}, Dir: in.Workdir, User: e.o.User, Env: e.o.Env}
	if in.Shell != "" {
		command.Args[0] = in.Shell
	}
	if in.Login != nil && !*in.Login {
		command.Args[1] = "-c"
	}
	if command.Dir == "" {
		command.Dir = e.o.Dir
	}
	if in.TTY {
		command.Terminal = &vm.Size{Columns: 80, Rows: 24}
	}
	s := &execSession{tty: in.TTY, turn: make(chan struct{}, 1)}
	e.mu.Lock()
	switch {
	case e.sessions == nil:
		err = errors.New("the tools are closed")
	case len(e.sessions) == maxSessions:
		err = fmt.Errorf("%d commands run already: let one end", maxSessions)
	default:
		e.last++
		s.id = e.last
		e.sessions[s.id] = s // it takes the place, and its turn comes when it has been started
	}
	e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	defer func() { s.turn <- struct{}{} }()
	began := time.Now()
	if s.job, err = e.v.StartJob(ctx, command, vm.JobOptions{NoInput: !in.TTY, Label: ExecCommandName}); err != nil {
		e.forget(s)
		return nil, err
	}
	r, err := e.read(ctx, s, began, wait, limit)
	if err != nil {
		agenttool.Kill(ctx, s.job)
		s.job = nil
		e.forget(s)
	}
	return r, err
}

// WriteStdin writes to a command that runs, and returns what it has written since, when it has ended or yield_time_ms have passed.
func (e *Exec) WriteStdin(ctx context.Context, in WriteStdinInput) (*ExecResult, error) {
	wait, limit, err := execBounds(in.YieldTimeMillis, defaultWriteYield, in.MaxOutputTokens)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	s := e.sessions[in.SessionID]
	e.mu.Unlock()
	if s == nil {
		return nil, fmt.Errorf("session %d: there is none: it has ended, and its result said so", in.SessionID)
	}
	began := time.Now()
	select {
	case <-s.turn:
		defer func() { s.turn <- struct{}{} }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.job == nil {
		return nil, fmt.Errorf("session %d has ended", in.SessionID)
	}
	if in.Chars != "" {
		if !s.tty {
			return nil, fmt.Errorf("session %d has no input: start the command with tty", in.SessionID)
		}
		writing, cancel := context.WithTimeout(ctx, max(wait, time.Second))
		err := s.job.Input(writing, []byte(in.Chars), false)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("session %d does not read its input: it is not known how much it has taken", in.SessionID)
		}
		if err != nil && !errors.Is(err, syscall.EPIPE) { // the end shows in what is read
			return nil, err
		}
	}
	return e.read(ctx, s, began, wait, limit)
}

// read reads a session whose turn the caller has, and forgets it when it has ended.
func (e *Exec) read(ctx context.Context, s *execSession, began time.Time, yield time.Duration, limit int) (*ExecResult, error) {
	wait, cancel := context.WithTimeout(ctx, yield)
	defer cancel()
	out, err := agenttool.Await(ctx, wait, s.job, s.next, limit)
	if err != nil {
		return nil, err
	}
	var chunk [3]byte
	rand.Read(chunk[:])
	r := &ExecResult{ChunkID: hex.EncodeToString(chunk[:]), Output: out.Head.Text()}
	if out.Tail != nil {
		if n := int(out.Tail.From - out.Head.Next); n > 0 {
			r.Output += leftOut(n)
		}
		r.Output += out.Tail.Text()
	}
	r.OriginalTokenCount = int(max(out.Total, s.next)-s.next+bytesPerToken-1) / bytesPerToken
	s.next = out.Next()
	if out.End == nil {
		r.SessionID = &s.id
	} else {
		if out.Err == nil && out.End.Error == "" {
			r.ExitCode = &out.End.Code
		}
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), agenttool.KillTime)
		_, _ = s.job.Remove(late), s.job.Close()
		cancel()
		s.job = nil
		e.forget(s)
	}
	r.WallTimeSeconds = time.Since(began).Seconds()
	return r, nil
}

func (e *Exec) forget(s *execSession) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.sessions, s.id)
}

// Close kills the commands that have been left running. Calls must have returned.
func (e *Exec) Close() error {
	e.mu.Lock()
	list := e.sessions
	e.sessions = nil
	e.mu.Unlock()
	for _, s := range list {
		agenttool.Kill(context.Background(), s.job)
	}
	return nil
}
