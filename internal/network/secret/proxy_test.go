package secret

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/test/leaktest"
)

const (
	value       = "sk-live-0123456789"
	placeholder = "agentvm-secret-KEY"
)

// world is a host that gets a secret, and a proxy on the way to it.
type world struct {
	t       *testing.T
	proxy   *Proxy
	guest   *x509.CertPool // what the guest trusts: the VM's authority
	server  *httptest.Server
	address string                      // at which the host is connected to
	got     atomic.Pointer[http.Header] // of the last request
	asked   atomic.Int64
}

// newWorld makes both. The host's certificate is for the name of, and the secret for api.example.
func newWorld(t *testing.T, of string, handle http.HandlerFunc) *world {
	t.Cleanup(func() { leaktest.None(t) })
	w := &world{t: t, guest: x509.NewCertPool()}
	ca, certificate := issue(t, of)
	w.server = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.asked.Add(1)
		header := r.Header.Clone()
		w.got.Store(&header)
		handle(rw, r)
	}))
	w.server.EnableHTTP2 = true
	w.server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	w.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	w.server.StartTLS()
	w.address = w.server.Listener.Addr().String()
	t.Cleanup(w.server.Close)
	list := []Secret{{Name: "KEY", Value: value, Hosts: []string{"api.example"}}}
	authority, err := NewAuthority(list)
	if err != nil {
		t.Fatal(err)
	}
	w.guest.AppendCertsFromPEM(authority.PEM())
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	if w.proxy, err = NewProxy(ProxyConfig{Secrets: list, Authority: authority, Roots: roots, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.proxy.Close() })
	return w
}

// issue makes a CA and a certificate of it for a name.
func issue(t *testing.T, name string) (*x509.Certificate, tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter}
	if der, err = x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, key); err != nil {
		t.Fatal(err)
	}
	return ca, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// dial is a connection of the guest to the host.
func (w *world) dial() net.Conn {
	w.t.Helper()
	to := func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", w.address)
	}
	upstream, err := to(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := w.proxy.Through(upstream, 443, to)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	return c
}

// client is the guest's client.
func (w *world) client(http2 bool) *http.Client {
	transport := &http.Transport{
		DialContext:     func(context.Context, string, string) (net.Conn, error) { return w.dial(), nil },
		TLSClientConfig: &tls.Config{RootCAs: w.guest}, ForceAttemptHTTP2: http2,
	}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 2 * time.Minute}
}

// send sends a request with the placeholder and returns the status and the answer.
func (w *world) send(c *http.Client, url, host string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), "GET", url, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Host = host
	r.Header.Set("Authorization", "Bearer "+placeholder)
	answer, err := c.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.StatusCode, answer.Header.Get("X-Echo") + "|" + answer.Proto + "|" + string(text)
}

func TestReplaced(t *testing.T) {
	w := newWorld(t, "api.example", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Echo", r.Header.Get("Authorization"))
		fmt.Fprint(rw, r.Host, r.URL)
	})
	for _, http2 := range []bool{false, true} {
		c := w.client(http2)
		for range 3 {
			proto := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[http2]
			want := "Bearer " + placeholder + "|" + proto + "|api.example/a%2Fb?x=1;y"
			if status, text := w.send(c, "https://api.example/a%2Fb?x=1;y", ""); status != 200 || text != want {
				t.Errorf("%d %s, want %s", status, text, want)
			}
			if got := w.got.Load(); got.Get("Authorization") != "Bearer "+value || got.Get("X-Forwarded-For") != "" || got.Get("User-Agent") != "Go-http-client/"+proto[5:8] && http2 == false {
				t.Errorf("the host got %v", *got)
			}
		}
	}
}

// A front end that serves several names must not be sent the secret for another of them.
func TestOtherHostInTheRequest(t *testing.T) {
	w := newWorld(t, "api.example", func(http.ResponseWriter, *http.Request) {})
	for _, http2 := range []bool{false, true} {
		if status, _ := w.send(w.client(http2), "https://api.example/", "evil.example"); status != http.StatusMisdirectedRequest {
			t.Errorf("status %d", status)
		}
	}
	c := tls.Client(w.dial(), &tls.Config{RootCAs: w.guest, ServerName: "api.example"})
	fmt.Fprintf(c, "GET https://evil.example/ HTTP/1.1\r\nHost: api.example\r\nAuthorization: %s\r\n\r\n", placeholder)
	if answer, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || answer.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("%v, %v", answer, err)
	}
	if w.asked.Load() != 0 {
		t.Errorf("the host was asked: %v", *w.got.Load())
	}
}

// What is no TLS for the host is carried as it is, and nothing in it is replaced.
func TestCarried(t *testing.T) {
	w := newWorld(t, "other.example", func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.Header.Get("Authorization")) })
	c := tls.Client(w.dial(), &tls.Config{ServerName: "other.example", InsecureSkipVerify: true})
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: other.example\r\nAuthorization: %s\r\nConnection: close\r\n\r\n", placeholder)
	if text, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(text), "\r\n\r\n"+placeholder) {
		t.Errorf("%q, %v", text, err)
	}
	if got := c.ConnectionState().PeerCertificates[0]; !got.Equal(w.server.Certificate()) {
		t.Errorf("the guest saw a certificate of %s", got.Issuer)
	}
	plain := w.dial()
	fmt.Fprintf(plain, "GET / HTTP/1.1\r\nHost: api.example\r\nAuthorization: %s\r\n\r\n", placeholder)
	if text, err := io.ReadAll(plain); err != nil || !strings.Contains(string(text), "HTTP request to an HTTPS server") {
		t.Errorf("%q, %v", text, err)
	}
	if w.asked.Load() != 1 {
		t.Errorf("the host was asked %d times", w.asked.Load())
	}
}

// A server that has the host's address and not its certificate gets nothing.
func TestUnverifiedHost(t *testing.T) {
	w := newWorld(t, "evil.example", func(http.ResponseWriter, *http.Request) {})
	if status, text := w.send(w.client(false), "https://api.example/", ""); status != http.StatusBadGateway || !strings.Contains(text, "certificate is valid for evil.example") {
		t.Errorf("%d %s", status, text)
	}
	if w.asked.Load() != 0 {
		t.Error("the host was asked")
	}
}

// The VM's authority is good for the secrets' hosts only.
func TestAuthorityIsConstrained(t *testing.T) {
	w := newWorld(t, "api.example", func(http.ResponseWriter, *http.Request) {})
	for name, want := range map[string]bool{"api.example": true, "other.example": false} {
		leaf, err := w.proxy.config.Authority.leaf(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := leaf.Leaf.Verify(x509.VerifyOptions{Roots: w.guest, DNSName: name}); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStreamsAndUpgrades(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, "api.example", func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			fmt.Fprint(rw, "first")
			_ = http.NewResponseController(rw).Flush()
			<-release
			fmt.Fprint(rw, "last")
			return
		}
		c, stream, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(stream, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = stream.Flush()
		_, _ = io.Copy(c, stream)
	})
	for _, http2 := range []bool{false, true} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", "https://api.example/", nil)
		answer, err := w.client(http2).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 5)
		if _, err := io.ReadFull(answer.Body, first); err != nil || string(first) != "first" {
			t.Errorf("%q, %v", first, err)
		}
		release <- struct{}{}
		if rest, err := io.ReadAll(answer.Body); err != nil || string(rest) != "last" {
			t.Errorf("%q, %v", rest, err)
		}
	}
	c := tls.Client(w.dial(), &tls.Config{RootCAs: w.guest, ServerName: "api.example"})
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: api.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nAuthorization: %s\r\n\r\n", placeholder)
	in := bufio.NewReader(c)
	if answer, err := http.ReadResponse(in, nil); err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", answer, err)
	}
	fmt.Fprint(c, "hello")
	echo := make([]byte, 5)
	if _, err := io.ReadFull(in, echo); err != nil || string(echo) != "hello" || w.got.Load().Get("Authorization") != value {
		t.Errorf("%q, %v, %v", echo, err, *w.got.Load())
	}
}

func TestLargeBodies(t *testing.T) {
	w := newWorld(t, "api.example", func(rw http.ResponseWriter, r *http.Request) { _, _ = io.Copy(rw, r.Body) })
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<19) // 8 MiB
	for _, http2 := range []bool{false, true} {
		answer, err := w.client(http2).Post("https://api.example/", "text/plain", bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		back, err := io.ReadAll(answer.Body)
		if err != nil || !bytes.Equal(back, data) {
			t.Errorf("HTTP/2 %t: %d bytes, %v", http2, len(back), err)
		}
		_ = answer.Body.Close()
	}
}

// TestEarlyAnswer: a host may answer before the end of a request by HTTP/1.1, in which net/http's server would wait for that.
func TestEarlyAnswer(t *testing.T) {
	w := newWorld(t, "api.example", func(rw http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(rw).EnableFullDuplex()
		fmt.Fprint(rw, "early")
	})
	body, rest := io.Pipe()
	r, _ := http.NewRequestWithContext(t.Context(), "POST", "https://api.example/", body)
	r.ContentLength = 2
	go func() { _, _ = rest.Write([]byte("x")) }()
	defer rest.Close()
	defer time.AfterFunc(20*time.Second, func() { _ = rest.Close() }).Stop() // the client waits for its own body
	answer, err := w.client(false).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || string(text) != "early" {
		t.Errorf("%q, %v", text, err)
	}
}

// Guests that say nothing, or something else, or leave, keep no goroutines; newWorld looks for them.
func TestEnds(t *testing.T) {
	w := newWorld(t, "api.example", func(http.ResponseWriter, *http.Request) {})
	w.dial() // says nothing until the proxy is closed
	half := w.dial()
	_, _ = half.Write([]byte{22, 3, 1, 0, 200})
	left := w.dial()
	_ = left.Close()
	c := w.dial()
	if err := c.(interface{ Reset() error }).Reset(); err != nil {
		t.Error(err)
	}
	_ = w.proxy.Close()
	if _, err := half.Read(make([]byte, 1)); err == nil {
		t.Error("there is more to read")
	}
}

func TestTooMany(t *testing.T) {
	w := newWorld(t, "api.example", func(http.ResponseWriter, *http.Request) {})
	w.proxy.slots = make(chan struct{}, 1)
	_ = w.dial()
	here, there := net.Pipe()
	defer here.Close()
	if _, err := w.proxy.Through(there, 443, nil); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("the second: %v", err)
	}
	if _, err := here.Read(make([]byte, 1)); err == nil {
		t.Error("the connection to the host is open")
	}
}

type denial struct{}

func (denial) Error() string { return "denied" }

// cut is a connection to a host that a policy ends.
type cut struct{ net.Conn }

func (c cut) Read([]byte) (int, error) { return 0, denial{} }

// The guest's end fails as the connection to the host does, so that a new policy's denial is known as one.
func TestFailuresPass(t *testing.T) {
	w := newWorld(t, "api.example", func(http.ResponseWriter, *http.Request) {})
	here, there := net.Pipe()
	defer here.Close()
	c, err := w.proxy.Through(cut{there}, 443, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("no TLS\r\n"))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, denial{}) {
		t.Errorf("got %v", err)
	}
	_ = c.Close()
}
