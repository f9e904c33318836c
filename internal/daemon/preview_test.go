package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/network/preview"
)

// TestPreviewSurvivesRestarts follows a link over restarts of its daemon, a port that is taken, and the VM's end.
func TestPreviewSurvivesRestarts(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	d.vm.serve(t, "3000", echoPath)
	if _, err := d.store.Identity("dev"); err != nil {
		t.Fatal(err)
	}
	link, place := d.share(t, time.Hour)
	if again := d.place(t); again != place || place.Address != loopback(place.PreviewPort) {
		t.Errorf("asked twice: %+v, then %+v", place, again)
	}
	url := link.PathURL(place.PreviewPort)
	wantGet(t, url+"a", 200, "hello from /a")

	d.again(t)
	await(t, "the links after a restart", func() bool { c, err := net.Dial("tcp", place.Address); return err == nil && c.Close() == nil })
	wantGet(t, url+"b", 200, "hello from /b")

	d.stop()
	if err := d.wait(t); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", place.Address)
	if err != nil {
		t.Fatal(err)
	}
	d.vm, d.stop = newFakeVMLike(d.vm), func() {}
	d.restart(t, Config{}, timing{}, nil)
	moved := d.place(t)
	if moved.ID != place.ID || moved.PreviewPort == place.PreviewPort {
		t.Errorf("its port is taken: %+v, before %+v", moved, place)
	}
	if log := readLog(t, d); !strings.Contains(log, "port of the VM's previews is taken") {
		t.Errorf("the log says nothing:\n%s", log)
	}
	// A browser that opens the link now sends its token to the program that has the port. The link has to be withdrawn.
	wantGet(t, link.PathURL(moved.PreviewPort)+"c", 410, "withdrawn")
	if link, err = d.links(t).Create(t.Context(), "dev", moved.ID, 3000, time.Hour); err != nil {
		t.Fatal(err)
	}
	wantGet(t, link.PathURL(moved.PreviewPort)+"c", 200, "hello from /c")
	_ = taken.Close()

	d.stop()
	if err := d.wait(t); err != nil {
		t.Fatal(err)
	}
	if err := d.store.Remove(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	d.vm, d.stop = newFakeVMLike(d.vm), func() {}
	d.restart(t, Config{}, timing{}, nil)
	other := d.place(t)
	if other.ID == place.ID {
		t.Fatal("another VM of the same name has the same identity")
	}
	wantGet(t, link.PathURL(other.PreviewPort), 410, "another virtual machine")
}

// newFakeVMLike makes a fakeVM with the same servers.
func newFakeVMLike(v *fakeVM) *fakeVM {
	again := newFakeVM()
	again.servers = v.servers
	return again
}

// TestPreviewTokens sends a daemon tokens that are not this VM's.
func TestPreviewTokens(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	d.vm.serve(t, "3000", echoPath)
	link, place := d.share(t, time.Hour)
	links := d.links(t)
	replayed, err := links.Create(t.Context(), "dev", place.ID, 3000, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := links.Create(t.Context(), "other", strings.Repeat("ab", 16), 3000, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	silent, err := links.Create(t.Context(), "dev", place.ID, 3001, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + place.Address + "/p/"
	wantGet(t, base+replayed.Token+"/", 200, "hello")
	if err := links.Revoke(t.Context(), replayed.ID); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, token string
		status      int
		text        string
	}{
		{"good", link.Token, 200, "hello"},
		{"truncated", link.Token[:62], 404, "No such preview"},
		{"longer", link.Token + "0", 404, "No such preview"},
		{"empty", "", 404, "No such preview"},
		{"the ID alone", link.ID, 404, "No such preview"},
		{"in capitals", strings.ToUpper(link.Token), 404, "No such preview"},
		{"replayed after it was revoked", replayed.Token, 410, "withdrawn"},
		{"of another VM", foreign.Token, 410, "another virtual machine"},
		{"of a port where nothing listens", silent.Token, 502, "Nothing is listening"},
	} {
		t.Run(c.name, func(t *testing.T) { wantGet(t, base+c.token+"/", c.status, c.text) })
	}
	denied, err := links.Create(t.Context(), "dev", place.ID, 9, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	d.vm.serve(t, "9", echoPath)
	wantGet(t, base+denied.Token+"/", 403, "policy")
	const digits = "0123456789abcdefghijklmnopqrstuv"
	for i := range link.Token {
		flipped := []byte(link.Token)
		flipped[i] = digits[strings.IndexByte(digits, flipped[i])^1<<(i%5)]
		if code, _ := get(t, base+string(flipped)+"/"); code != http.StatusNotFound {
			t.Errorf("a bit of character %d is flipped: %d", i, code)
		}
	}
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, base+link.Token+"/", nil)
	request.Host = "attacker.example"
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("under a name that was rebound: %s", answer.Status)
	}
	record, err := os.ReadFile(d.store.Dir + "/dev/previews.log")
	if err != nil || !strings.Contains(string(record), `"key":"`+link.ID+`"`) || !strings.Contains(string(record), `"status":421`) {
		t.Errorf("the record of visits: %s, %v", record, err)
	}
	for _, token := range []string{link.Token, foreign.Token, denied.Token} {
		if strings.Contains(string(record), token) {
			t.Errorf("a token is in the record of visits: %s", record)
		}
	}
}

// TestPreviewStreams: a revocation by another process, the link's expiry and the VM's end each cut a stream.
func TestPreviewStreams(t *testing.T) {
	for _, c := range []struct {
		name     string
		lifetime time.Duration
		cut      func(t *testing.T, d *inside, p preview.Preview)
		status   int // afterwards; 0: no answer
	}{
		{"revoked", time.Hour, func(t *testing.T, d *inside, p preview.Preview) {
			if err := d.links(t).Revoke(t.Context(), p.ID); err != nil {
				t.Error(err)
			}
		}, 410},
		{"expired", 5 * time.Second, func(*testing.T, *inside, preview.Preview) {}, 410},
		{"stopped", time.Hour, func(_ *testing.T, d *inside, _ preview.Preview) { d.stop() }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, _ := startUsed(t, Config{}) // has booted
			d.vm.serve(t, "3000", func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "begun\n")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})
			link, place := d.share(t, c.lifetime)
			url := link.PathURL(place.PreviewPort)
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			answer, err := client.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			begun := make([]byte, 6)
			if _, err := io.ReadFull(answer.Body, begun); err != nil {
				t.Fatal(err)
			}
			c.cut(t, d, link)
			if rest, err := io.ReadAll(answer.Body); err == nil {
				t.Errorf("the stream has ended in order, after %q", rest)
			}
			if c.status != 0 {
				wantGet(t, url, c.status, "")
			}
		})
	}
}

// TestPreviewParallel sends 200 requests at once.
func TestPreviewParallel(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	d.vm.serve(t, "3000", echoPath)
	link, place := d.share(t, time.Hour)
	var visitors sync.WaitGroup
	for i := range 200 {
		visitors.Go(func() { wantGet(t, link.PathURL(place.PreviewPort)+fmt.Sprint(i), 200, fmt.Sprint("hello from /", i)) })
	}
	visitors.Wait()
}

// TestPreviewHung: requests that are never answered do not delay programs.
func TestPreviewHung(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	entered := make(chan struct{}, 100)
	d.vm.serve(t, "3000", func(_ http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-r.Context().Done()
	})
	link, place := d.share(t, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	var hung sync.WaitGroup
	defer hung.Wait()
	defer cancel()
	c := d.connect(t)
	hang := func(client *http.Client, url string) {
		hung.Go(func() {
			request, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if answer, err := client.Do(request); err == nil {
				_ = answer.Body.Close()
				t.Errorf("answered: %s", answer.Status)
			}
		})
	}
	for range 20 {
		hang(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, link.PathURL(place.PreviewPort))
		hang(c.HTTPClient(), "http://localhost:3000/")
	}
	for range 40 {
		<-entered
	}
	for i := range 100 {
		var out bytes.Buffer
		j := start(t, c, daemonrpc.JobOptions{}, "echo", fmt.Sprint(i))
		if _, err := Follow(t.Context(), j, Streams{Stdout: &out}, 0); err != nil || out.String() != fmt.Sprintln(i) {
			t.Fatalf("program %d: %q, %v", i, &out, err)
		}
	}
}

// TestPreviewOfVMsThatDoNotAnswer sends requests to a VM that boots, one that is paused, and one that has failed.
func TestPreviewOfVMsThatDoNotAnswer(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	d.vm.serve(t, "3000", echoPath)
	link, place := d.share(t, time.Hour)
	url := link.PathURL(place.PreviewPort)
	c := d.connect(t)
	if err := c.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantGet(t, url, 503, "is paused")
	if err := c.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantGet(t, url, 200, "hello")
	d.stop()
	if err := d.wait(t); err != nil {
		t.Fatal(err)
	}
	boot := make(chan struct{})
	v := newFakeVMLike(d.vm)
	d.restart(t, Config{}, timing{}, func(ctx context.Context, _ booting) (VM, error) {
		select {
		case <-boot:
			return v, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	await(t, "the links after a restart", func() bool { c, err := net.Dial("tcp", place.Address); return err == nil && c.Close() == nil })
	wantGet(t, url, 503, "not running")
	close(boot)
	if err := d.connect(t).AwaitReady(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	wantGet(t, url, 200, "hello")
}

// TestPreviewOfVMSavedBefore restores a VM that was saved before its first preview was made, and so without a port.
func TestPreviewOfVMSavedBefore(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	d.vm.serve(t, "3000", echoPath)
	saved, err := d.store.Identity("dev")
	if err != nil || saved.PreviewPort != 0 {
		t.Fatalf("%+v, %v", saved, err)
	}
	link, _ := d.share(t, time.Hour)
	d.stop()
	if err := errors.Join(d.wait(t), d.store.Remove(t.Context(), "dev"), os.MkdirAll(d.paths().dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	if err := d.paths().writeRestoration(Restoration{Snapshot: snapshot, Identity: &saved}); err != nil {
		t.Fatal(err)
	}
	d.vm = newFakeVMLike(d.vm)
	d.restart(t, Config{}, timing{}, nil)
	var now Identity
	await(t, "the link's new place", func() bool {
		now, err = d.store.Identity("dev")
		return err == nil && now.PreviewPort != 0
	})
	if err := d.connect(t).AwaitReady(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	wantGet(t, link.PathURL(now.PreviewPort)+"a", 200, "hello from /a")
}

// TestPreviewPortWasAnybodys: when a link's port was not served for longer than a restart takes, another user's program could have
// received its token there. The link is withdrawn, and the next one has another port.
func TestPreviewPortWasAnybodys(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	d.vm.serve(t, "3000", echoPath)
	link, place := d.share(t, time.Hour)
	wantGet(t, link.PathURL(place.PreviewPort), 200, "hello")
	served := filepath.Join(filepath.Dir(d.store.PreviewPath()), "preview.served", place.ID)
	await(t, "it is written down that the port is served", func() bool { _, err := os.Stat(served); return err == nil })
	d.stop()
	if err := d.wait(t); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(served); err != nil || time.Since(info.ModTime()) > time.Minute {
		t.Errorf("at the end: %v, %v", info, err)
	}
	past := time.Now().Add(-2 * servedGap)
	if err := os.Chtimes(served, past, past); err != nil {
		t.Fatal(err)
	}
	d.vm, d.stop = newFakeVMLike(d.vm), func() {}
	d.restart(t, Config{}, timing{}, nil)
	later := d.place(t)
	if later.ID != place.ID || later.PreviewPort == place.PreviewPort {
		t.Errorf("served at %+v, before at %+v", later, place)
	}
	wantGet(t, link.PathURL(later.PreviewPort), 410, "withdrawn")
	if log := readLog(t, d); !strings.Contains(log, "links to the VM are withdrawn") {
		t.Errorf("the log says nothing:\n%s", log)
	}
}

// TestPreviewOfAVMThatBoots: who asks for previews before the VM runs, as right after it was woken, waits.
func TestPreviewOfAVMThatBoots(t *testing.T) {
	d := &inside{store: Store{Dir: t.TempDir(), Version: "test", Command: []string{"none"}}, vm: newFakeVM(), ended: make(chan error, 1)}
	boots := make(chan struct{})
	d.restart(t, Config{}, timing{}, func(context.Context, booting) (VM, error) {
		<-boots
		return d.vm, nil
	})
	time.AfterFunc(50*time.Millisecond, func() { close(boots) })
	if place, err := d.connect(t).Preview(t.Context()); err != nil || place.PreviewPort == 0 {
		t.Errorf("%+v, %v", place, err)
	}
}
