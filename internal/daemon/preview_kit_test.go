package daemon

import (
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/network/preview"
)

// listen is a listener on loopback.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// serve starts an HTTP server "in" a VM.
func (v *fakeVM) serve(t testing.TB, port string, h http.HandlerFunc) {
	t.Helper()
	l := listen(t)
	server := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	v.put(port, l.Addr().String())
}

func (v *fakeVM) put(port, address string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.servers == nil {
		v.servers = make(map[string]string)
	}
	v.servers[port] = address
}

// links opens the store of the daemon's previews as another process does.
func (d *inside) links(t testing.TB) *preview.Store {
	t.Helper()
	s, err := preview.OpenStore(d.store.PreviewPath(), preview.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// place gives the order "preview".
func (d *inside) place(t testing.TB) daemonrpc.PreviewPlace {
	t.Helper()
	c := d.connect(t)
	place, err := c.Preview(t.Context())
	_ = c.Close() // an open client counts as use of the VM
	if err != nil {
		t.Fatal(err)
	}
	return place
}

// share makes a link to port 3000 and returns the address that serves it.
func (d *inside) share(t testing.TB, lifetime time.Duration) (preview.Preview, daemonrpc.PreviewPlace) {
	t.Helper()
	place := d.place(t)
	p, err := d.links(t).Create(t.Context(), "dev", place.ID, 3000, lifetime)
	if err != nil {
		t.Fatal(err)
	}
	return p, place
}

// again ends the daemon and starts another one, whose VM has the same servers.
func (d *inside) again(t testing.TB) {
	t.Helper()
	d.stop()
	if err := d.wait(t); err != nil {
		t.Fatal(err)
	}
	v := newFakeVM()
	v.servers = d.vm.servers
	d.vm = v
	d.restart(t, Config{}, timing{}, nil)
	c := d.connect(t)
	if err := c.AwaitReady(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

// get sends a request and returns the status and as much of the body as arrived.
func get(t testing.TB, url string) (int, string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 3 * time.Minute}
	answer, err := client.Get(url)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text)
}

// wantGet checks what a link shows.
func wantGet(t testing.TB, url string, status int, text string) {
	t.Helper()
	if code, got := get(t, url); code != status || !strings.Contains(got, text) {
		t.Errorf("%d %q, want %d with %q", code, got, status, text)
	}
}

func echoPath(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, "hello from "+r.URL.Path)
}

func readLog(t testing.TB, d *inside) string {
	t.Helper()
	b, err := os.ReadFile(d.paths().log())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
