package sshd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"agentvm/vm"
)

const (
	// maxEnv bounds the variables that a client sets, maxEnvBytes one of them.
	maxEnv      = 128
	maxEnvBytes = 32 << 10
	// maxSide bounds the characters of a terminal's side.
	maxSide = 1 << 15
)

// Requests of a session's channel (RFC 4254 section 6).
type (
	ptyRequest struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	windowChange struct{ Columns, Rows, Width, Height uint32 }
	envRequest   struct{ Name, Value string }
	textRequest  struct{ Text string } // exec, subsystem, signal
	exitStatus   struct{ Status uint32 }
	exitSignal   struct {
		Signal  string
		Core    bool
		Message string
		Lang    string
	}
)

// session is one session's channel.
type session struct {
	server  *Server
	user    string
	channel ssh.Channel
	ctx     context.Context // of the command
	cancel  context.CancelFunc
	running sync.WaitGroup

	env  []string
	size *vm.Size // nil: no terminal

	mu      sync.Mutex
	started bool
	process vm.Process // nil: none yet
}

func (s *Server) session(ctx context.Context, user string, c ssh.NewChannel) {
	channel, requests, err := c.Accept()
	if err != nil {
		return
	}
	one := &session{server: s, user: user, channel: channel}
	one.ctx, one.cancel = context.WithCancel(ctx)
	defer one.cancel()
	stop := context.AfterFunc(one.ctx, func() { _ = channel.Close() })
	for r := range requests {
		ok := one.request(r)
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
	}
	one.cancel() // the channel is closed: its command ends
	stop()
	_ = channel.Close()
	one.running.Wait()
}

// request does what one request asks, and reports whether it was done.
func (s *session) request(r *ssh.Request) bool {
	switch r.Type {
	case "pty-req":
		var p ptyRequest
		if ssh.Unmarshal(r.Payload, &p) != nil || s.started {
			return false
		}
		s.size = sizeOf(p.Columns, p.Rows)
		return s.setEnv("TERM", p.Term)
	case "env":
		var e envRequest
		return ssh.Unmarshal(r.Payload, &e) == nil && s.setEnv(e.Name, e.Value)
	case "window-change":
		var w windowChange
		if ssh.Unmarshal(r.Payload, &w) != nil {
			return false
		}
		if p := s.command(); p != nil {
			_ = p.Resize(s.ctx, *sizeOf(w.Columns, w.Rows))
		}
		return true
	case "signal":
		var name textRequest
		number, known := 0, false
		if ssh.Unmarshal(r.Payload, &name) == nil {
			number, known = signals[name.Text]
		}
		p := s.command()
		return known && p != nil && p.Signal(s.ctx, number) == nil
	case "shell":
		return s.start(vm.Command{Args: []string{"/bin/sh", "-l"}})
	case "exec":
		var line textRequest
		return ssh.Unmarshal(r.Payload, &line) == nil && s.start(vm.Command{Line: line.Text})
	case "subsystem":
		var name textRequest
		if ssh.Unmarshal(r.Payload, &name) != nil || name.Text != "sftp" || !s.begin() {
			return false
		}
		s.running.Go(func() { s.exit(s.server.serveFiles(s.ctx, s.channel)) })
		return true
	}
	return false // auth-agent-req@openssh.com, x11-req and what is not known
}

// sizeOf is a terminal's size. A client without a terminal of its own says 0.
func sizeOf(columns, rows uint32) *vm.Size {
	columns, rows = cmp.Or(columns, 80), cmp.Or(rows, 24)
	return &vm.Size{Columns: uint16(min(columns, maxSide)), Rows: uint16(min(rows, maxSide))}
}

func (s *session) setEnv(name, value string) bool {
	if s.started || name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) || len(s.env) >= maxEnv || len(name)+len(value) > maxEnvBytes {
		return false
	}
	s.env = append(s.env, name+"="+value)
	return true
}

// begin reports whether the session may start something: once.
func (s *session) begin() bool {
	first := !s.started
	s.started = true
	return first
}

func (s *session) command() vm.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// start starts a command, whose end ends the channel.
func (s *session) start(c vm.Command) bool {
	if !s.begin() {
		return false
	}
	c.Env, c.User, c.Terminal = s.env, s.user, s.size
	c.Stdin, c.Stdout, c.Stderr = s.channel, s.channel, s.channel.Stderr()
	if c.Line == "" && c.Args == nil {
		c.Line = ":"
	}
	p, err := s.server.config.VM.Start(s.ctx, c)
	if err != nil {
		fmt.Fprintf(s.channel.Stderr(), "agentvm: %v\r\n", err)
		s.running.Go(func() { s.exit(&vm.Result{ExitCode: 125}, nil) })
		return true
	}
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()
	s.running.Go(func() {
		result, err := p.Wait(s.ctx)
		if err != nil {
			_ = p.Kill(context.WithoutCancel(s.ctx))
		}
		s.exit(result, err)
	})
	return true
}

// exit tells the client how the command has ended, and closes the channel.
func (s *session) exit(result *vm.Result, err error) {
	defer s.channel.Close()
	_ = s.channel.CloseWrite()
	name, signalled := "", false
	if result != nil {
		name, signalled = nameOf(result.Signal)
	}
	switch {
	case err != nil && !errors.Is(err, io.EOF) || result == nil:
		_, _ = s.channel.SendRequest("exit-status", false, ssh.Marshal(exitStatus{125}))
	case signalled:
		_, _ = s.channel.SendRequest("exit-signal", false, ssh.Marshal(exitSignal{Signal: name}))
	default:
		_, _ = s.channel.SendRequest("exit-status", false, ssh.Marshal(exitStatus{uint32(result.ExitCode)})) //nolint:gosec // 0 to 255
	}
}

// signals are those that RFC 4254 section 6.10 names, by Linux's numbers.
var signals = map[string]int{
	"ABRT": 6, "ALRM": 14, "FPE": 8, "HUP": 1, "ILL": 4, "INT": 2, "KILL": 9, "PIPE": 13, "QUIT": 3, "SEGV": 11, "TERM": 15, "USR1": 10, "USR2": 12,
}

func nameOf(number int) (string, bool) {
	for name, n := range signals {
		if n == number {
			return name, true
		}
	}
	return "", false
}
