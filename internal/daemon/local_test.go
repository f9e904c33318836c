package daemon

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"agentvm/internal/daemon/daemonrpc"
)

// TestHTTPClient fetches from a VM through its daemon.
func TestHTTPClient(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	d.vm.serve(t, "3000", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(append([]byte(r.Method+" "), body...))
	})
	c := d.connect(t)
	web := c.HTTPClient()
	defer web.CloseIdleConnections()
	answer, err := web.Post("http://localhost:3000/", "text/plain", strings.NewReader(strings.Repeat("x", 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(answer.Body); err != nil || len(body) != 1<<20+5 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	for _, test := range []struct {
		url  string
		want error
	}{
		{"http://localhost:3001/", syscall.ECONNREFUSED},
		{"http://example.org:3000/", syscall.EADDRNOTAVAIL},
	} {
		if _, err := web.Get(test.url); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.url, err, test.want)
		}
	}
	if err := c.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	web.CloseIdleConnections()
	if _, err := web.Get("http://localhost:3000/"); !errors.Is(err, syscall.EAGAIN) || !strings.Contains(err.Error(), "agentvm resume dev") {
		t.Errorf("paused: %v", err)
	}
	if _, err := c.Sockets(t.Context()); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("sockets of a paused VM: %v", err)
	}
}

func TestSockets(t *testing.T) {
	c := startInside(t, Config{}, timing{}, nil).connect(t)
	if list, err := c.Sockets(t.Context()); err != nil || len(list) != 1 || list[0].PID != 7 {
		t.Errorf("%+v, %v", list, err)
	}
	bulk, err := c.Bulk(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bulk.DialLocal(t.Context(), "192.0.2.1", 80, daemonrpc.ForDial); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("an address of the world: %v", err)
	}
	if _, err := bulk.DialLocal(t.Context(), "127.0.0.1", 80, daemonrpc.ForFetch+1); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("for an unknown purpose: %v", err)
	}
}
