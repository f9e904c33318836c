package reach

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// fakeGuest is what a client reaches in place of a VM: a handler behind one port, through connections that only dial gives.
type fakeGuest struct {
	server *httptest.Server
	mu     sync.Mutex
	dialed []string
}

const fakePort = "4711"

func newFakeGuest(t *testing.T, h http.HandlerFunc) *fakeGuest {
	t.Helper()
	g := &fakeGuest{server: httptest.NewServer(h)}
	t.Cleanup(g.server.Close)
	return g
}

func (g *fakeGuest) dial(ctx context.Context, network, address string) (net.Conn, error) {
	g.mu.Lock()
	g.dialed = append(g.dialed, network+" "+address)
	g.mu.Unlock()
	if _, port, _ := net.SplitHostPort(address); port != fakePort {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	return new(net.Dialer).DialContext(ctx, network, g.server.Listener.Addr().String())
}

func (g *fakeGuest) dials() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.dialed)
}

func (g *fakeGuest) client(t *testing.T) *http.Client {
	t.Helper()
	c := NewHTTPClient(g.dial)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// hostService is a server on this host, which nothing in these tests may reach.
func hostService(t *testing.T) *url.URL {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a service of the host was reached") }))
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// asking returns a request with a time limit.
func asking(t *testing.T, method, to string, body io.Reader) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, to, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func answerOf(t *testing.T, res *http.Response, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// closer records that it was closed: a refused request's body must be closed, too.
type closer struct {
	io.Reader
	closed atomic.Bool
}

func (c *closer) Close() error { c.closed.Store(true); return nil }

// Whatever a request names, it reaches nothing outside of the VM, and dial is not called for it.
func TestFetchForgedTargets(t *testing.T) {
	service := hostService(t)
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"} {
		t.Setenv(name, service.String())
	}
	t.Setenv("NO_PROXY", "")
	g := newFakeGuest(t, func(http.ResponseWriter, *http.Request) { t.Error("the guest was reached") })
	c, port := g.client(t), service.Port()
	for _, to := range []string{
		"http://example.com/", "http://127.1:" + port, "http://0x7f000001:" + port, "http://2130706433:" + port, "http://0177.0.0.1:" + port, "http://0:" + port, "http://0.0.0.0:" + port,
		"http://[::ffff:127.0.0.1]:" + port, "http://[::]:" + port, "http://[::1%25lo]:" + port, "http://localhost.:" + port, "http://127.0.0.1.:" + port,
		"http://ⓛocalhost:" + port, "http://１２７.0.0.1:" + port, "http://localhost。:" + port, "http://localhost@127.0.0.1:" + port, "http://localhost:" + fakePort + "@127.0.0.1:" + port + "/",
		"http://localhost:80#@127.0.0.1:" + port, "https://localhost:" + port, "https://127.0.0.1:" + port, "unix:///run/x", "http://host.agentvm.internal:" + port,
		"http://localhost:0/", "http://localhost:65536/", "http://localhost.example.com/", "http://ip6-localhost:" + port,
	} {
		u, err := url.Parse(to)
		if err != nil {
			continue
		}
		body := &closer{Reader: strings.NewReader("secret")}
		r := asking(t, "POST", "http://localhost/", body)
		r.URL, r.Host = u, u.Host
		res, err := c.Do(r)
		if err == nil {
			res.Body.Close()
			t.Errorf("%s was answered with %s", to, res.Status)
			continue
		}
		if strings.Contains(to, "#@") {
			continue // is http://localhost:80/, where nothing listens
		}
		if !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.EINVAL) || !body.closed.Load() {
			t.Errorf("%s: %v, body closed %v", to, err, body.closed.Load())
		}
		if _, err := ProxyTransport(c).RoundTrip(r); !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s by a proxy: %v", to, err)
		}
	}
	for _, host := range []string{"example.com", service.Host + "@example.com", "192.168.127.1", "localhost.", "169.254.169.254"} {
		r := asking(t, "GET", "http://localhost:"+fakePort+"/", nil)
		r.Host = host
		if _, err := c.Do(r); !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("Host %q: %v", host, err)
		}
	}
	if got := strings.Join(g.dialed, ", "); got != "tcp localhost:80" {
		t.Errorf("dialled %s", got)
	}
}

// A server of this host at the very port that is asked for is not reached when the guest has none, and the error says what is missing.
func TestFetchDoesNotFallBack(t *testing.T) {
	service := hostService(t)
	g := newFakeGuest(t, nil)
	for _, host := range []string{"localhost", "127.0.0.1", "[::1]", "app.localhost"} {
		_, err := g.client(t).Do(asking(t, "GET", "http://"+host+":"+service.Port()+"/", nil))
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if g.dials() != 4 {
		t.Errorf("dialled %v", g.dialed)
	}
}

func TestFetchRedirects(t *testing.T) {
	service := hostService(t)
	to := make(map[string]string)
	g := newFakeGuest(t, func(w http.ResponseWriter, r *http.Request) {
		if next := to[r.URL.Path]; next != "" {
			http.Redirect(w, r, next, http.StatusTemporaryRedirect)
			return
		}
		fmt.Fprintf(w, "%s of %s", r.URL.Path, r.Host)
	})
	to["/here"], to["/name"], to["/out"], to["/tls"] = "/there", "http://app.localhost:"+fakePort+"/there", service.String(), "https://localhost:"+fakePort+"/"
	to["/example"], to["/user"], to["/mapped"], to["/round"], to["/port"] = "http://example.com/", "http://a@localhost:"+fakePort+"/there", "http://[::ffff:127.0.0.1]:"+fakePort, "/round", "http://localhost:9/"
	c := g.client(t)
	at := "http://localhost:" + fakePort
	for path, want := range map[string]string{"/here": "/there of localhost:" + fakePort, "/name": "/there of app.localhost:" + fakePort} {
		res, err := c.Do(asking(t, "GET", at+path, nil))
		if got := answerOf(t, res, err); got != want {
			t.Errorf("%s: %q", path, got)
		}
	}
	for path, want := range map[string]string{
		"/example": "redirected out of the VM", "/tls": "redirected out of the VM", "/user": "redirected out of the VM", "/mapped": "redirected out of the VM",
		"/round": "more than 10 redirects", "/port": syscall.ECONNREFUSED.Error(),
		"/out": syscall.ECONNREFUSED.Error(), // 127.0.0.1 and a port, in the guest
	} {
		if _, err := c.Do(asking(t, "GET", at+path, nil)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func TestFetchKeepsConnections(t *testing.T) {
	g := newFakeGuest(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
	})
	c := g.client(t)
	for i := range 20 {
		text := strings.Repeat("x", i*1000)
		res, err := c.Do(asking(t, "POST", "http://localhost:"+fakePort+"/", strings.NewReader(text)))
		if got := answerOf(t, res, err); got != text || res.Proto != "HTTP/1.1" {
			t.Fatalf("request %d: %d bytes, %s", i, len(got), res.Proto)
		}
	}
	if g.dials() != 1 {
		t.Errorf("dialled %v", g.dialed)
	}
	c.CloseIdleConnections()
	res, err := c.Do(asking(t, "GET", "http://localhost:"+fakePort+"/", nil))
	if answerOf(t, res, err); g.dials() != 2 {
		t.Errorf("dialled %v", g.dialed)
	}
}

// Both bodies are on the way at once: each piece is answered before the next is sent.
func TestFetchStreamsBothWays(t *testing.T) {
	g := newFakeGuest(t, func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		_ = control.EnableFullDuplex()
		w.WriteHeader(http.StatusOK)
		_ = control.Flush()
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			fmt.Fprintf(w, "echo %s\n", lines.Text())
			_ = control.Flush()
		}
	})
	body, send := io.Pipe()
	res, err := g.client(t).Do(asking(t, "POST", "http://localhost:"+fakePort+"/", body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for i := range 50 {
		fmt.Fprintf(send, "%d\n", i)
		if !lines.Scan() || lines.Text() != fmt.Sprintf("echo %d", i) {
			t.Fatalf("line %d: %q, %v", i, lines.Text(), lines.Err())
		}
	}
	send.Close()
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("%q, %v", lines.Text(), lines.Err())
	}
}

// A body of many megabytes arrives as it is, also when its sender says that it is compressed.
func TestFetchLargeBody(t *testing.T) {
	block := bytes.Repeat([]byte("0123456789abcde\n"), 4096)
	const blocks = 256
	g := newFakeGuest(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "" {
			t.Errorf("Accept-Encoding %q", r.Header.Get("Accept-Encoding"))
		}
		w.Header().Set("Content-Encoding", "gzip")
		for range blocks {
			_, _ = w.Write(block)
		}
	})
	want, got := sha256.New(), sha256.New()
	for range blocks {
		want.Write(block)
	}
	res, err := g.client(t).Do(asking(t, "GET", "http://localhost:"+fakePort+"/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if n, err := io.Copy(got, res.Body); err != nil || n != blocks*int64(len(block)) || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// The context of a request ends it while it streams and while the guest sends nothing, and frees its connection.
func TestFetchEndsWithItsContext(t *testing.T) {
	gone := make(chan struct{}, 2)
	g := newFakeGuest(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events" {
			fmt.Fprint(w, "data: 1\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
		gone <- struct{}{}
	})
	for _, path := range []string{"/events", "/silent"} {
		ctx, cancel := context.WithCancel(t.Context())
		r := asking(t, "GET", "http://localhost:"+fakePort+path, nil).WithContext(ctx)
		if path == "/silent" {
			go func() {
				for g.dials() < 2 {
					time.Sleep(time.Millisecond)
				}
				cancel()
			}()
		}
		res, err := g.client(t).Do(r)
		if err == nil {
			if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || line != "data: 1\n" {
				t.Errorf("%q, %v", line, err)
			}
			cancel()
			_, err = res.Body.Read(make([]byte, 1))
			for err == nil {
				_, err = res.Body.Read(make([]byte, 1))
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", path, err)
			}
			res.Body.Close()
		} else if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", path, err)
		}
		if path == "/events" {
			<-gone
		}
		cancel()
	}
}

// An answer with status 101 is a connection from then on, as WebSocket needs it.
func TestFetchUpgrades(t *testing.T) {
	g := newFakeGuest(t, func(w http.ResponseWriter, r *http.Request) {
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(both, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: %s\r\nConnection: Upgrade\r\n\r\n", r.Header.Get("Upgrade"))
		_ = both.Flush()
		_, _ = io.Copy(conn, both)
	})
	r := asking(t, "GET", "http://localhost:"+fakePort+"/", nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	res, err := g.client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	both, ok := res.Body.(io.ReadWriteCloser)
	if res.StatusCode != http.StatusSwitchingProtocols || !ok {
		t.Fatalf("%s, %T", res.Status, res.Body)
	}
	for _, text := range []string{"ping", "pong", "\x81\x85frame"} {
		got := make([]byte, len(text))
		if _, err := io.WriteString(both, text); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(both, got); err != nil || string(got) != text {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

// Headers without end, and no HTTP at all, are errors.
func TestFetchHostileAnswers(t *testing.T) {
	for name, answer := range map[string]string{
		"no HTTP": "SSH-2.0-x\r\n", "endless header": "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2*fetchHeader) + "\r\n\r\n", "nothing": "",
		"cut": "HTTP/1.1 200", "bad length": "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			g := newFakeGuest(t, func(w http.ResponseWriter, r *http.Request) {
				conn, both, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.WriteString(both, answer)
				_, _ = both.Flush(), conn.Close()
			})
			if res, err := g.client(t).Do(asking(t, "POST", "http://localhost:"+fakePort+"/", strings.NewReader("x"))); err == nil {
				res.Body.Close()
				t.Error(res.Status)
			}
		})
	}
}
