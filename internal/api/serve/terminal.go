package serve

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"agentvm/client"
	"agentvm/vm"
)

// Terminals are WebSockets: binary messages are what is typed and what programs write, text messages are JSON, TerminalState from the client and
// TerminalEnd from the server as the last one.

// TerminalState is what a client says about its terminal.
type TerminalState struct {
	// Columns and Rows are its size, 0 for the same as before.
	Columns uint16 `json:"columns,omitempty"`
	Rows    uint16 `json:"rows,omitempty"`
	// Read is how many bytes of output it has shown. A client that has sent this once is at most 1 MiB behind: a browser takes whatever comes, and
	// would keep it all.
	Read *uint64 `json:"read,omitempty"`
}

// TerminalEnd says how a terminal's program has ended.
type TerminalEnd struct {
	ExitCode int    `json:"exitCode"`
	Signal   int    `json:"signal,omitempty"`
	Error    string `json:"error,omitempty"`
}

const (
	maxTerminals  = 64
	maxTyped      = 64 << 10 // bytes of one message of a client
	typedTime     = time.Minute
	terminalAlive = 30 * time.Second
	maxUnread     = 1 << 20
)

func (s *Server) terminalRoutes() []route {
	return []route{{
		method: "GET", path: "/v1/vms/{vm}/terminal", rawOut: "application/octet-stream", status: http.StatusSwitchingProtocols, stream: true, serve: s.terminal,
		summary: "Opens a terminal over a WebSocket: binary messages are its bytes, text messages JSON: TerminalState and at the end TerminalEnd",
		query: []parameter{
			{name: "columns", usage: "default 80"}, {name: "rows", usage: "default 24"}, {name: "user", usage: "as of exec"}, {name: "job", usage: "whose terminal to show; default: that of a new login shell"},
		},
	}}
}

// terminal connects a WebSocket with a program that has a terminal. The program ends with the connection, unless it is a job.
func (s *Server) terminal(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	size := vm.Size{Columns: 80, Rows: 24}
	for name, to := range map[string]*uint16{"columns": &size.Columns, "rows": &size.Rows} {
		text := query.Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			WriteProblem(w, invalid("%s: want a number from 1 to 65535", name))
			return
		}
		*to = uint16(n)
	}
	select {
	case s.terminals <- struct{}{}:
		defer func() { <-s.terminals }()
	default:
		WriteProblem(w, problemf(http.StatusServiceUnavailable, "%d terminals are open: close one", maxTerminals))
		return
	}
	v, err := s.open(r)
	if err != nil {
		WriteProblem(w, err)
		return
	}
	defer v.Close()
	// The origin of a browser's page is checked here: a WebSocket is no request for which Handler does it.
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{TerminalProtocol}})
	if err != nil {
		return // it has answered
	}
	defer c.CloseNow()
	c.SetReadLimit(maxTyped)
	ctx, cancel := context.WithCancel(r.Context()) // of which the WebSocket does not say when it ends
	defer cancel()
	end := s.runTerminal(ctx, cancel, c, v, query.Get("job"), query.Get("user"), size)
	text, err := json.Marshal(end)
	if err == nil {
		late, stop := context.WithTimeout(context.WithoutCancel(ctx), typedTime)
		defer stop()
		_ = c.Write(late, websocket.MessageText, text)
	}
	_ = c.Close(websocket.StatusNormalClosure, "")
}

// TerminalProtocol is the WebSocket subprotocol of terminals.
const TerminalProtocol = "agentvm.terminal"

func (s *Server) runTerminal(ctx context.Context, cancel func(), c *websocket.Conn, v *client.VM, job, user string, size vm.Size) TerminalEnd {
	typed, typing := io.Pipe()
	defer typed.Close()
	output := &terminalWriter{ctx: ctx, c: c, more: make(chan struct{}, 1)}
	command := vm.Command{Args: []string{"/bin/sh", "-l"}, User: user, Terminal: &size, Stdin: typed, Stdout: output, Stderr: output, Env: []string{"TERM=xterm-256color"}}
	var p vm.Process
	var err error
	if job == "" {
		p, err = v.Start(ctx, command)
	} else {
		var j vm.Job
		if j, err = v.Job(ctx, job); err == nil {
			defer j.Close()
			p = client.Follow(ctx, j, command, 0)
			err = p.Resize(ctx, size)
		}
	}
	if err != nil {
		return TerminalEnd{ExitCode: -1, Error: err.Error()}
	}
	sizes := make(chan vm.Size, 1)
	go func() { // it ends when the connection does, at the latest with its handler
		defer cancel()
		typing.CloseWithError(readTyped(ctx, c, typing, output, sizes))
	}()
	alive := time.NewTicker(terminalAlive)
	defer alive.Stop()
	for {
		select {
		case size := <-sizes:
			_ = p.Resize(ctx, size) // one that has just ended needs none
			continue
		case <-alive.C:
			if err := c.Ping(ctx); err != nil {
				cancel()
			}
			continue
		case <-p.Done():
		case <-ctx.Done():
		}
		break
	}
	result, err := p.Wait(ctx)
	if err != nil {
		return TerminalEnd{ExitCode: -1, Error: err.Error()}
	}
	return TerminalEnd{ExitCode: result.ExitCode, Signal: result.Signal}
}

// readTyped passes on what is typed, and what the client says of its terminal. Of several sizes only the last counts.
func readTyped(ctx context.Context, c *websocket.Conn, to io.Writer, output *terminalWriter, sizes chan vm.Size) error {
	for {
		kind, message, err := c.Read(ctx)
		if err != nil {
			return err
		}
		if kind == websocket.MessageBinary {
			if _, err := to.Write(message); err != nil {
				return err
			}
			continue
		}
		var state TerminalState
		if err := json.Unmarshal(message, &state); err != nil || (state.Columns == 0) != (state.Rows == 0) {
			return errors.New("a text message is no state of a terminal")
		}
		if state.Read != nil {
			output.acknowledge(*state.Read)
		}
		if state.Columns == 0 {
			continue
		}
		select {
		case <-sizes:
		default:
		}
		sizes <- vm.Size{Columns: state.Columns, Rows: state.Rows}
	}
}

// terminalWriter sends what programs write. A client that does not read holds the program up. One writer and one reader use it.
type terminalWriter struct {
	ctx  context.Context
	c    *websocket.Conn
	sent uint64
	more chan struct{} // after acknowledge

	mu    sync.Mutex
	read  uint64
	tells bool // it says what it has read
}

func (w *terminalWriter) acknowledge(read uint64) {
	w.mu.Lock()
	w.read, w.tells = max(w.read, read), true
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// ahead reports whether the client has too much that it has not shown.
func (w *terminalWriter) ahead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tells && w.sent > w.read && w.sent-w.read >= maxUnread
}

func (w *terminalWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		for w.ahead() {
			select {
			case <-w.more:
			case <-w.ctx.Done():
				return 0, w.ctx.Err()
			}
		}
		part := rest[:min(len(rest), maxTyped)]
		rest = rest[len(part):]
		ctx, cancel := context.WithTimeout(w.ctx, writeTime)
		err := w.c.Write(ctx, websocket.MessageBinary, part)
		cancel()
		if err != nil {
			return 0, err
		}
		w.sent += uint64(len(part))
	}
	return len(p), nil
}
