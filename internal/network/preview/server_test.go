package preview

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// echo answers with what it was asked.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s\nHost: %s\n", r.Method, r.RequestURI, r.Host)
	for _, name := range []string{"Origin", "Referer", "Cookie", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Prefix",
		"X-Forwarded-Port", "X_forwarded_for", "X-Real-Ip", "X_real_ip", "True-Client-Ip", "X-Other", "Forwarded", "Connection", "Upgrade", "Keep-Alive", "X-Named", "Te", "Authorization", "Proxy-Authorization"} {
		for _, value := range r.Header.Values(name) {
			fmt.Fprintf(w, "%s: %s\n", name, value)
		}
	}
	fmt.Fprintf(w, "\n%s", body)
}

// TestRequest checks what the guest's program receives.
func TestRequest(t *testing.T) {
	w := newWorld(t, nil)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	p := create(t, w.store, "dev", 3000, 0)
	name, numeric := fmt.Sprintf("%s.localhost:%d", p.Token, w.port), fmt.Sprintf("127.0.0.1:%d", w.port)
	for _, c := range []struct {
		name, method, path, body string
		fields                   []string
		want                     string // by both forms, PREFIX cut
	}{
		{name: "plain", method: "GET", path: "", want: "GET /\nHost: localhost:3000\n"},
		{name: "query as it is", method: "GET", path: "a?b;c=%zz&d", want: "GET /a?b;c=%zz&d\nHost: localhost:3000\n"},
		{name: "escapes as they are", method: "GET", path: "a%2Fb//c/%2e%2e/d%20e", want: "GET /a%2Fb//c/%2e%2e/d%20e\nHost: localhost:3000\n"},
		{name: "two slashes", method: "GET", path: "/evil.example/x", want: "GET //evil.example/x\nHost: localhost:3000\n"},
		{name: "body", method: "POST", path: "x", body: "some words", want: "POST /x\nHost: localhost:3000\n"},
		{name: "another method", method: "PROPFIND", path: "x", want: "PROPFIND /x\nHost: localhost:3000\n"},
		{name: "hop by hop", method: "GET", path: "x", fields: []string{"Connection: X-Named", "X-Named: 1", "Keep-Alive: 5", "Proxy-Authorization: secret", "Authorization: mine"},
			want: "GET /x\nHost: localhost:3000\nAuthorization: mine\n"},
		{name: "several hop by hop", method: "GET", path: "x", fields: []string{"Connection: close, x-named ,", "X-Named: 1", "Connection: X-OTHER", "X-Other: 2"},
			want: "GET /x\nHost: localhost:3000\n"},
		{name: "hop by hop with a WebSocket's words", method: "GET", path: "x", fields: []string{"Connection: X-Named, Upgrade", "Upgrade: h2c", "X-Named: 1"},
			want: "GET /x\nHost: localhost:3000\n"},
		{name: "another protocol", method: "GET", path: "x", fields: []string{"Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: x"}, want: "GET /x\nHost: localhost:3000\n"},
		{name: "forged forwarding", method: "GET", path: "x", fields: []string{"X-Forwarded-For: 8.8.8.8", "X-Forwarded-Host: evil", "X-Forwarded-Prefix: /evil", "X-Forwarded-Port: 1", "Forwarded: for=evil", "X_Forwarded_For: 8.8.8.8", "X-Real-IP: 8.8.8.8", "X_Real_IP: 8.8.8.8", "True-Client-IP: 8.8.8.8"},
			want: "GET /x\nHost: localhost:3000\n"},
		{name: "referer of elsewhere", method: "GET", path: "x", fields: []string{"Referer: https://example.com/"}, want: "GET /x\nHost: localhost:3000\nReferer: https://example.com/\n"},
		{name: "referer of another preview", method: "GET", path: "x", fields: []string{"Referer: http://127.0.0.1:1/p/secret/"}, want: "GET /x\nHost: localhost:3000\n"},
		{name: "own origin", method: "POST", path: "x", fields: []string{"Origin: OWN", "Referer: BASE/page?q"},
			want: "POST /x\nHost: localhost:3000\nOrigin: http://localhost:3000\nReferer: http://localhost:3000/page?q\n"},
		{name: "form of an own page", method: "POST", path: "x", fields: []string{"Origin: null", "Sec-Fetch-Site: same-origin"},
			want: "POST /x\nHost: localhost:3000\nOrigin: http://localhost:3000\n"},
		{name: "foreign origin", method: "POST", path: "x", fields: []string{"Origin: https://example.com"}, want: "POST /x\nHost: localhost:3000\nOrigin: https://example.com\n"},
	} {
		for form, base := range w.forms(p) {
			t.Run(c.name+" "+form, func(t *testing.T) {
				host, prefix := name, ""
				if form == "by path" {
					host, prefix = numeric, "/p/"+p.Token
				}
				var fields []string
				for _, field := range c.fields {
					fields = append(fields, strings.NewReplacer("OWN", "http://"+host, "BASE", "http://"+host+prefix).Replace(field))
				}
				got := w.do(t, c.method, base+c.path, c.body, fields...)
				forwarded := "X-Forwarded-For: 127.0.0.1\nX-Forwarded-Host: localhost:3000\nX-Forwarded-Proto: http\n"
				if prefix != "" {
					forwarded += "X-Forwarded-Prefix: " + prefix + "\n"
				}
				head, authorization, _ := strings.Cut(c.want, "Authorization")
				want := head + forwarded
				if authorization != "" {
					want += "Authorization" + authorization
				}
				if diff := cmp.Diff(want+"\n"+c.body, got.body); got.status != 200 || diff != "" {
					t.Errorf("status %d (-want +got):\n%s", got.status, diff)
				}
			})
		}
	}
}

// raw sends bytes and reads what comes until the connection ends or the response does.
func (w *world) raw(t *testing.T, request string) reply {
	t.Helper()
	conn := w.connect(t)
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(body)}
}

func (w *world) connect(t testing.TB) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(w.port))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	return conn
}

func TestLanding(t *testing.T) {
	w := newWorld(t, nil)
	create(t, w.store, "secret-vm", 80, 0)
	base := fmt.Sprintf("http://127.0.0.1:%d", w.port)
	for _, base := range []string{base, fmt.Sprintf("http://localhost:%d", w.port)} {
		r := w.get(t, base+"/", "Accept: text/html")
		if r.status != 200 || !strings.Contains(r.body, "agentvm preview create") || strings.Contains(r.body, "secret-vm") {
			t.Errorf("%d\n%s", r.status, r.body)
		}
	}
	for path, want := range map[string]int{"/x": 404, "/p/": 404, "/p": 404, "/favicon.ico": 404} {
		if r := w.get(t, base+path); r.status != want {
			t.Errorf("%s: %d, want %d", path, r.status, want)
		}
	}
	if r := w.do(t, "POST", base+"/", "x"); r.status != 405 || r.header.Get("Allow") == "" {
		t.Errorf("POST: %d", r.status)
	}
}

func TestPathForm(t *testing.T) {
	w := newWorld(t, nil)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	p := create(t, w.store, "dev", 3000, 0)
	r := w.get(t, strings.TrimSuffix(p.PathURL(w.port), "/")+"?q=1")
	if r.status != 308 || r.header.Get("Location") != "/p/"+p.Token+"/?q=1" {
		t.Errorf("without a slash: %d, %v", r.status, r.header)
	}
	off := newWorld(t, func(cfg *ServerConfig) { cfg.NoPaths = true })
	off.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	p = create(t, off.store, "dev", 3000, 0)
	if r := off.get(t, p.PathURL(off.port)); r.status != 404 {
		t.Errorf("turned off: %d", r.status)
	}
	if r := off.get(t, p.URL(off.port)); r.status != 200 {
		t.Errorf("by name: %d", r.status)
	}
}

func TestOtherPort(t *testing.T) {
	w := newWorld(t, func(cfg *ServerConfig) { cfg.Ports = []uint16{8080} })
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	p := create(t, w.store, "dev", 3000, 0)
	if r := w.get(t, p.URL(w.port), "Host: "+p.Token+".localhost:8080"); r.status != 200 || strings.Contains(r.body, p.Token) {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func TestServeRefuses(t *testing.T) {
	store := openStore(t, t.TempDir()+"/previews.db", Options{})
	s := NewServer(ServerConfig{Store: store, Dialer: newVMs()})
	public := &namedListener{listen(t), &net.TCPAddr{IP: net.IPv4zero, Port: 80}}
	if err := s.Serve(t.Context(), public); err == nil || !strings.Contains(err.Error(), "listen on 127.0.0.1") {
		t.Errorf("on all addresses: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Serve(t.Context(), listen(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

type namedListener struct {
	net.Listener
	at net.Addr
}

func (l *namedListener) Addr() net.Addr { return l.at }

func TestServeEndsWithItsContext(t *testing.T) {
	store := openStore(t, t.TempDir()+"/previews.db", Options{})
	vms := newVMs()
	here := make(chan struct{})
	vms.serve(t, "dev", 3000, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { close(here); <-r.Context().Done() }))
	p := create(t, store, "dev", 3000, 0)
	s, l := NewServer(ServerConfig{Store: store, Dialer: vms}), listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	failed := make(chan error)
	go func() {
		res, err := newClient(t, port).Get(p.URL(port))
		if err == nil {
			res.Body.Close()
		}
		failed <- err
	}()
	<-here
	cancel()
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if err := <-failed; err == nil {
		t.Error("the request was answered")
	}
	if err := s.Serve(t.Context(), listen(t)); err == nil {
		t.Error("Serve was called twice")
	}
}
