package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/network/preview"
)

// TestVisitorsAreUse: a request under way keeps a daemon from being idle; the daemon ends after the request.
func TestVisitorsAreUse(t *testing.T) {
	d, c := startUsed(t, Config{IdleTimeout: Duration(2 * time.Second)}) // c is there until the visitor is
	d.vm.serve(t, "3000", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begun\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	link, place := d.share(t, time.Hour)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	request, _ := http.NewRequestWithContext(ctx, http.MethodGet, link.PathURL(place.PreviewPort), nil)
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.ReadFull(answer.Body, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	select {
	case err := <-d.ended:
		t.Fatalf("the daemon has ended (%v) during a request:\n%s", err, readLog(t, d))
	case <-time.After(4 * time.Second):
	}
	leave()
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
	if log := readLog(t, d); !strings.Contains(log, "it has not been used") {
		t.Errorf("log:\n%s", log)
	}
}

// TestVisitRestartsTheClock: a request resets the idle time, and a refused one does not.
func TestVisitRestartsTheClock(t *testing.T) {
	d := newDaemon(Store{Dir: t.TempDir()}, "dev", paths{}, Config{}, timing{}.withDefaults(), nil, newLogger(t.Output(), false))
	d.vm = newFakeVM()
	close(d.booted)
	const hour = time.Hour
	before := time.Now()
	if idle := d.idleFor(before.Add(hour)); idle < hour {
		t.Fatalf("idle for %v without anybody", idle)
	}
	if err := d.permitPreview(t.Context(), preview.Preview{VM: "another", Port: 3000}); err == nil {
		t.Fatal("a preview of another VM is permitted")
	}
	if there, _ := d.visitors.count(); there != 0 {
		t.Error("a visitor who was refused counts")
	}
	left := d.visit(preview.Preview{})
	if idle := d.idleFor(time.Now().Add(hour)); idle != 0 {
		t.Errorf("idle for %v with a visitor", idle)
	}
	left()
	if idle := d.idleFor(before.Add(hour)); idle > hour {
		t.Errorf("idle for %v since a visit", idle)
	}
}

// failingListener fails when the test wants it.
type failingListener struct {
	net.Listener
	failed error
}

func (l *failingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		err = l.failed
	}
	return conn, err
}

// TestPreviewsAreServedAgain: after a listener has failed, the next preview is served at the same port.
func TestPreviewsAreServedAgain(t *testing.T) {
	store := Store{Dir: t.TempDir()}
	p, _ := store.paths("dev")
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(store, "dev", p, Config{}, timing{}.withDefaults(), nil, newLogger(t.Output(), false))
	var mu sync.Mutex
	var listeners []*failingListener
	d.previews.bind = func(network, address string) (net.Listener, error) {
		l, err := net.Listen(network, address)
		if err != nil {
			return nil, err
		}
		f := &failingListener{l, errors.New("the network has gone")}
		mu.Lock()
		defer mu.Unlock()
		listeners = append(listeners, f)
		return f, nil
	}
	defer d.previews.close()
	first, err := d.previews.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = listeners[0].Close()
	await(t, "the end of the first listener", func() bool {
		d.previews.mu.Lock()
		defer d.previews.mu.Unlock()
		return d.previews.port == 0
	})
	second, err := d.previews.open(t.Context())
	if err != nil || second != first {
		t.Fatalf("%+v, %v; before %+v", second, err, first)
	}
	if len(listeners) != 2 {
		t.Fatalf("%d listeners", len(listeners))
	}
	wantGet(t, "http://"+second.Address+"/", 200, "preview")
}
