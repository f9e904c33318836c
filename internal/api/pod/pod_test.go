package pod_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/internal/api/e2b"
	"agentvm/internal/api/pod"
	"agentvm/internal/api/pod/ticket"
	"agentvm/internal/httpserver/servertest"
)

// oneVM is a VM of which only its end is used.
type oneVM struct{ e2b.VM }

func (oneVM) Pause(context.Context) error                           { return nil }
func (oneVM) Resume(context.Context) error                          { return nil }
func (oneVM) SetPolicy(context.Context, egress.Policy) (int, error) { return 0, nil }
func (oneVM) Close() error                                          { return nil }
func (oneVM) Fork(context.Context, []string, client.ForkOptions) error {
	return nil
}

// fakeVMs note what they are asked for.
type fakeVMs struct {
	taken   int
	removed []string
	fails   error

	saved    []string
	note     []byte
	restored int
}

func (f *fakeVMs) Take(context.Context, []string, egress.Policy) (e2b.VM, error) {
	f.taken++
	return oneVM{}, f.fails
}
func (f *fakeVMs) Open(context.Context, string) (e2b.VM, error) { return oneVM{}, nil }
func (f *fakeVMs) Remove(_ context.Context, name string) error {
	f.removed = append(f.removed, name)
	return nil
}

func (f *fakeVMs) Save(_ context.Context, name string, to pod.State, note []byte) error {
	f.saved = append(f.saved, name+" "+to.Name)
	f.note = note
	return f.fails
}
func (f *fakeVMs) Fetch(_ context.Context, from pod.State) (pod.Saved, error) {
	if from.Name != "there" {
		return nil, fs.ErrNotExist
	}
	return fakeSaved{f}, nil
}

type fakeSaved struct{ *fakeVMs }

func (f fakeSaved) Note() []byte { return f.note }
func (f fakeSaved) Restore(context.Context, egress.Policy, []string) (e2b.VM, error) {
	f.restored++
	return &oneVM{}, f.fails
}

const (
	uid   = "the-pods-identifier"
	token = "the-token-of-a-sandbox"
)

type served struct {
	*pod.Server
	t    *testing.T
	key  ed25519.PrivateKey
	vms  *fakeVMs
	seen http.Header // of the last request to the HTTP API
	path string
}

func serve(t *testing.T, key ed25519.PrivateKey, kept string) *served {
	t.Helper()
	s := &served{t: t, key: key, vms: &fakeVMs{}}
	server, err := pod.New(pod.Config{
		VMs: s.vms, UID: uid, Gateways: key.Public().(ed25519.PublicKey), Domain: "test", Key: "the-pods-own-key", Kept: kept,
		API: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { s.seen, s.path = r.Header.Clone(), r.URL.EscapedPath() }),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Server = server
	t.Cleanup(server.Close)
	return s
}

func (s *served) do(method, path, body string, headers ...string) (int, string) {
	s.t.Helper()
	r := httptest.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	r.Header.Set(ticket.Header, ticket.Make(s.key, uid, time.Now()))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestRestart has a container that is started again serve its sandbox again, under the same token, and none after the sandbox has ended.
func TestRestart(t *testing.T) {
	key, kept := newKey(t), filepath.Join(t.TempDir(), "sandbox.json")
	first := serve(t, key, kept)
	if made, err := first.Continue(t.Context()); made || err != nil {
		t.Fatal(made, err)
	}
	if code, text := first.do("POST", "/v2/sandboxes", `{"templateID":"base","metadata":{"a":"b"}}`, pod.HeaderNew, "one="+token); code != 201 {
		t.Fatal(code, text)
	}
	second := serve(t, key, kept)
	if made, err := second.Continue(t.Context()); !made || err != nil {
		t.Fatal(made, err)
	}
	code, text := second.do("GET", "/sandboxes/one", "")
	if code != 200 || !strings.Contains(text, `"a":"b"`) || !strings.Contains(text, token) {
		t.Errorf("%d %s", code, text)
	}
	if code, text := second.do("POST", "/v2/sandboxes", `{"templateID":"base"}`, pod.HeaderNew, "two="+token); code != 409 {
		t.Errorf("a second sandbox: %d %s", code, text)
	}
	if code, text := second.do("DELETE", "/sandboxes/one", ""); code != 204 {
		t.Fatal(code, text)
	}
	select {
	case <-second.Over():
	default:
		t.Error("the pod is not over after its last sandbox")
	}
	if code, _ := second.do("GET", "/ready", "", ticket.Header, ""); code != 503 {
		t.Error("a pod that is over is ready:", code)
	}
	third := serve(t, key, kept)
	if made, err := third.Continue(t.Context()); made || err != nil {
		t.Errorf("the sandbox has ended, and is there again: %v %v", made, err)
	}
}

// TestOneSandbox has a pod make one sandbox, whatever is asked, and end when that fails.
func TestOneSandbox(t *testing.T) {
	key := newKey(t)
	s := serve(t, key, "")
	for name, request := range map[string]string{
		"no name": "", "no token": "one", "a short token": "one=x", "no name of a VM": "../x=" + token, "two": "one=" + token + ",two=" + token,
	} {
		if code, text := s.do("POST", "/v2/sandboxes", `{"templateID":"base"}`, pod.HeaderNew, request); code != 400 || s.vms.taken != 0 {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
	if code, text := s.do("POST", "/v2/sandboxes", `{`, pod.HeaderNew, "one="+token); code != 400 {
		t.Errorf("no JSON: %d %s", code, text)
	}
	made := make(chan int, 8)
	for i := range cap(made) {
		go func() {
			code, _ := s.do("POST", "/v2/sandboxes", `{"templateID":"base"}`, pod.HeaderNew, fmt.Sprintf("s%d=%s", i, token))
			made <- code
		}()
	}
	count := map[int]int{}
	for range cap(made) {
		count[<-made]++
	}
	if count[201] != 1 || count[409] != cap(made)-1 || s.vms.taken != 1 {
		t.Errorf("answers %v, %d VMs taken", count, s.vms.taken)
	}
	broken := serve(t, key, "")
	broken.vms.fails = errors.New("it does not run")
	if code, text := broken.do("POST", "/v2/sandboxes", `{"templateID":"base"}`, pod.HeaderNew, "one="+token); code != 500 {
		t.Errorf("%d %s", code, text)
	}
	select {
	case <-broken.Over():
	default:
		t.Error("the pod is not over after its VM has failed")
	}
}

// TestAPI has the HTTP API see the VM's own name, the pod's key, and nothing that belongs to the gateway.
func TestAPI(t *testing.T) {
	s := serve(t, newKey(t), "")
	if code, text := s.do("POST", "/v2/sandboxes", `{"templateID":"base"}`, pod.HeaderNew, "one="+token); code != 201 {
		t.Fatal(code, text)
	}
	for path, want := range map[string]string{
		"/v1/vms/one": "/v1/vms/sandbox", "/v1/vms/one/files/a%2Fb": "/v1/vms/sandbox/files/a%2Fb", "/v1/vms/other/exec": "/v1/vms/other/exec",
	} {
		if code, text := s.do("GET", path, "", "Authorization", "Bearer x"); code != 200 || s.path != want {
			t.Errorf("%s: %d %s: %s", path, code, text, s.path)
		}
		if s.seen.Get("X-Api-Key") != "the-pods-own-key" || s.seen.Get(ticket.Header) != "" || s.seen.Get("Authorization") != "" {
			t.Errorf("%s: headers %v", path, s.seen)
		}
	}
}

// TestStrangers: who has no ticket of a gateway gets nothing, and keeps no gateway out.
func TestStrangers(t *testing.T) {
	key := newKey(t)
	s := serve(t, key, "")
	ctx, cancel := context.WithCancel(t.Context())
	urls, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- s.Serve(ctx, "127.0.0.1:0", func(url string) { urls <- url }) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	servertest.Attack(t, servertest.Target{
		Address: strings.TrimPrefix(<-urls, "http://"), Good: "GET /v2/sandboxes", Post: "POST /sandboxes", Owner: ticket.Make(key, uid, time.Now()),
		Show:    func(key, path string) (string, []string) { return path, []string{ticket.Header + ": " + key} },
		AnyHost: true, AnyOrigin: true, // the gateway has looked
	})
}
