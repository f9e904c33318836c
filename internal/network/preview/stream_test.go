package preview

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
)

// streams is a guest's program with streams that never end by themselves.
func streams(ended chan<- string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: first\n\n")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		ended <- "events"
	})
	mux.HandleFunc("/flood", func(w http.ResponseWriter, r *http.Request) {
		for _, err := w.Write([]byte("data: first\n\n")); err == nil; {
			_, err = w.Write(make([]byte, 64<<10))
		}
		ended <- "flood"
	})
	mux.HandleFunc("/upload", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		fmt.Fprint(w, "data: first\n\n")
		http.NewResponseController(w).Flush()
		io.Copy(io.Discard, r.Body)
		ended <- "upload"
	})
	mux.Handle("/websocket", websocket.Handler(func(c *websocket.Conn) {
		io.Copy(c, c)
		ended <- "websocket"
	}))
	return mux
}

// openStream makes a request and returns what comes after "data: first".
func (w *world) openStream(t *testing.T, base, path string) io.Reader {
	t.Helper()
	conn := w.connect(t)
	target := strings.TrimPrefix(base, "http://")
	host, prefix, _ := strings.Cut(target, "/")
	head := fmt.Sprintf("/%s%s HTTP/1.1\r\nHost: %s\r\n", prefix, path, host)
	if path == "upload" {
		fmt.Fprintf(conn, "POST %sTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", head)
	} else {
		fmt.Fprintf(conn, "GET %s\r\n", head)
	}
	r := bufio.NewReader(conn)
	for line := ""; line != "data: first\n"; {
		var err error
		if line, err = r.ReadString('\n'); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return r
}

// openWebSocket connects as a page of origin does.
func (w *world) openWebSocket(t *testing.T, base, origin string, fields ...string) (*websocket.Conn, error) {
	t.Helper()
	cfg, err := websocket.NewConfig("ws://"+strings.TrimPrefix(base, "http://")+"websocket", origin)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range fields {
		name, value, _ := strings.Cut(field, ": ")
		cfg.Header.Add(name, value)
	}
	return websocket.NewClient(cfg, w.connect(t))
}

// TestRevokedStream has each kind of stream, which ends because the preview does, however that comes about.
func TestRevokedStream(t *testing.T) {
	ways := map[string]func(t *testing.T, w *world, p Preview) error{
		"revoked": func(t *testing.T, w *world, p Preview) error { return w.store.Revoke(t.Context(), p.ID) },
		"revoked with all": func(t *testing.T, w *world, p Preview) error {
			_, err := w.store.RevokeAll(t.Context(), "dev")
			return err
		},
		"revoked by another process": func(t *testing.T, w *world, p Preview) error {
			return openStore(t, w.path, Options{Now: w.clock.Now}).Revoke(t.Context(), p.ID)
		},
		"expired": func(_ *testing.T, w *world, _ Preview) error { w.clock.Advance(time.Hour); return nil },
		"closed":  func(_ *testing.T, w *world, _ Preview) error { return w.server.Close() },
	}
	for way, end := range ways {
		for _, path := range []string{"events", "flood", "upload"} {
			t.Run(path+" "+way, func(t *testing.T) {
				w := newWorld(t, nil)
				ended := make(chan string, 1)
				w.vms.serve(t, "dev", 3000, streams(ended))
				p := create(t, w.store, "dev", 3000, 0)
				r := w.openStream(t, p.URL(w.port), path)
				if err := end(t, w, p); err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, r); isTimeout(err) {
					t.Error("the visitor's stream continues")
				}
				if got := <-ended; got != path {
					t.Errorf("%s ended", got)
				}
			})
		}
		t.Run("websocket "+way, func(t *testing.T) {
			w := newWorld(t, nil)
			ended := make(chan string, 1)
			w.vms.serve(t, "dev", 3000, streams(ended))
			p := create(t, w.store, "dev", 3000, 0)
			ws, err := w.openWebSocket(t, p.PathURL(w.port), fmt.Sprintf("http://127.0.0.1:%d", w.port))
			if err != nil {
				t.Fatal(err)
			}
			if got := talk(t, ws, "hello"); got != "hello" {
				t.Errorf("echo %q", got)
			}
			if err := end(t, w, p); err != nil {
				t.Fatal(err)
			}
			if _, err := ws.Read(make([]byte, 1)); err == nil || isTimeout(err) {
				t.Errorf("reading: %v", err)
			}
			<-ended
		})
	}
}

func talk(t *testing.T, ws *websocket.Conn, text string) string {
	t.Helper()
	if err := websocket.Message.Send(ws, text); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := websocket.Message.Receive(ws, &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestRevokedWhileNobodyReads has visitors that do not read, whose connections are blocked in the middle of a write.
func TestRevokedWhileNobodyReads(t *testing.T) {
	for _, path := range []string{"flood", "websocket"} {
		t.Run(path, func(t *testing.T) {
			w := newWorld(t, nil)
			ended := make(chan string, 1)
			handler := streams(ended)
			if path == "websocket" {
				handler = websocket.Handler(func(c *websocket.Conn) {
					for _, err := c.Write([]byte("x")); err == nil; {
						_, err = c.Write(make([]byte, 64<<10))
					}
					ended <- path
				})
			}
			w.vms.serve(t, "dev", 3000, handler)
			p := create(t, w.store, "dev", 3000, 0)
			if path == "websocket" {
				if _, err := w.openWebSocket(t, p.URL(w.port), "http://x"); err != nil {
					t.Fatal(err)
				}
			} else {
				w.openStream(t, p.URL(w.port), path)
			}
			time.Sleep(100 * time.Millisecond) // for buffers to fill; without, the test is only weaker
			if err := w.store.Revoke(t.Context(), p.ID); err != nil {
				t.Fatal(err)
			}
			<-ended
			eventually(t, "no session is left", func() bool { return len(w.server.sessions.tokens()) == 0 })
		})
	}
}

// TestRevokedBeforeTheAnswer has a guest that has not answered yet. The visitor learns that the preview was revoked.
func TestRevokedBeforeTheAnswer(t *testing.T) {
	w := newWorld(t, nil)
	here := make(chan struct{})
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { here <- struct{}{}; <-r.Context().Done() }))
	p := create(t, w.store, "dev", 3000, 0)
	go func() {
		<-here
		w.store.Revoke(context.Background(), p.ID)
	}()
	if r := w.get(t, p.URL(w.port)); r.status != 410 || !strings.Contains(r.body, "withdrawn") {
		t.Errorf("status %d, %s", r.status, r.body)
	}
}

// TestVisitorLeaves looks whether the guest's program notices.
func TestVisitorLeaves(t *testing.T) {
	w := newWorld(t, nil)
	ended := make(chan string, 1)
	w.vms.serve(t, "dev", 3000, streams(ended))
	p := create(t, w.store, "dev", 3000, 0)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL(w.port)+"events", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := w.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	cancel()
	<-ended
}

// TestEventsComeAtOnce checks that nothing waits for a buffer to fill, in the forms in which guests send pieces.
func TestEventsComeAtOnce(t *testing.T) {
	w := newWorld(t, nil)
	next := make(chan struct{})
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/sized" {
			w.Header().Set("Content-Length", "3")
		}
		for range 3 {
			fmt.Fprint(w, "x")
			http.NewResponseController(w).Flush()
			<-next
		}
	}))
	p := create(t, w.store, "dev", 3000, 0)
	for _, path := range []string{"chunked", "sized"} {
		res, err := w.client.Get(p.URL(w.port) + path)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := io.ReadFull(res.Body, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			next <- struct{}{}
		}
		res.Body.Close()
	}
}

// TestWebSocketOrigins has cookies go with pages of the preview's own origin only.
func TestWebSocketOrigins(t *testing.T) {
	w := newWorld(t, nil)
	w.vms.serve(t, "dev", 3000, websocket.Handler(func(c *websocket.Conn) {
		websocket.Message.Send(c, c.Request().Header.Get("Cookie")+" "+c.Request().Header.Get("Origin"))
	}))
	p := create(t, w.store, "dev", 3000, 0)
	base := p.URL(w.port)
	for origin, want := range map[string]string{
		strings.TrimSuffix(base, "/"): "session=1 http://localhost:3000",
		"https://example.com":         " https://example.com",
	} {
		ws, err := w.openWebSocket(t, base, origin, "Cookie: session=1")
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if err := websocket.Message.Receive(ws, &got); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", origin, got, err, want)
		}
	}
}

// TestGuestSwitches has a guest that changes the protocol without having been asked.
func TestGuestSwitches(t *testing.T) {
	w := newWorld(t, nil)
	l := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			http.ReadRequest(bufio.NewReader(conn))
			io.WriteString(conn, "HTTP/1.1 103 Early Hints\r\nAccess-Control-Allow-Credentials: true\r\nSet-Cookie: early=1\r\n\r\n"+
				"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
			conn.Close()
		}
	}()
	w.vms.put("dev", 3000, l.Addr().String())
	p := create(t, w.store, "dev", 3000, 0)
	r := w.raw(t, fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s.localhost:%d\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", p.Token, w.port))
	if r.status != 502 || r.header.Get("Set-Cookie") != "" {
		t.Errorf("%+v", r)
	}
}

// TestServersRestart has links outlive the daemon, and the VM's program.
func TestServersRestart(t *testing.T) {
	w := newWorld(t, nil)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "before") }))
	p := create(t, w.store, "dev", 3000, 0)
	if r := w.get(t, p.URL(w.port)); r.body != "before" {
		t.Errorf("before: %q", r.body)
	}
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "after") })) // the VM was restored
	w.server.transport.CloseIdleConnections()
	if r := w.get(t, p.URL(w.port)); r.body != "after" {
		t.Errorf("after the VM's restart: %q", r.body)
	}
	if err := errors.Join(w.server.Close(), w.store.Close()); err != nil {
		t.Fatal(err)
	}
	store := openStore(t, w.path, Options{Now: w.clock.Now})
	_, w.port = startServer(t, ServerConfig{Store: store, Dialer: w.vms})
	w.client = newClient(t, w.port)
	if r := w.get(t, p.URL(w.port)); r.body != "after" {
		t.Errorf("after the daemon's restart: %q", r.body)
	}
}

// TestStoreIsGone has servers refuse when they cannot know.
func TestStoreIsGone(t *testing.T) {
	w := newWorld(t, nil)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	p := create(t, w.store, "dev", 3000, 0)
	if err := os.Remove(w.path[:strings.LastIndexByte(w.path, os.PathSeparator)] + "/preview.key"); err != nil {
		t.Fatal(err)
	}
	if r := w.get(t, p.URL(w.port)); r.status != 503 {
		t.Errorf("without the key: %d", r.status)
	}
	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
	if r := w.get(t, p.URL(w.port)); r.status != 503 || w.vms.count() != 0 {
		t.Errorf("without the store: %d", r.status)
	}
}
