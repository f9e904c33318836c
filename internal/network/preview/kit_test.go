package preview

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/test/leaktest"
	"agentvm/internal/test/testclock"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func openStore(t testing.TB, path string, o Options) *Store {
	t.Helper()
	s, err := OpenStore(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func create(t testing.TB, s *Store, vm string, port uint16, lifetime time.Duration) Preview {
	t.Helper()
	p, err := s.Create(t.Context(), vm, vm+"-id", port, lifetime)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A vms is the Dialer of the tests: programs "in VMs" are servers on loopback.
type vms struct {
	mu        sync.Mutex
	addresses map[string]string // "VM:port" to the server's address
	dials     int
}

func newVMs() *vms { return &vms{addresses: make(map[string]string)} }

func (v *vms) DialPreview(ctx context.Context, vm string, port uint16) (net.Conn, error) {
	v.mu.Lock()
	v.dials++
	address, ok := v.addresses[fmt.Sprint(vm, ":", port)]
	v.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("dial port %d of %s: %w", port, vm, syscall.ECONNREFUSED)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", address)
}

func (v *vms) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.dials
}

// serve puts an HTTP server behind a port of a VM.
func (v *vms) serve(t testing.TB, vm string, port uint16, h http.Handler) {
	t.Helper()
	l := listen(t)
	server := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-done })
	v.put(vm, port, l.Addr().String())
}

func (v *vms) put(vm string, port uint16, address string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.addresses[fmt.Sprint(vm, ":", port)] = address
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// A world is a store, a server and VMs.
type world struct {
	store  *Store
	path   string
	clock  *testclock.Clock
	vms    *vms
	server *Server
	port   uint16
	client *http.Client
}

// newWorld starts a server. change may be nil.
func newWorld(t testing.TB, change func(*ServerConfig)) *world {
	t.Helper()
	w := &world{clock: testclock.New(), vms: newVMs(), path: filepath.Join(t.TempDir(), "previews.db")}
	w.store = openStore(t, w.path, Options{Now: w.clock.Now})
	cfg := ServerConfig{Store: w.store, Dialer: w.vms}
	if change != nil {
		change(&cfg)
	}
	w.server, w.port = startServer(t, cfg)
	w.client = newClient(t, w.port)
	return w
}

func startServer(t testing.TB, cfg ServerConfig) (*Server, uint16) {
	t.Helper()
	s := NewServer(cfg)
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, uint16(l.Addr().(*net.TCPAddr).Port)
}

// newClient resolves every name to the server, as browsers do with those below localhost. It follows no redirects.
func newClient(t testing.TB, port uint16) *http.Client {
	t.Helper()
	var d net.Dialer
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
		},
		MaxIdleConnsPerHost: 256,
		DisableCompression:  true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// forms are the two kinds of URLs.
func (w *world) forms(p Preview) map[string]string {
	return map[string]string{"by name": p.URL(w.port), "by path": p.PathURL(w.port)}
}

// A reply is a response that was read.
type reply struct {
	status int
	header http.Header
	body   string
}

// do sends a request. fields are "Name: value".
func (w *world) do(t testing.TB, method, url, body string, fields ...string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range fields {
		name, value, _ := strings.Cut(field, ": ")
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Add(name, value)
	}
	res, err := w.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(b)}
}

func (w *world) get(t testing.TB, url string, fields ...string) reply {
	t.Helper()
	return w.do(t, http.MethodGet, url, "", fields...)
}

// eventually waits for what another goroutine is about to do.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("this never happened: %s", what)
		}
	}
}
