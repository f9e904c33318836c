package serve

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
	"unicode/utf8"

	"agentvm/internal/httpserver"
	"agentvm/vm"
)

// Command is what to run in a VM.
type Command struct {
	Line           string            `json:"command,omitempty" jsonschema:"shell source; this or args"`
	Args           []string          `json:"args,omitempty" jsonschema:"a program and its arguments, run without a shell"`
	Env            map[string]string `json:"env,omitempty"`
	Dir            string            `json:"dir,omitempty"`
	User           string            `json:"user,omitempty" jsonschema:"name, uid, name:group or uid:gid; default: the image's, or root"`
	Stdin          string            `json:"stdin,omitempty"`
	TimeoutSeconds float64           `json:"timeoutSeconds,omitempty" jsonschema:"kill it, and all that it has started, after this time"`
	MaxOutput      int               `json:"maxOutput,omitempty" jsonschema:"bytes of each stream that are kept, half from the beginning and half from the end; default 1 MiB, at most 16 MiB"`
	Base64         bool              `json:"base64,omitempty" jsonschema:"stdin, and the output in the answer, are base64"`
}

const (
	defaultOutput = 1 << 20
	maxOutput     = 16 << 20
)

// Result is how a command has ended and what it has written.
type Result struct {
	ExitCode        int            `json:"exitCode"`
	Signal          int            `json:"signal,omitempty"`
	TimedOut        bool           `json:"timedOut,omitempty"`
	Stdout          string         `json:"stdout" jsonschema:"UTF-8, with U+FFFD in place of other bytes; or base64"`
	Stderr          string         `json:"stderr"`
	StdoutTruncated *vm.Truncation `json:"stdoutTruncated,omitempty"`
	StderrTruncated *vm.Truncation `json:"stderrTruncated,omitempty"`
	DurationSeconds float64        `json:"durationSeconds"`
}

// command checks a request.
func (c Command) command() (out vm.Command, err error) {
	out = vm.Command{Line: c.Line, Args: c.Args, Dir: c.Dir, User: c.User, MaxOutput: c.MaxOutput}
	if out.MaxOutput == 0 {
		out.MaxOutput = defaultOutput
	}
	if out.MaxOutput < 1 || out.MaxOutput > maxOutput {
		return out, invalid("maxOutput: want 1 to %d", maxOutput)
	}
	if out.Timeout, err = seconds("timeoutSeconds", c.TimeoutSeconds); err != nil {
		return out, err
	}
	for key, value := range c.Env {
		out.Env = append(out.Env, key+"="+value)
	}
	if _, err := out.Arguments(); err != nil {
		return out, invalid("%v", err)
	}
	in := []byte(c.Stdin)
	if c.Base64 {
		if in, err = base64.StdEncoding.DecodeString(c.Stdin); err != nil {
			return out, invalid("stdin: %v", err)
		}
	}
	out.Stdin = bytes.NewReader(in)
	return out, nil
}

func (s *Server) execRoutes() []route {
	stream := call("POST", "/v1/vms/{vm}/exec/stream", "Runs a command and sends its output while it runs, as events stdout, stderr and exit",
		func(*http.Request, Command) (none struct{}, err error) { return none, nil })
	stream.rawOut, stream.status, stream.stream, stream.serve = "text/event-stream", http.StatusOK, true, s.stream
	stream.events = map[string]any{"stdout": Output{}, "stderr": Output{}, "exit": Result{}, "error": Problem{}}
	return []route{
		call("POST", "/v1/vms/{vm}/exec", "Runs a command to its end; it is killed when the client disconnects", func(r *http.Request, in Command) (Result, error) {
			command, err := in.command()
			if err != nil {
				return Result{}, err
			}
			v, err := s.open(r)
			if err != nil {
				return Result{}, err
			}
			defer v.Close()
			result, err := v.Run(r.Context(), command)
			if err != nil {
				return Result{}, err
			}
			return resultOf(result, in.Base64), nil
		}),
		stream,
	}
}

func resultOf(r *vm.Result, base bool) Result {
	out := Result{
		ExitCode: r.ExitCode, Signal: r.Signal, TimedOut: r.TimedOut, DurationSeconds: r.Duration.Seconds(),
		Stdout: encode(r.Stdout, base), Stderr: encode(r.Stderr, base),
	}
	for _, cut := range []struct {
		from vm.Truncation
		to   **vm.Truncation
	}{{r.StdoutTruncated, &out.StdoutTruncated}, {r.StderrTruncated, &out.StderrTruncated}} {
		if cut.from.Dropped > 0 {
			*cut.to = &cut.from
		}
	}
	return out
}

func encode(b []byte, base bool) string {
	if base {
		return base64.StdEncoding.EncodeToString(b)
	}
	return string(bytes.ToValidUTF8(b, []byte("\uFFFD")))
}

// Output is the data of an event.
type Output struct {
	Data string `json:"data"`
}

// aliveTime is how often a stream in which nothing happens has a comment, by which both ends see that the other is there.
const aliveTime = 15 * time.Second

// stream runs a command and sends its output as server-sent events (HTML, section 9.2).
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	var in Command
	if err := readJSON(w, r, &in); err != nil {
		WriteProblem(w, err)
		return
	}
	command, err := in.command()
	if err != nil {
		WriteProblem(w, err)
		return
	}
	ctx := r.Context()
	v, err := s.options.Store.Open(ctx, r.PathValue("vm"))
	if err != nil {
		WriteProblem(w, err)
		return
	}
	defer v.Close()
	e := newEvents(w)
	defer e.close()
	command.Stdout, command.Stderr = e.writer("stdout", in.Base64), e.writer("stderr", in.Base64)
	result, err := v.Run(ctx, command)
	if err != nil {
		e.send("error", problemOf(err))
		return
	}
	for _, stream := range []*eventWriter{command.Stdout.(*eventWriter), command.Stderr.(*eventWriter)} {
		stream.flush()
	}
	e.send("exit", resultOf(result, in.Base64))
}

// events are the server-sent events of an answer.
type events struct {
	w     http.ResponseWriter
	mu    sync.Mutex
	alive *time.Ticker
	done  chan struct{}
	gone  sync.WaitGroup
}

// newEvents begins the answer.
func newEvents(w http.ResponseWriter) *events {
	w = httpserver.PatientWriter(w, writeTime)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	e := &events{w: w, alive: time.NewTicker(aliveTime), done: make(chan struct{})}
	_ = http.NewResponseController(w).Flush()
	e.gone.Go(func() {
		for {
			select {
			case <-e.alive.C:
				_ = e.write([]byte(":\n\n"))
			case <-e.done:
				return
			}
		}
	})
	return e
}

func (e *events) close() {
	e.alive.Stop()
	close(e.done)
	e.gone.Wait()
}

// writeTime is how long a client may take to read an event.
const writeTime = time.Minute

func (e *events) write(text []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.w.Write(text); err != nil {
		return err
	}
	return http.NewResponseController(e.w).Flush()
}

func (e *events) send(event string, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	return e.write(fmt.Appendf(nil, "event: %s\ndata: %s\n\n", event, text))
}

func (e *events) writer(event string, base bool) *eventWriter {
	return &eventWriter{of: e, event: event, base: base}
}

// eventWriter sends what is written as events. A character of UTF-8 whose bytes come in two pieces stays whole.
type eventWriter struct {
	of    *events
	event string
	base  bool
	rest  []byte
}

func (w *eventWriter) Write(p []byte) (int, error) {
	text := append(w.rest, p...)
	keep := 0
	if !w.base {
		keep = unfinished(text)
	}
	w.rest = append([]byte(nil), text[len(text)-keep:]...)
	if len(text) > keep {
		if err := w.of.send(w.event, Output{encode(text[:len(text)-keep], w.base)}); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// flush sends what was kept.
func (w *eventWriter) flush() {
	if len(w.rest) > 0 {
		_ = w.of.send(w.event, Output{encode(w.rest, w.base)})
	}
}

// unfinished returns how many bytes at the end of a text are the beginning of a character.
func unfinished(text []byte) int {
	for n := 1; n < min(utf8.UTFMax, len(text)+1); n++ {
		if at := len(text) - n; utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				return n
			}
			return 0
		}
	}
	return 0
}
