package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"agentvm/internal/httpserver/servertest"
	"agentvm/vm"
)

// dialExec opens an exec WebSocket of dev.
func (a *api) dialExec(ctx context.Context, header ...string) (*websocket.Conn, *http.Response, error) {
	o := &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + a.key}}}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			o.Host = header[i+1]
			continue
		}
		o.HTTPHeader.Set(header[i], header[i+1])
	}
	c, answer, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(a.url, "http")+"/v1/vms/dev/exec/stream", o)
	if c != nil {
		c.SetReadLimit(1 << 20)
	}
	return c, answer, err
}

// collect reads what a command writes, and how it ends.
func collect(ctx context.Context, c *websocket.Conn) (out [3]string, end SocketEnd, err error) {
	for {
		kind, b, err := c.Read(ctx)
		if err != nil {
			return out, end, err
		}
		if kind == websocket.MessageText {
			return out, end, json.Unmarshal(b, &end)
		}
		out[b[0]] += string(b[1:])
	}
}

func TestWebSocket(t *testing.T) {
	a := serve(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	type step struct {
		kind websocket.MessageType
		text string
	}
	text, binary := websocket.MessageText, websocket.MessageBinary
	for _, tt := range []struct {
		name           string
		steps          []step
		stdout, stderr string
		want           string // of the end
	}{
		{"output", []step{{text, `{"command":"echo out; echo err >&2; exit 3"}`}}, "out\n", "err\n", `"exitCode":3`},
		{"input", []step{{text, `{"command":"cat; echo done","input":true}`}, {binary, "a\x00"}, {binary, "\xffb\n"}, {text, `{"end":true}`}}, "a\x00\xffb\ndone\n", "", `"exitCode":0`},
		{"stdin", []step{{text, `{"args":["cat"],"stdin":"given"}`}}, "given", "", `"exitCode":0`},
		{"terminal", []step{{text, `{"command":"stty size; read x; stty size","input":true,"terminal":{"columns":91,"rows":17}}`}, {text, `{"resize":{"columns":80,"rows":25}}`}, {binary, "x\n"}}, "17 91\r\nx\r\n25 80\r\n", "", `"exitCode":0`},
		{"signal", []step{{text, `{"command":"exec 2>/dev/null; trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.1; done"}`}, {text, `{"signal":15}`}}, "ready\ncaught\n", "", `"exitCode":5`},
		{"timeout", []step{{text, `{"command":"sleep 100","timeoutSeconds":0.2}`}}, "", "", `"timedOut":true`},
		{"no command", []step{{text, `{}`}}, "", "", `"status":400`},
		{"unknown field", []step{{text, `{"command":"x","mounts":[]}`}}, "", "", `"status":400`},
		{"two inputs", []step{{text, `{"command":"x","input":true,"stdin":"y"}`}}, "", "", `"status":400`},
		{"binary first", []step{{binary, `{"command":"true"}`}}, "", "", `"status":400`},
		{"deep", []step{{text, strings.Repeat("[", 1<<20)}}, "", "", `"status":400`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, _, err := a.dialExec(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer c.CloseNow()
			out := [3]string{}
			for i, s := range tt.steps {
				if err := c.Write(ctx, s.kind, []byte(s.text)); err != nil {
					t.Fatal(err)
				}
				if i == 0 && (tt.name == "signal" || tt.name == "terminal") { // the command has begun
					_, b, err := c.Read(ctx)
					if err != nil {
						t.Fatal(err)
					}
					out[1] = string(b[1:])
				}
			}
			rest, end, err := collect(ctx, c)
			got, _ := json.Marshal(end)
			if err != nil || out[1]+rest[1] != tt.stdout || rest[2] != tt.stderr || !strings.Contains(string(got), tt.want) {
				t.Errorf("%q, %s, %v", rest, got, err)
			}
		})
	}
}

// TestWebSocketRefuses: who has no key, pages of other origins and rebound names get no WebSocket; messages that can never be right end it.
func TestWebSocketRefuses(t *testing.T) {
	a := serve(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, tt := range []struct {
		key    string
		header []string
		status int
	}{
		{testKey[1:], nil, 401},
		{testKey, []string{"Origin", "https://evil.example"}, 403},
		{testKey, []string{"Origin", "null"}, 403},
		{testKey, []string{"Origin", "http://localhost:1"}, 403},
		{testKey, []string{"Host", "rebound.example.com", "Origin", "http://rebound.example.com"}, 421},
	} {
		a.key = tt.key
		c, answer, err := a.dialExec(ctx, tt.header...)
		if err == nil {
			_ = c.CloseNow()
		}
		if err == nil || answer == nil || answer.StatusCode != tt.status {
			t.Errorf("%v: %v, %v", tt.header, answer, err)
		}
	}
	a.key = testKey
	for _, messages := range [][]string{
		{`{"command":"sleep 1000"}`, "\x00input"},
		{`{"command":"sleep 1000"}`, `{"signal":65}`},
		{`{"command":"sleep 1000"}`, `{"signal":9,"more":1}`},
		{`{"command":"sleep 1000"}`, strings.Repeat("x", maxMessage+1)},
		{`{"command":"sleep 1000","stdin":"` + strings.Repeat("x", maxBody) + `"}`},
	} {
		c, _, err := a.dialExec(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			kind := websocket.MessageText
			if m[0] == 0 {
				kind = websocket.MessageBinary
			}
			_ = c.Write(ctx, kind, []byte(m))
		}
		if _, end, err := collect(ctx, c); err == nil && end.Exit != nil {
			t.Errorf("%.60q: %+v", messages, end)
		}
		_ = c.CloseNow()
	}
	a.want("GET", "/v1/vms/dev/exec/stream", nil, 426, nil) // no WebSocket is asked for
	awaitNone(t, a, "sleep 1000")
}

// awaitNone waits until no process of dev has a command line.
func awaitNone(t *testing.T, a *api, line string) {
	t.Helper()
	var r Result
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		a.want("POST", "/v1/vms/dev/exec", Command{Line: "ps -o args | grep -x '" + line + "'"}, 200, &r)
		if r.ExitCode != 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("runs without its client: %s", r.Stdout)
		}
	}
}

// TestWebSocketClients: clients that go, that send nothing, and that do not read hold nothing for long; a command that does not read its input
// is no reason to end.
func TestWebSocketClients(t *testing.T) {
	a := serve(t, nil)
	was := bodyTime
	defer func() { bodyTime = was }()
	bodyTime = 300 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	silent, _, err := a.dialExec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.CloseNow()
	if _, end, err := collect(ctx, silent); err == nil && end.Exit != nil {
		t.Errorf("a client without a command: %+v, %v", end, err)
	}
	closed := func() {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); a.server.sockets.open.Load() > 0; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d WebSockets are open without clients", a.server.sockets.open.Load())
			}
		}
	}
	_ = silent.CloseNow()
	closed()
	bodyTime = was // the others may take their time
	gone, _, err := a.dialExec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Write(ctx, websocket.MessageText, []byte(`{"command":"yes; sleep 1001"}`))
	_, _, _ = gone.Read(ctx)
	_ = gone.CloseNow()
	unread, _, err := a.dialExec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = unread.Write(ctx, websocket.MessageText, []byte(`{"command":"sleep 1; wc -c","input":true}`))
	total := 0
	for range 15 {
		part := strings.Repeat("y", 100_000)
		if err := unread.Write(ctx, websocket.MessageBinary, []byte(part)); err != nil {
			t.Fatal(err)
		}
		total += len(part)
	}
	_ = unread.Write(ctx, websocket.MessageText, []byte(`{"end":true}`))
	if out, end, err := collect(ctx, unread); err != nil || strings.TrimSpace(out[1]) != fmt.Sprint(total) {
		t.Errorf("%q, %+v, %v", out, end, err)
	}
	awaitNone(t, a, "yes")
	closed()
}

// A command of an exec WebSocket ends with the server.
func TestWebSocketEnds(t *testing.T) {
	a := serve(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	at, ended := make(chan string, 1), make(chan error, 1)
	server, err := New(a.server.options)
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- server.Serve(ctx, "127.0.0.1:0", func(url string) { at <- url }) }()
	a.url = <-at
	c, _, err := a.dialExec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	_ = c.Write(t.Context(), websocket.MessageText, []byte(`{"command":"echo x; sleep 1002"}`))
	if _, _, err := c.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(graceTime + 20*time.Second):
		t.Fatal("it serves on")
	}
}

// TestEvents: clients get what happens; one that leaves holds nothing.
func TestEvents(t *testing.T) {
	a := serve(t, nil)
	a.want("GET", "/v1/events?vm=A%20B", nil, 400, nil)
	a.want("GET", "/v1/events?since=yesterday", nil, 400, nil)
	var lines [2]chan string
	var reading sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, query := range []string{"", "?vm=nope"} {
		lines[i] = make(chan string, 100)
		r, _ := http.NewRequestWithContext(ctx, "GET", a.url+"/v1/events"+query, nil)
		r.Header.Set("X-API-Key", testKey)
		answer, err := a.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		reading.Go(func() {
			defer answer.Body.Close()
			defer close(lines[i])
			pipe, w := io.Pipe()
			go func() { _, err := io.Copy(w, answer.Body); _ = w.CloseWithError(errors.Join(err, io.EOF)) }()
			eachEvent(pipe, func(text string) { lines[i] <- text })
		})
	}
	await := func(parts ...string) {
		t.Helper()
		for {
			select {
			case line, more := <-lines[0]:
				if !more {
					t.Fatalf("it has ended before %q", parts)
				}
				found := true
				for _, part := range parts {
					found = found && strings.Contains(line, part)
				}
				if found {
					return
				}
			case <-ctx.Done():
				t.Fatalf("no event with %q", parts)
			}
		}
	}
	var j Job
	a.want("POST", "/v1/vms/dev/jobs", NewJob{Line: "sleep 0.3; exit 6", Label: "six"}, 200, &j)
	await(`"kind":"job-started"`, j.ID, `"label":"six"`)
	await(`"kind":"job-ended"`, j.ID, `"exit":6`)
	a.want("POST", "/v1/vms/dev/pause", nil, 200, nil)
	await(`"kind":"paused"`, `"vm":"dev"`)
	a.want("POST", "/v1/vms/dev/resume", nil, 200, nil)
	a.want("POST", "/v1/vms/dev/exec", Command{Line: "wget -T 5 -O- http://93.184.216.35/"}, 200, nil)
	await(`"kind":"denied"`, "93.184.216.35")
	cancel()
	reading.Wait()
	for line := range lines[1] {
		t.Errorf("an event of another VM: %s", line)
	}
	for deadline := time.Now().Add(10 * time.Second); a.server.listening.Load() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("clients that have left are kept")
		}
	}
}

// TestSessionsOpenedAndDropped: 10,000 connections that are dropped, many of them in the middle of something, leave nothing.
func TestSessionsOpenedAndDropped(t *testing.T) {
	a := serve(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	host := strings.TrimPrefix(a.url, "http://")
	upgrade := "GET /v1/vms/dev/exec/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + testKey + "\r\n"
	requests := []string{
		"", "GET /v1/", upgrade, "", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "\x16\x03\x01", "\r\n\r\n", "POST /v1/vms/dev/exec HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n",
		upgrade + "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
		"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + testKey + "\r\n\r\n",
	}
	servertest.OpenAndDrop(ctx, t, host, 10_000, requests)
	var list []VM
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left := a.server.listening.Load()
		if left == 0 && a.server.sockets.open.Load() == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d readers of events and %d WebSockets are left", left, a.server.sockets.open.Load())
		}
	}
	a.want("GET", "/v1/vms", nil, 200, &list)
}

// FuzzSocket: whatever the first messages of a client say, they give a command or an error that says what is wrong.
func FuzzSocket(f *testing.F) {
	f.Add([]byte(`{"command":"x","input":true,"terminal":{"columns":80,"rows":24}}`), []byte(`{"signal":9}`))
	f.Add([]byte(`{"args":["x"],"stdin":"y"}`), []byte(`{"resize":{"columns":1,"rows":2},"end":true}`))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var in SocketCommand
		if err := strictJSON(first, &in); err == nil {
			_, err = in.command()
			if err != nil && problemOf(err).Status/100 != 4 {
				t.Error(err)
			}
		} else if problemOf(err).Status != http.StatusBadRequest {
			t.Error(err)
		}
		_, input := io.Pipe()
		if err := new(execSocket).control(t.Context(), noProcess{}, input, second); err != nil && problemOf(err).Status != http.StatusBadRequest {
			t.Error(err)
		}
	})
}

// noProcess is a process that has ended.
type noProcess struct{ vm.Process }

func (noProcess) Signal(_ context.Context, n int) error {
	if n < 1 || n > 64 {
		panic(n)
	}
	return nil
}
func (noProcess) Resize(context.Context, vm.Size) error { return nil }
