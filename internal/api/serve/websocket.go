package serve

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"agentvm/vm"
)

// SocketCommand is the first message of a client of an exec WebSocket.
type SocketCommand struct {
	Command
	Input    bool      `json:"input,omitempty" jsonschema:"its input comes in the client's binary messages; default: stdin"`
	Terminal *Terminal `json:"terminal,omitempty" jsonschema:"run it in a terminal of this size, whose output is stdout"`
}

// Terminal is a terminal's size.
type Terminal struct {
	Columns uint16 `json:"columns"`
	Rows    uint16 `json:"rows"`
}

// SocketControl is what a client of an exec WebSocket sends in text messages after the first.
type SocketControl struct {
	End    bool      `json:"end,omitempty" jsonschema:"no more input follows"`
	Signal int       `json:"signal,omitempty" jsonschema:"the number in Linux of a signal to send, 1 to 64"`
	Resize *Terminal `json:"resize,omitempty"`
}

// SocketEnd is the last message of the server.
type SocketEnd struct {
	Exit  *Result  `json:"exit,omitempty"`
	Error *Problem `json:"error,omitempty"`
}

const (
	maxSockets = 256      // exec WebSockets at once
	maxMessage = 1 << 20  // bytes of a client's message after the first
	sentPiece  = 64 << 10 // bytes of output in a message
)

// The first byte of a binary message of the server says which stream the rest is.
const (
	socketStdout = 1
	socketStderr = 2
)

func (s *Server) socketRoutes() []route {
	return []route{{
		method: "GET", path: "/v1/vms/{vm}/exec/stream", status: http.StatusSwitchingProtocols, stream: true, serve: s.socket,
		summary: "Runs a command over a WebSocket. The first message is a SocketCommand, later text messages are SocketControls and binary ones standard " +
			"input; the server's binary messages are a byte, 1 for stdout and 2 for stderr, and output, and its last message is a SocketEnd",
		types: []any{SocketCommand{}, SocketControl{}, SocketEnd{}},
	}}
}

// socket runs a command over a WebSocket (RFC 6455).
func (s *Server) socket(w http.ResponseWriter, r *http.Request) {
	if s.sockets.open.Add(1) > maxSockets {
		s.sockets.open.Add(-1)
		WriteProblem(w, problemf(http.StatusServiceUnavailable, "%d WebSockets are open", maxSockets))
		return
	}
	defer s.sockets.open.Add(-1)
	s.sockets.running.Add(1) // the HTTP server does not wait for connections that are no longer its own
	defer s.sockets.running.Done()
	v, err := s.open(r)
	if err != nil {
		WriteProblem(w, err)
		return
	}
	defer v.Close() // which kills the command
	// It refuses pages of other origins.
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return // it has answered
	}
	ctx, cancel := context.WithCancel(r.Context())
	x := &execSocket{conn: c, cancel: cancel}
	defer x.parts.Wait()
	defer func() { _ = c.CloseNow() }()
	defer cancel()
	end := SocketEnd{}
	result, base, err := x.run(ctx, v)
	if err != nil {
		end.Error = problemOf(err)
	} else {
		out := resultOf(result, base)
		end.Exit = &out
	}
	text, err := json.Marshal(end)
	if err == nil {
		err = x.write(ctx, websocket.MessageText, text)
	}
	if err == nil {
		_ = c.Close(websocket.StatusNormalClosure, "")
	}
}

// starter is the part of a VM that a WebSocket needs.
type starter interface {
	Start(ctx context.Context, c vm.Command) (vm.Process, error)
}

// execSocket is one WebSocket with its command.
type execSocket struct {
	conn    *websocket.Conn
	cancel  context.CancelFunc
	parts   sync.WaitGroup
	waiting atomic.Bool // the program does not read its input, so that nothing of the client is read
}

// write sends a message that the client has a minute to take.
func (x *execSocket) write(ctx context.Context, kind websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	return x.conn.Write(ctx, kind, b)
}

// run runs the command of the first message to its end.
func (x *execSocket) run(ctx context.Context, v starter) (*vm.Result, bool, error) {
	in, command, err := x.first(ctx)
	if err != nil {
		return nil, false, err
	}
	command.Stdout, command.Stderr = socketWriter{x, ctx, socketStdout}, socketWriter{x, ctx, socketStderr}
	var input *io.PipeWriter
	if in.Input {
		command.Stdin, input = io.Pipe()
		defer input.Close()
	}
	if in.Terminal != nil {
		command.Terminal = &vm.Size{Columns: in.Terminal.Columns, Rows: in.Terminal.Rows}
	}
	p, err := v.Start(ctx, command)
	if err != nil {
		return nil, false, err
	}
	x.parts.Go(func() { x.receive(ctx, p, input) })
	x.parts.Go(func() { x.alive(ctx) })
	result, err := p.Wait(ctx)
	return result, in.Base64, err
}

// first reads and checks the first message.
func (x *execSocket) first(ctx context.Context) (in SocketCommand, out vm.Command, err error) {
	x.conn.SetReadLimit(maxBody)
	ctx, cancel := context.WithTimeout(ctx, bodyTime)
	defer cancel()
	kind, text, err := x.conn.Read(ctx)
	if err != nil {
		return in, out, err
	}
	if kind != websocket.MessageText {
		return in, out, invalid("the first message is no text: want a SocketCommand")
	}
	if err := strictJSON(text, &in); err != nil {
		return in, out, err
	}
	if in.Input && in.Stdin != "" {
		return in, out, invalid("input and stdin: want one of them")
	}
	x.conn.SetReadLimit(maxMessage)
	out, err = in.command()
	return in, out, err
}

// receive takes what the client sends after the first message. The client's end is the command's.
func (x *execSocket) receive(ctx context.Context, p vm.Process, input *io.PipeWriter) {
	defer x.cancel()
	for {
		kind, b, err := x.conn.Read(ctx)
		if err == nil {
			if kind == websocket.MessageBinary {
				err = x.input(input, b)
			} else {
				err = x.control(ctx, p, input, b)
			}
		}
		if err != nil {
			var problem *Problem
			if errors.As(err, &problem) {
				_ = x.conn.Close(websocket.StatusPolicyViolation, problem.Detail[:min(len(problem.Detail), 120)])
			}
			return
		}
	}
}

// input passes on input. What a program that does not read any more gets is dropped.
func (x *execSocket) input(input *io.PipeWriter, b []byte) error {
	if input == nil {
		return invalid("the first message does not say input: true")
	}
	x.waiting.Store(true)
	_, err := input.Write(b)
	x.waiting.Store(false)
	if errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

// control does what a text message says. Signals and sizes for a program that has ended are none.
func (x *execSocket) control(ctx context.Context, p vm.Process, input *io.PipeWriter, text []byte) error {
	var c SocketControl
	if err := strictJSON(text, &c); err != nil {
		return err
	}
	if c.Signal < 0 || c.Signal > 64 {
		return invalid("signal: want 1 to 64")
	}
	if c.End && input != nil {
		_ = input.Close()
	}
	if c.Signal != 0 {
		_ = p.Signal(ctx, c.Signal)
	}
	if c.Resize != nil {
		_ = p.Resize(ctx, vm.Size{Columns: c.Resize.Columns, Rows: c.Resize.Rows})
	}
	return nil
}

// alive ends the command of a client that does not answer.
func (x *execSocket) alive(ctx context.Context) {
	t := time.NewTicker(aliveTime)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		limited, cancel := context.WithTimeout(ctx, writeTime)
		err := x.conn.Ping(limited)
		cancel()
		if err != nil && !(errors.Is(err, context.DeadlineExceeded) && x.waiting.Load()) {
			x.cancel()
			return
		}
	}
}

// socketWriter sends a stream's output. A client that does not read has the program wait.
type socketWriter struct {
	of     *execSocket
	ctx    context.Context
	stream byte
}

func (w socketWriter) Write(p []byte) (n int, err error) {
	b := make([]byte, 0, 1+min(len(p), sentPiece))
	for len(p) > 0 {
		part := p[:min(len(p), sentPiece)]
		if err := w.of.write(w.ctx, websocket.MessageBinary, append(append(b, w.stream), part...)); err != nil {
			return n, err
		}
		n, p = n+len(part), p[len(part):]
	}
	return n, nil
}
