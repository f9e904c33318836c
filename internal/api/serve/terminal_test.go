package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// dial opens a terminal.
func (a *api) dial(query string) *websocket.Conn {
	a.t.Helper()
	c, answer, err := websocket.Dial(a.t.Context(), "ws"+strings.TrimPrefix(a.url, "http")+"/v1/vms/dev/terminal"+query, &websocket.DialOptions{
		HTTPClient: a.http, HTTPHeader: http.Header{"Authorization": {"Bearer " + testKey}}, Subprotocols: []string{TerminalProtocol},
	})
	if err != nil {
		a.t.Fatal(err)
	}
	if answer.Body != nil {
		_ = answer.Body.Close()
	}
	a.t.Cleanup(func() { _ = c.CloseNow() })
	c.SetReadLimit(1 << 20)
	return c
}

func say(t *testing.T, c *websocket.Conn, kind websocket.MessageType, text string) {
	t.Helper()
	if err := c.Write(t.Context(), kind, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// hear reads output until it has a text.
func hear(t *testing.T, c *websocket.Conn, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	heard := ""
	for !strings.Contains(heard, want) {
		_, message, err := c.Read(ctx)
		if err != nil {
			t.Fatalf("no %q in %q: %v", want, heard, err)
		}
		heard += string(message)
	}
}

func TestTerminal(t *testing.T) {
	a := serve(t, nil)
	for name, test := range map[string]struct {
		path   string
		header []string
		want   int
	}{
		"another origin": {"", []string{"Origin", "https://evil.example", "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}, 403},
		"no key":         {"", []string{"Authorization", "Bearer no"}, 401},
		"a wrong size":   {"?columns=0", nil, 400},
		"too large":      {"?rows=70000", nil, 400},
		"no WebSocket":   {"", nil, 426},
	} {
		answer := a.do("GET", "/v1/vms/dev/terminal"+test.path, nil, test.header...)
		_ = answer.Body.Close()
		if answer.StatusCode != test.want {
			t.Errorf("%s: %s, want %d", name, answer.Status, test.want)
		}
	}
	c := a.dial("?columns=90&rows=30")
	say(t, c, websocket.MessageBinary, "stty size\r")
	hear(t, c, "30 90")
	say(t, c, websocket.MessageText, `{"columns": 100, "rows": 40}`)
	say(t, c, websocket.MessageBinary, "until stty size | grep '40 100'; do sleep 0.1; done; echo done-$((1+1)); exit 3\r")
	hear(t, c, "done-2")
	for {
		kind, message, err := c.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if kind == websocket.MessageText {
			var end TerminalEnd
			if err := json.Unmarshal(message, &end); err != nil || end.ExitCode != 3 {
				t.Errorf("%s: %v", message, err)
			}
			break
		}
	}
	wrong := a.dial("")
	say(t, wrong, websocket.MessageText, `{"columns": 0, "rows": 5}`)
	for {
		if _, _, err := wrong.Read(t.Context()); err != nil {
			break // it has ended
		}
	}
}

// TestTerminalUnread has a program write more than a client has shown.
func TestTerminalUnread(t *testing.T) {
	a := serve(t, nil)
	c := a.dial("")
	say(t, c, websocket.MessageText, `{"read": 0}`)
	const size = 3 << 19
	say(t, c, websocket.MessageBinary, "stty -onlcr; head -c 1572864 /dev/zero | tr '\\0' x; echo end-$((1+1))\r")
	messages := make(chan []byte)
	go func() {
		defer close(messages)
		for {
			_, message, err := c.Read(t.Context())
			if err != nil {
				return
			}
			messages <- message
		}
	}()
	got, last := 0, ""
	count := func(until func() bool) {
		for quiet := time.NewTimer(2 * time.Second); !until(); quiet.Reset(2 * time.Second) {
			select {
			case message, more := <-messages:
				if !more {
					return
				}
				got += len(message)
				last = (last + string(message))[max(0, len(last)+len(message)-100):]
			case <-quiet.C:
				return
			}
		}
	}
	count(func() bool { return false })
	if got > maxUnread+2*maxTyped {
		t.Fatalf("%d bytes came to a client that has shown none", got)
	}
	for deadline := time.Now().Add(3 * time.Minute); !strings.Contains(last, "end-2") && time.Now().Before(deadline); {
		text, _ := json.Marshal(map[string]int{"read": got})
		say(t, c, websocket.MessageText, string(text))
		before := got
		count(func() bool { return got-before >= maxUnread/2 || strings.Contains(last, "end-2") })
	}
	if got < size || !strings.Contains(last, "end-2") {
		t.Errorf("%d bytes, at the end %q", got, last)
	}
}

func TestLiveRules(t *testing.T) {
	a := serve(t, nil)
	var change Change
	a.want("POST", "/v1/vms/dev/network/allow", Target{"allowed.example:80"}, 200, &change)
	if !strings.Contains(strings.Join(change.Allow, " "), "allowed.example:80") {
		t.Errorf("after allow: %+v", change)
	}
	a.want("POST", "/v1/vms/dev/network/deny", Target{"allowed.example:80"}, 200, &change)
	if strings.Contains(strings.Join(change.Allow, " "), "allowed.example") || !strings.Contains(strings.Join(change.Deny, " "), "allowed.example:80") {
		t.Errorf("after deny: %+v", change)
	}
	a.want("POST", "/v1/vms/dev/network/allow", Target{"allowed.example:80"}, 200, nil)
	a.want("POST", "/v1/vms/dev/network/allow", Target{"<img>"}, 400, nil)
	var stats Stats
	a.want("GET", "/v1/vms/dev/stats", nil, 200, &stats)
	if stats.MemoryTotal == 0 || stats.UptimeSeconds <= 0 {
		t.Errorf("%+v", stats)
	}
	a.want("POST", "/v1/vms/dev/exec", Command{Line: "nslookup events.example; true"}, 200, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "GET", a.url+"/v1/vms/dev/network/events", nil)
	r.Header.Set("X-API-Key", testKey)
	answer, err := a.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		text, is := strings.CutPrefix(lines.Text(), "data: ")
		if !is {
			continue
		}
		var e NetworkEvent
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		if e.Allowable && e.Target == "events.example" {
			return
		}
	}
	t.Error("the events have no denial of events.example")
}
