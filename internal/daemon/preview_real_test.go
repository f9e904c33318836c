package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/images/storetest"
	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/network/preview"
	"agentvm/internal/network/preview/previewtest"
)

// shared is a VM with a server in it, and a store for its previews.
type shared struct {
	store  Store
	config Config
	client *Client
	server []byte // the program of testdata/previewserver
}

// startShared builds the server and starts the VM.
func startShared(t *testing.T) *shared {
	s := &shared{config: realConfig(t), store: testStore(t, roleReal)}
	program := filepath.Join(t.TempDir(), "server")
	storetest.BuildGuest(t, "./testdata/previewserver", program)
	var err error
	if s.server, err = os.ReadFile(program); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	t.Cleanup(func() { s.stop(t) })
	return s
}

func (s *shared) start(t *testing.T) {
	t.Helper()
	client, err := s.store.Start(t.Context(), "dev", s.config, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.client = client
}

func (s *shared) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.client.Stop(ctx, 10*time.Second); err != nil {
		t.Error(err)
	}
	_ = s.client.Close()
}

func (s *shared) remove(t *testing.T) {
	t.Helper()
	s.stop(t)
	if err := s.store.Remove(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
}

// serve runs the server in the VM, and returns when it listens.
func (s *shared) serve(t *testing.T, run string) {
	t.Helper()
	j := start(t, s.client, daemonrpc.JobOptions{Input: true}, "/bin/sh", "-c", "cat >/root/server; chmod +x /root/server")
	if o, err := Follow(t.Context(), j, Streams{Stdin: bytes.NewReader(s.server)}, 0); err != nil || o.Exit.Code != 0 {
		t.Fatalf("copy the server into the VM: %+v, %v", o, err)
	}
	start(t, s.client, daemonrpc.JobOptions{Durable: true}, "/root/server", run)
	await(t, "the server in the VM", func() bool {
		list, err := s.client.Sockets(t.Context())
		for _, socket := range list {
			if socket.State == guestrpc.SocketListen && socket.Local.Port() == 3000 {
				return true
			}
		}
		return err != nil && t.Context().Err() != nil
	})
}

func (s *shared) place(t *testing.T) daemonrpc.PreviewPlace {
	t.Helper()
	place, err := s.client.Preview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return place
}

// share makes a link to the server, and leaves the store open for the test.
func (s *shared) share(t *testing.T, place daemonrpc.PreviewPlace) (*preview.Store, preview.Preview) {
	t.Helper()
	links, err := preview.OpenStore(s.store.PreviewPath(), preview.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = links.Close() })
	link, err := links.Create(t.Context(), "dev", place.ID, 3000, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return links, link
}

// report waits for the page's report. It reads it by a request that does not go through the preview.
func (s *shared) report(t *testing.T) (report map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost:3000/reported", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := s.client.HTTPClient()
	defer client.CloseIdleConnections()
	answer, err := client.Do(request)
	if err != nil {
		t.Fatalf("the page does not report: %v", err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&report); err != nil {
		t.Fatal(err)
	}
	return report
}

func (s *shared) wantReport(t *testing.T, run string) {
	t.Helper()
	want := map[string]string{
		"run": run, "who": "POST hello cookie=session=of-run-1 origin=http://localhost:3000", "socket": "hi cookie=session=of-run-1",
	}
	if diff := cmp.Diff(want, s.report(t)); diff != "" {
		t.Fatalf("what the page says in run %s (-want +got):\n%s", run, diff)
	}
}

// TestRealPreview keeps one page open in a real browser, with cookies, fetch and a WebSocket, while its VM is stopped and started, and
// removed and restored from a snapshot: the link stays the same and works again. Then a revocation cuts a stream, and the link does not
// work for another VM of the same name.
func TestRealPreview(t *testing.T) {
	browser := previewtest.Chromium(t)
	s := startShared(t)
	s.serve(t, "1")
	place := s.place(t)
	links, link := s.share(t, place)
	defer previewtest.Browse(t, browser, link.URL(place.PreviewPort))()
	s.wantReport(t, "1")

	s.stop(t)
	s.start(t)
	s.serve(t, "2")
	s.wantReport(t, "2")

	saved := filepath.Join(s.config.StoreDir, "snapshots", "saved.snap") // a confined daemon writes nowhere else
	if _, err := s.client.Snapshot(t.Context(), daemonrpc.SnapshotRequest{Path: saved}); err != nil {
		t.Fatal(err)
	}
	s.remove(t)
	restoration := Restoration{Snapshot: saved, Identity: &Identity{place.ID, place.PreviewPort}}
	restored, err := s.store.Restore(t.Context(), "dev", s.config, restoration, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.client = restored
	s.serve(t, "3")
	s.wantReport(t, "3")

	cutStream(t, links, link, place.PreviewPort)
	second, err := links.Create(t.Context(), "dev", place.ID, 3000, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	wantGet(t, second.PathURL(place.PreviewPort)+"run", 200, "3")
	s.remove(t)
	s.start(t)
	s.serve(t, "4")
	other := s.place(t)
	if other.ID == place.ID {
		t.Error("another VM of the same name has the same identity")
	}
	wantGet(t, second.PathURL(other.PreviewPort)+"run", 410, "another virtual machine")
}

// cutStream revokes a link while it is being used.
func cutStream(t *testing.T, links *preview.Store, link preview.Preview, port uint16) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(link.PathURL(port) + "zeros")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.CopyN(io.Discard, answer.Body, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := links.Revoke(t.Context(), link.ID); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, answer.Body); err == nil {
		t.Errorf("a stream continues to its end after it was revoked, %d bytes", n)
	}
	wantGet(t, link.PathURL(port), 410, "withdrawn")
}

// TestRealPreviewHung: requests that a real VM does not answer delay neither quick commands nor many other requests.
func TestRealPreviewHung(t *testing.T) {
	s := startShared(t)
	s.serve(t, "1")
	place := s.place(t)
	_, link := s.share(t, place)
	ctx, cancel := context.WithCancel(t.Context())
	fetching := s.client.HTTPClient()
	hung := make(chan error, 8)
	for i := range cap(hung) {
		client, url := fetching, "http://localhost:3000/reported"
		if i%2 == 0 {
			client, url = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, link.PathURL(place.PreviewPort)+"reported"
		}
		go func() {
			request, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			answer, err := client.Do(request)
			if err == nil {
				err = fmt.Errorf("answered: %s", answer.Status)
				_ = answer.Body.Close()
			}
			hung <- err
		}()
	}
	for i := range 20 {
		if out, _ := shell(t, s.client, daemonrpc.JobOptions{}, fmt.Sprint("echo ", i)); out != fmt.Sprintln(i) {
			t.Errorf("command %d: %q", i, out)
		}
	}
	visits := make(chan string, 200)
	for range cap(visits) {
		go func() {
			code, text := get(t, link.PathURL(place.PreviewPort)+"run")
			visits <- fmt.Sprint(code, " ", text)
		}()
	}
	shown := make(map[string]int)
	for range cap(visits) {
		shown[<-visits]++
	}
	if diff := cmp.Diff(map[string]int{"200 1": cap(visits)}, shown); diff != "" {
		t.Errorf("what visitors were shown (-want +got):\n%s", diff)
	}
	select {
	case err := <-hung:
		t.Errorf("a request without an answer has ended: %v", err)
	default:
	}
	cancel()
	for range cap(hung) {
		<-hung
	}
	fetching.CloseIdleConnections()
}
