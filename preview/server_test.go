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
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// echo answers with what it was asked.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s\nHost: %s\n", r.Method, r.RequestURI, r.Host)
	for _, name := range []string{"Origin", "Referer", "Cookie", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Prefix",
		"X-Forwarded-Port", "Forwarded", "Connection", "Upgrade", "Keep-Alive", "X-Named", "Te", "Authorization", "Proxy-Authorization"} {
		for _, value := range r.Header.Values(name) {
			fmt.Fprintf(w, "%s: %s\n", name, value)
		}
	}
	fmt.Fprintf(w, "\n%s", body)
}

// TestRequest checks what the guest's program is told.
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
		{name: "another protocol", method: "GET", path: "x", fields: []string{"Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: x"}, want: "GET /x\nHost: localhost:3000\n"},
		{name: "forged forwarding", method: "GET", path: "x", fields: []string{"X-Forwarded-For: 8.8.8.8", "X-Forwarded-Host: evil", "X-Forwarded-Prefix: /evil", "X-Forwarded-Port: 1", "Forwarded: for=evil"},
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
				forwarded := "X-Forwarded-For: 127.0.0.1\nX-Forwarded-Host: " + host + "\nX-Forwarded-Proto: http\n"
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

// TestHostAttacks has a good token under names that are not the preview's, which is what DNS rebinding leads to. Not even the store is asked.
func TestHostAttacks(t *testing.T) {
	w := newWorld(t, nil)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	p := create(t, w.store, "dev", 3000, 0)
	port := ":" + strconv.Itoa(int(w.port))
	path := "/p/" + p.Token + "/"
	for _, host := range []string{
		"evil.example" + port, p.Token + ".evil.example" + port, p.Token + ".localhost.evil.example" + port, "evil" + p.Token + "localhost" + port,
		"127.0.0.1.evil.example" + port, "127.0.0.1", "127.0.0.1:1", "localhost:99999", p.Token + ".localhost", p.Token + ".localhost:1",
		"x." + p.Token + ".localhost" + port, "localhost." + port, p.Token + ".localhost." + port, "127.1" + port, "0.0.0.0" + port, "2130706433" + port,
		"[::ffff:127.0.0.1]" + port, "192.168.0.1" + port, "127.0.0.1:0" + port[1:], "127.0.0.1:+" + port[1:], "user@127.0.0.1" + port, "127.0.0.2" + port,
	} {
		// Under a wrong name a good token and a bad one are the same.
		var replies []reply
		for _, path := range []string{path, "/p/" + strings.Repeat("0", 63) + "/", "/"} {
			replies = append(replies, w.raw(t, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n"))
		}
		for _, r := range replies {
			if r.status != http.StatusMisdirectedRequest && r.status != http.StatusBadRequest || r.body != replies[0].body {
				t.Errorf("Host %s: %d, %s", host, r.status, r.body)
			}
			if r.header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("Host %s: pages of anybody may read the answer", host)
			}
		}
	}
	for _, request := range []string{
		"GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1" + port + "\r\n\r\n",
		"GET http://127.0.0.1" + port + path + " HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1" + port + "\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1" + port + "\r\n\r\n",
		"GET " + path + " HTTP/1.1\r\n\r\n",
		"GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1" + port + "\r\nHost: evil.example\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		if r := w.raw(t, request); r.status != http.StatusBadRequest && r.status != 505 {
			t.Errorf("%q: %d, %s", request, r.status, r.body)
		}
	}
	if n := w.vms.count(); n != 0 {
		t.Errorf("the VM was reached %d times", n)
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

// TestOrigin has what browsers send with requests of other pages.
func TestOrigin(t *testing.T) {
	w := newWorld(t, nil)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	p := create(t, w.store, "dev", 3000, 0)
	base := p.URL(w.port)
	own := strings.TrimSuffix(base, "/")
	for _, c := range []struct {
		name   string
		fields []string
		status int
		cookie bool // goes to the guest
	}{
		{"typed in", nil, 200, true},
		{"own page", []string{"Origin: " + own, "Sec-Fetch-Site: same-origin"}, 200, true},
		{"link elsewhere", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"}, 200, true},
		{"image elsewhere", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"}, 200, false},
		{"another port's page", []string{"Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors"}, 200, false},
		{"fetch elsewhere", []string{"Origin: https://example.com"}, 200, false},
		{"another preview", []string{"Origin: http://" + strings.Repeat("0", 63) + ".localhost:" + strconv.Itoa(int(w.port))}, 200, false},
		{"the landing page", []string{"Origin: http://127.0.0.1:" + strconv.Itoa(int(w.port))}, 200, false},
		{"https", []string{"Origin: " + strings.Replace(own, "http:", "https:", 1)}, 200, false},
		{"opaque", []string{"Origin: null"}, 200, false},
		{"opaque elsewhere", []string{"Origin: null", "Sec-Fetch-Site: cross-site"}, 200, false},
		{"two", []string{"Origin: " + own, "Origin: https://example.com"}, 400, false},
		{"with a path", []string{"Origin: https://example.com/x"}, 400, false},
		{"nonsense", []string{"Origin: x"}, 400, false},
		{"list", []string{"Origin: " + own + " https://example.com"}, 400, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := w.get(t, base, append(c.fields, "Cookie: session=1")...)
			if r.status != c.status || strings.Contains(r.body, "Cookie: session=1") != c.cookie {
				t.Errorf("status %d, guest was told\n%s", r.status, r.body)
			}
		})
	}
}

func TestCORS(t *testing.T) {
	w := newWorld(t, nil)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		w.Header().Set("Access-Control-Allow-Credentials", "true")
		w.Header().Set("Referrer-Policy", "unsafe-url")
		w.Header().Set("Alt-Svc", `h2="evil.example:443"`)
		fmt.Fprint(w, r.Method)
	}))
	p := create(t, w.store, "dev", 3000, 0)
	for form, base := range w.forms(p) {
		t.Run(form, func(t *testing.T) {
			ask := []string{"Origin: https://example.com", "Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: authorization, X-Mine",
				"Access-Control-Request-Private-Network: true"}
			r := w.do(t, http.MethodOptions, base+"x", "", ask...)
			for name, want := range map[string]string{"Allow-Origin": "*", "Allow-Methods": "PUT", "Allow-Headers": "authorization, X-Mine", "Allow-Private-Network": "true", "Allow-Credentials": ""} {
				if got := r.header.Get("Access-Control-" + name); got != want {
					t.Errorf("preflight: %s is %q, want %q", name, got, want)
				}
			}
			if r.status != http.StatusNoContent || w.vms.count() != 0 {
				t.Errorf("preflight: status %d, %d dials", r.status, w.vms.count())
			}
			ask[1], ask[2] = "Access-Control-Request-Method: (", "Access-Control-Request-Headers: a\tb, <"
			if r := w.do(t, http.MethodOptions, base, "", ask...); r.header.Get("Access-Control-Allow-Methods") != "*" || r.header.Get("Access-Control-Allow-Headers") != "*" {
				t.Errorf("preflight for nonsense: %v", r.header)
			}
			for _, method := range []string{"GET", "OPTIONS"} {
				r = w.do(t, method, base, "", "Origin: https://example.com")
				if r.body != method || r.header.Get("Alt-Svc") != "" {
					t.Errorf("%s: %+v", method, r)
				}
				for name, want := range map[string][]string{"Access-Control-Allow-Origin": {"*"}, "Access-Control-Allow-Credentials": nil, "Referrer-Policy": {"no-referrer"}} {
					if diff := cmp.Diff(want, r.header.Values(name)); diff != "" {
						t.Errorf("%s: %s (-want +got):\n%s", method, name, diff)
					}
				}
			}
			w.vms.mu.Lock()
			w.vms.dials = 0
			w.vms.mu.Unlock()
			w.server.transport.CloseIdleConnections()
		})
	}
	if r := w.do(t, http.MethodOptions, fmt.Sprintf("http://127.0.0.1:%d/p/x/", w.port), "", "Origin: https://example.com", "Access-Control-Request-Method: PUT"); r.status != 404 || r.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("preflight without a token: %+v", r)
	}
}

// TestRefused has all that a visitor may be told instead of an answer, as a page and as text.
func TestRefused(t *testing.T) {
	var permit error
	w := newWorld(t, func(cfg *ServerConfig) {
		cfg.Permit = func(context.Context, Preview) error { return permit }
		cfg.Limits.BodyBytes = 100
		cfg.Limits.ResponseTimeout = 50 * time.Millisecond
	})
	garbage := listen(t)
	go func() {
		for {
			conn, err := garbage.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, "SSH-2.0-dropbear\r\n")
			conn.Close()
		}
	}()
	w.vms.put("dev", 22, garbage.Addr().String())
	silent := listen(t)
	w.vms.put("dev", 23, silent.Addr().String())
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	w.vms.serve(t, "dev", 3001, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Large", strings.Repeat("x", 1<<20))
	}))
	works, nobody := create(t, w.store, "dev", 3000, 0), create(t, w.store, "dev", 1, 0)
	ssh, stuck, large := create(t, w.store, "dev", 22, 0), create(t, w.store, "dev", 23, 0), create(t, w.store, "dev", 3001, 0)
	short, revoked := create(t, w.store, "dev", 3000, time.Minute), create(t, w.store, "dev", 3000, 0)
	if err := w.store.Revoke(t.Context(), revoked.ID); err != nil {
		t.Fatal(err)
	}
	w.clock.advance(2 * time.Minute)
	for _, c := range []struct {
		name, token, body string
		permit            error
		status            int
		text              string
	}{
		{"works", works.Token, "", nil, 200, "GET"},
		{"wrong", strings.Repeat("0", 63), "", nil, 404, "No such preview"},
		{"cut", works.Token[:62], "", nil, 404, "No such preview"},
		{"changed", works.Token[:40] + "0000" + works.Token[44:], "", nil, 404, "No such preview"},
		{"expired", short.Token, "", nil, 410, "expired"},
		{"revoked", revoked.Token, "", nil, 410, "withdrawn"},
		{"nobody listens", nobody.Token, "", nil, 502, "No program in the virtual machine “dev” listens on port 1"},
		{"no HTTP", ssh.Token, "", nil, 502, "does not speak HTTP"},
		{"silent", stuck.Token, "", nil, 504, "does not answer"},
		{"large header", large.Token, "", nil, 502, "Not a proper answer"},
		{"large body", works.Token, strings.Repeat("x", 101), nil, 413, "100 bytes"},
		{"policy", works.Token, "", fmt.Errorf("blocked by network.listen policy: %w", syscall.EACCES), 403, "policy"},
		{"stopped", works.Token, "", ErrNotRunning, 503, "not running"},
		{"busy VM", works.Token, "", syscall.EAGAIN, 503, "Too busy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			permit = c.permit
			p := Preview{Token: c.token}
			for form, base := range w.forms(p) {
				for accept, kind := range map[string]string{"text/html,*/*": "text/html; charset=utf-8", "*/*": "text/plain; charset=utf-8"} {
					r := w.do(t, "GET", base, c.body, "Accept: "+accept)
					if r.status != c.status || !strings.Contains(r.body, c.text) {
						t.Errorf("%s: status %d\n%s", form, r.status, r.body)
					}
					if r.status == 200 {
						continue
					}
					if got := r.header.Get("Content-Type"); got != kind {
						t.Errorf("%s: %s is answered by %s", form, accept, got)
					}
					if strings.Contains(r.body, c.token) || strings.Contains(r.body, "<script") {
						t.Errorf("%s: the page tells the token, or has scripts:\n%s", form, r.body)
					}
					if !strings.HasPrefix(r.header.Get("Content-Security-Policy"), "default-src 'none'") || r.header.Get("Referrer-Policy") != "no-referrer" ||
						r.header.Get("Cache-Control") != "no-store" {
						t.Errorf("%s: header %v", form, r.header)
					}
				}
			}
		})
	}
}

// TestRevokedBeforeTheVM checks that the VM is not touched for what is not good, not even by Permit.
func TestRevokedBeforeTheVM(t *testing.T) {
	asked := 0
	w := newWorld(t, func(cfg *ServerConfig) {
		cfg.Permit = func(context.Context, Preview) error { asked++; return nil }
	})
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	revoked, expired := create(t, w.store, "dev", 3000, 0), create(t, w.store, "dev", 3000, time.Minute)
	if err := w.store.Revoke(t.Context(), revoked.ID); err != nil {
		t.Fatal(err)
	}
	w.clock.advance(time.Minute)
	for _, p := range []Preview{revoked, expired, {Token: "nonsense"}, {Token: strings.Repeat("v", 63)}} {
		for form, base := range w.forms(p) {
			if r := w.get(t, base); r.status != 410 && r.status != 404 {
				t.Errorf("%s: status %d", form, r.status)
			}
		}
	}
	if asked != 0 || w.vms.count() != 0 {
		t.Errorf("asked %d times, dialled %d times", asked, w.vms.count())
	}
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
	if r := w.get(t, p.URL(w.port), "Host: "+p.Token+".localhost:8080"); r.status != 200 || !strings.Contains(r.body, "localhost:8080") {
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
