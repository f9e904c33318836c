package preview

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestParallel has 200 requests at once, all of which are in the guest before one is answered.
func TestParallel(t *testing.T) {
	const n = 200
	w := newWorld(t, nil)
	var here sync.WaitGroup
	here.Add(n)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		here.Done()
		here.Wait()
		body, _ := io.ReadAll(r.Body)
		w.Write(body)
	}))
	p := create(t, w.store, "dev", 3000, 0)
	forms := []string{p.URL(w.port), p.PathURL(w.port)}
	var clients sync.WaitGroup
	for i := range n {
		clients.Go(func() {
			body := strings.Repeat(fmt.Sprint(i, " "), 1000)
			if r := w.do(t, "POST", forms[i%2], body); r.status != 200 || r.body != body {
				t.Errorf("%d: status %d, %d bytes", i, r.status, len(r.body))
			}
		})
	}
	clients.Wait()
}

func TestRequestLimit(t *testing.T) {
	w := newWorld(t, func(cfg *ServerConfig) { cfg.Limits.Requests = 2 })
	release, here := make(chan struct{}), make(chan struct{})
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { here <- struct{}{}; <-release }))
	p := create(t, w.store, "dev", 3000, 0)
	var clients sync.WaitGroup
	for range 2 {
		clients.Go(func() { w.get(t, p.URL(w.port)) })
		<-here
	}
	if r := w.get(t, p.URL(w.port)); r.status != 503 || r.header.Get("Retry-After") == "" {
		t.Errorf("the third: %d", r.status)
	}
	close(release)
	clients.Wait()
}

// TestHungLinkBlocksNoOther: a link with as many requests that hang as it is given leaves places for others.
func TestHungLinkBlocksNoOther(t *testing.T) {
	const all = 16
	w := newWorld(t, func(cfg *ServerConfig) { cfg.Limits.Requests = all })
	release, here := make(chan struct{}), make(chan struct{}, all)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { here <- struct{}{}; <-release }))
	w.vms.serve(t, "dev", 3001, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "fine") }))
	hung := create(t, w.store, "dev", 3000, 0)
	others := []Preview{create(t, w.store, "dev", 3001, 0), create(t, w.store, "dev", 3001, 0)}
	var clients sync.WaitGroup
	var refused atomic.Int32
	for range all {
		clients.Go(func() {
			if r := w.get(t, hung.URL(w.port)); r.status == 503 {
				refused.Add(1)
				here <- struct{}{}
			}
		})
	}
	for range all {
		<-here
	}
	if n := refused.Load(); n == 0 || n > all/2 {
		t.Errorf("%d of %d requests of one link were refused", n, all)
	}
	for _, p := range others {
		if r := w.get(t, p.URL(w.port)); r.status != 200 || r.body != "fine" {
			t.Errorf("another link: %d %q", r.status, r.body)
		}
	}
	close(release)
	clients.Wait()
}

// TestMalformedBody: what is wrong with a visitor's request is not the guest's fault.
func TestMalformedBody(t *testing.T) {
	w := newWorld(t, nil)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			panic(http.ErrAbortHandler)
		}
	}))
	p := create(t, w.store, "dev", 3000, 0)
	for name, body := range map[string]string{
		"a size that is none":   "zz\r\nx\r\n0\r\n\r\n",
		"a bad chunk extension": "3;\x00\n=\r\nabc\r\n0\r\n\r\n",
		"no end of a chunk":     "3\r\nabcdef\r\n0\r\n\r\n",
	} {
		request := fmt.Sprintf("POST / HTTP/1.1\r\nHost: %s.localhost:%d\r\nTransfer-Encoding: chunked\r\n\r\n%s", p.Token, w.port, body)
		if r := w.raw(t, request); r.status != 400 {
			t.Errorf("%s: %d %q", name, r.status, r.body)
		}
	}
}

// TestConnectionLimit has visitors without a token take all connections: the oldest goes for the next one.
func TestConnectionLimit(t *testing.T) {
	w := newWorld(t, func(cfg *ServerConfig) {
		cfg.Limits.Connections = 2
	})
	for range 2 {
		io.WriteString(w.connect(t), "GET / HTTP/1.1\r\nHost: ") // and no more
	}
	if r := w.get(t, fmt.Sprintf("http://127.0.0.1:%d/", w.port)); r.status != 200 {
		t.Errorf("beside connections without a request: %d", r.status)
	}
}

// TestSlowHeader has visitors stop before and in the middle of a header, for which alone there is a short time here.
func TestSlowHeader(t *testing.T) {
	w := newWorld(t, func(cfg *ServerConfig) { cfg.Limits.HeaderTimeout = 300 * time.Millisecond })
	for name, request := range map[string]string{"no byte": "", "a part": "GET / HTTP/1.1\r\nHost: a.localhost\r\n"} {
		t.Run(name, func(t *testing.T) {
			conn := w.connect(t)
			io.WriteString(conn, request)
			wantGivenUp(t, conn)
		})
	}
}

// TestSlowVisitors stop in the middle of a body, and of reading.
func TestSlowVisitors(t *testing.T) {
	w := newWorld(t, func(cfg *ServerConfig) { cfg.Limits.StallTimeout = 300 * time.Millisecond })
	ended := make(chan error, 1)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		for err == nil && r.URL.Path == "/endless" {
			_, err = rw.Write(make([]byte, 1<<20))
		}
		ended <- err
	}))
	p := create(t, w.store, "dev", 3000, 0)
	host := fmt.Sprintf("Host: %s.localhost:%d\r\n", p.Token, w.port)
	stranger := fmt.Sprintf("Host: %s.localhost:%d\r\n", strings.Repeat("0", 63), w.port)
	for _, c := range []struct {
		name, request string
		guest         bool // is in it
		reads         bool
	}{
		{"body", "POST / HTTP/1.1\r\n" + host + "Content-Length: 1000\r\n\r\nx", true, true},
		{"chunk", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n5\r\nx", true, true},
		{"body of a stranger", "POST / HTTP/1.1\r\n" + stranger + "Content-Length: 1000\r\n\r\nx", false, true},
		{"body for the landing page", "GET / HTTP/1.1\r\nHost: 127.0.0.1:" + strconv.Itoa(int(w.port)) + "\r\nContent-Length: 1000\r\n\r\nx", false, true},
		{"reading", "GET /endless HTTP/1.1\r\n" + host + "\r\n", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := w.connect(t)
			io.WriteString(conn, c.request)
			if c.guest {
				if err := <-ended; err == nil {
					t.Error("the guest's program did not notice")
				}
			}
			if c.reads {
				wantGivenUp(t, conn)
			}
			eventually(t, "no session is left", func() bool { return len(w.server.sessions.tokens()) == 0 })
		})
	}
}

// wantGivenUp reads until the server has ended the connection; connect has a deadline.
func wantGivenUp(t *testing.T, conn net.Conn) {
	t.Helper()
	io.Copy(io.Discard, conn)
	if _, err := conn.Read(make([]byte, 1)); isTimeout(err) {
		t.Error("the connection was kept")
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// TestBodyLimit sends more than is allowed without having said so.
func TestBodyLimit(t *testing.T) {
	w := newWorld(t, func(cfg *ServerConfig) { cfg.Limits.BodyBytes = 1000 })
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	p := create(t, w.store, "dev", 3000, 0)
	for size, want := range map[int]int{1000: 200, 1001: 413} {
		request := fmt.Sprintf("POST / HTTP/1.1\r\nHost: %s.localhost:%d\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", p.Token, w.port, size, strings.Repeat("x", size))
		if r := w.raw(t, request); r.status != want {
			t.Errorf("%d bytes: status %d, want %d", size, r.status, want)
		}
	}
}

func TestHeaderLimit(t *testing.T) {
	w := newWorld(t, func(cfg *ServerConfig) { cfg.Limits.HeaderBytes = 4096 })
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	p := create(t, w.store, "dev", 3000, 0)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL(w.port), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X", strings.Repeat("x", 3<<10))
	res, err := w.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 200 || w.vms.count() != 1 {
		t.Errorf("within the limit: %d, %d dials", res.StatusCode, w.vms.count())
	}
	r.Header.Set("X", strings.Repeat("x", 1<<20))
	if res, err = w.client.Do(r); err == nil { // or the connection breaks while it is still sending
		res.Body.Close()
		if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("a large header: %d", res.StatusCode)
		}
	}
	if w.vms.count() != 1 {
		t.Error("the VM was reached")
	}
}
