package e2b

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/images/storetest"
	"agentvm/internal/api/e2b/wire"
	"agentvm/vm"
)

const testKey = "a-key-of-the-tests"

var store storetest.Store

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(store.Main(m.Run))
}

// fakeVM is a VM of which only its state is used.
type fakeVM struct {
	VM
	mu     sync.Mutex
	paused bool
	policy egress.Policy
}

func (f *fakeVM) set(paused bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = paused
	return nil
}
func (f *fakeVM) Pause(context.Context) error  { return f.set(true) }
func (f *fakeVM) Resume(context.Context) error { return f.set(false) }
func (f *fakeVM) Close() error                 { return nil }
func (f *fakeVM) SetPolicy(_ context.Context, p egress.Policy) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.policy = p
	return 0, nil
}

// realVM is a VM of this process.
type realVM struct{ *vm.VM }

func (realVM) Fork(context.Context, []string, client.ForkOptions) error {
	return errors.New("VMs of this process have no forks with names")
}

// testVMs makes VMs, and notes which there are.
type testVMs struct {
	t    testing.TB
	real bool

	mu  sync.Mutex
	vms map[string]VM
}

func (m *testVMs) Create(ctx context.Context, name string, env []string, policy egress.Policy, _ []string) (VM, error) {
	var v VM = &fakeVM{policy: policy}
	if m.real {
		started, err := vm.Start(context.WithoutCancel(ctx), vm.Config{
			Image: store.Image(m.t), StoreDir: store.Dir(), Memory: 256 << 20, Env: env, Network: vm.Network{Policy: policy},
		})
		if err != nil {
			return nil, err
		}
		v = realVM{started}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.vms == nil {
		m.vms = map[string]VM{}
	}
	m.vms[name] = v
	return v, nil
}

func (m *testVMs) Open(_ context.Context, name string) (VM, error) { return nil, client.ErrNotFound }

func (m *testVMs) Remove(_ context.Context, name string) error {
	m.mu.Lock()
	v := m.vms[name]
	delete(m.vms, name)
	m.mu.Unlock()
	if v == nil {
		return client.ErrNotFound
	}
	return v.Close()
}

func (m *testVMs) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.vms)
}

type harness struct {
	t   testing.TB
	s   *Server
	vms *testVMs
	url string
}

func serve(t testing.TB, real bool) *harness {
	t.Helper()
	if real && testing.Short() {
		t.Skip("boots a VM")
	}
	vms := &testVMs{t: t, real: real}
	s, err := New(Config{VMs: vms, Key: testKey, Domain: "sandboxes.test", Max: 3})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		h.Close()
		s.Close()
		if n := vms.count(); n != 0 {
			t.Errorf("%d VMs are left", n)
		}
	})
	return &harness{t, s, vms, h.URL}
}

// do sends a request and returns the status and the body. headers are names and values in turn.
func (h *harness) do(method, path string, body io.Reader, headers ...string) (int, string) {
	h.t.Helper()
	r, err := http.NewRequest(method, h.url+path, body)
	if err != nil {
		h.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		} else {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		return answer.StatusCode, "error: " + err.Error()
	}
	return answer.StatusCode, string(b)
}

func (h *harness) api(method, path, body string) (int, string) {
	h.t.Helper()
	return h.do(method, path, strings.NewReader(body), "X-API-KEY", testKey, "Content-Type", "application/json")
}

func (h *harness) create(body string) string {
	h.t.Helper()
	code, text := h.api("POST", "/v2/sandboxes", body)
	var made struct{ SandboxID, EnvdAccessToken string }
	if err := json.Unmarshal([]byte(text), &made); err != nil || code != 201 || made.EnvdAccessToken == "" {
		h.t.Fatalf("create: %d %s", code, text)
	}
	return made.SandboxID
}

func (h *harness) rpc(id, method, body string) (int, string) {
	h.t.Helper()
	return h.do("POST", "/"+method, strings.NewReader(body), "Content-Type", "application/json", "E2b-Sandbox-Id", id, "X-Access-Token", h.s.token(id))
}

// stream calls a method that streams, and returns the messages.
func (h *harness) stream(id, method, body string, headers ...string) (list []string) {
	h.t.Helper()
	envelope := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	code, text := h.do("POST", "/"+method, bytes.NewReader(envelope),
		append([]string{"Content-Type", "application/connect+json", "E2b-Sandbox-Id", id, "X-Access-Token", h.s.token(id)}, headers...)...)
	if code != 200 {
		h.t.Fatalf("%s: %d %s", method, code, text)
	}
	for b := []byte(text); len(b) >= 5; {
		n := min(int(binary.BigEndian.Uint32(b[1:5])), len(b)-5)
		list = append(list, fmt.Sprintf("%d %s", b[0], b[5:5+n]))
		b = b[5+n:]
	}
	return list
}

// TestVector has a signature that E2B's SDK made.
func TestVector(t *testing.T) {
	if got := wire.Signature("hello.txt", "read", "user", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", ""); got != "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E" {
		t.Error(got)
	}
}

// TestOnlyKeyAndHost tries requests that have no business here: without the key or a token, by other names (DNS rebinding), from pages of other origins.
func TestOnlyKeyAndHost(t *testing.T) {
	h := serve(t, false)
	id := h.create(`{"templateID":"base"}`)
	for _, c := range []struct {
		name, method, path string
		headers            []string
		want               int
	}{
		{"no key", "GET", "/v2/sandboxes", nil, 401},
		{"wrong key", "GET", "/v2/sandboxes", []string{"X-API-KEY", "another key of tests"}, 401},
		{"the key", "GET", "/v2/sandboxes", []string{"X-API-KEY", testKey}, 200},
		{"another name", "GET", "/v2/sandboxes", []string{"X-API-KEY", testKey, "Host", "evil.example"}, 421},
		{"a name that begins like ours", "GET", "/v2/sandboxes", []string{"X-API-KEY", testKey, "Host", "localhost.evil.example"}, 421},
		{"another domain", "GET", "/health", []string{"Host", "49983-" + id + ".evil.example"}, 421},
		{"another address", "GET", "/health", []string{"E2b-Sandbox-Id", id, "Host", "192.0.2.1"}, 421},
		{"another origin", "POST", "/v2/sandboxes", []string{"X-API-KEY", testKey, "Origin", "http://evil.example"}, 403},
		{"health", "GET", "/health", []string{"E2b-Sandbox-Id", id}, 204},
		{"health by name", "GET", "/health", []string{"Host", "49983-" + id + ".sandboxes.test"}, 204},
		{"envd without token", "POST", "/process.Process/List", []string{"E2b-Sandbox-Id", id, "Content-Type", "application/json"}, 401},
		{"envd with the key", "POST", "/process.Process/List", []string{"E2b-Sandbox-Id", id, "Content-Type", "application/json", "X-Access-Token", testKey}, 401},
		{"unknown", "GET", "/teams", []string{"X-API-KEY", testKey}, 501},
		{"binary codec", "POST", "/process.Process/List", []string{"E2b-Sandbox-Id", id, "Content-Type", "application/proto", "X-Access-Token", h.s.token(id)}, 415},
	} {
		if code, text := h.do(c.method, c.path, nil, c.headers...); code != c.want {
			t.Errorf("%s: %d %s, want %d", c.name, code, text, c.want)
		}
	}
	if _, err := New(Config{Key: "short"}); err == nil {
		t.Error("a short key is taken")
	}
}

// TestLives has create, list, time-outs, pause and kill.
func TestLives(t *testing.T) {
	h := serve(t, false)
	a := h.create(`{"templateID":"base","metadata":{"k":"a & b"},"timeout":100}`)
	b := h.create(`{"templateID":"base","timeout":100,"network":{"denyOut":["0.0.0.0/0"]}}`)
	if _, text := h.api("GET", "/v2/sandboxes?metadata="+url.QueryEscape("k="+url.QueryEscape(url.QueryEscape("a & b"))), ""); !strings.Contains(text, a) || strings.Contains(text, b) {
		t.Error(text)
	}
	if got := h.vms.vms[b].(*fakeVM).policy.Mode; got != egress.None {
		t.Error(got)
	}
	private := `{"allowOut":["10.0.0.5:80"],"denyOut":["0.0.0.0/0"]}` // which the server's policy, mode public, does not reach
	if code, text := h.api("POST", "/sandboxes", `{"templateID":"base","network":`+private+`}`); code != 400 || !strings.Contains(text, "not widen") {
		t.Error(code, text)
	}
	for _, c := range []struct {
		method, path, body string
		code               int
		text               string
	}{
		{"POST", "/v2/sandboxes", `{"templateID":"other"}`, 404, "only base"},
		{"POST", "/v2/sandboxes", `{"templateID":"base","timeout":90000}`, 400, "timeout"},
		{"POST", "/v2/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"x"}]}`, 400, "not supported"},
		{"POST", "/v2/sandboxes", `{"templateID":"base","envVars":{"A=B":"c"}}`, 400, "no variable"},
		{"POST", "/v2/sandboxes", strings.Repeat("[", 1<<20), 400, "JSON"},
		{"POST", "/v2/sandboxes", `"` + strings.Repeat("x", 5<<20), 413, ""},
		{"GET", "/sandboxes/" + a, "", 200, `"state":"running"`},
		{"GET", "/sandboxes/none", "", 404, `"code":404`},
		{"POST", "/sandboxes/" + a + "/pause", "{}", 204, ""},
		{"POST", "/sandboxes/" + a + "/pause", "{}", 409, ""},
		{"GET", "/v2/sandboxes?state=paused", "", 200, a},
		{"POST", "/v2/sandboxes/" + a + "/connect", `{"timeout":100}`, 201, a},
		{"POST", "/sandboxes/" + a + "/connect", `{"timeout":100}`, 200, a},
		{"PUT", "/sandboxes/" + a + "/network", `{"allow_internet_access":false}`, 204, ""},
		{"PUT", "/sandboxes/" + a + "/network", private, 400, "not widen"},
		{"PUT", "/sandboxes/" + a + "/network", `{"rules":{"a.example":[{}]}}`, 400, "not supported"},
		{"POST", "/sandboxes", `{"templateID":"base"}`, 201, ""},
		{"POST", "/sandboxes", `{"templateID":"base"}`, 429, "at most 3"},
		{"DELETE", "/sandboxes/" + b, "", 204, ""},
		{"DELETE", "/sandboxes/" + b, "", 404, ""},
		{"POST", "/sandboxes/" + a + "/timeout", `{"timeout":0}`, 204, ""},
	} {
		if code, text := h.api(c.method, c.path, c.body); code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s %s %.80s: %d %.300s, want %d with %q", c.method, c.path, c.body, code, text, c.code, c.text)
		}
	}
	for end := time.Now().Add(time.Minute); h.vms.count() > 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a sandbox outlives its time")
		}
	}
	if code, text := h.do("GET", "/health", nil, "E2b-Sandbox-Id", a); code != 502 || !strings.Contains(text, `"The sandbox was not found"`) {
		t.Error(code, text)
	}
}

// TestPolicyNarrows has what clients can ask of a server whose own policy is an allowlist: nothing more than it has.
func TestPolicyNarrows(t *testing.T) {
	most := egress.Policy{Mode: egress.Allowlist}
	rule, err := egress.ParseRule("pypi.org:443")
	if err != nil {
		t.Fatal(err)
	}
	most.Allow = []egress.Rule{rule}
	for text, want := range map[string]string{
		`{}`:                        most.String(),
		`{"allowOut":["1.1.1.1"]}`:  most.String(),
		`{"denyOut":["0.0.0.0/0"]}`: egress.Policy{Mode: egress.None}.String(),
		`{"denyOut":["8.8.8.8"]}`:   most.String() + "; deny 8.8.8.8",
		`{"denyOut":["0.0.0.0/0"],"allowOut":["1.1.1.1"]}`:          "",
		`{"denyOut":["0.0.0.0/0"],"allowOut":["pypi.org"]}`:         "",
		`{"denyOut":["0.0.0.0/0"],"allowOut":["pypi.org:443/tcp"]}`: "mode allowlist; allow pypi.org:443/tcp",
		`{"denyOut":["8.8.8.8"],"allowOut":["1.1.1.1"]}`:            "",
		`{"denyOut":["not a rule"]}`:                                "",
	} {
		var n network
		if err := json.Unmarshal([]byte(text), &n); err != nil {
			t.Fatal(err)
		}
		p, err := n.policy(most, nil)
		if (err != nil) != (want == "") || err == nil && p.String() != want {
			t.Errorf("%s: %s, %v; want %s", text, p, err, want)
		}
	}
}

// TestStalledClients: clients begin a request and then send nothing more.
func TestStalledClients(t *testing.T) {
	h := serve(t, false)
	h.s.stall = 50 * time.Millisecond
	for _, key := range []string{testKey, "none"} {
		c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: %s\r\nContent-Length: 100\r\n\r\n{", key)
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if b, err := io.ReadAll(c); err != nil {
			t.Errorf("key %s: a client that stalls keeps its connection: %q, %v", key, b, err)
		}
	}
}

// TestSignedURLs forges URLs, and uses good ones for something else.
// TestTokenNamesTheSandbox: SDKs before 2.16 send the token of a sandbox and not its name.
func TestTokenNamesTheSandbox(t *testing.T) {
	h := serve(t, false)
	id, other := h.create(`{"templateID":"base"}`), h.create(`{"templateID":"base"}`)
	for token, want := range map[string]int{h.s.token(id): 204, h.s.token(other): 204, "wrong": 502, "": 502} {
		if code, text := h.do("GET", "/health", nil, "X-Access-Token", token); code != want {
			t.Errorf("token %q: %d %s, want %d", token, code, text, want)
		}
	}
	if got := h.s.holder(h.s.token(other)); got != other {
		t.Errorf("the token is that of %q, want %q", got, other)
	}
	if code, text := h.do("GET", "/files?path=/x", nil, "X-Access-Token", "wrong"); code != 401 {
		t.Errorf("a wrong token: %d %s", code, text)
	}
	if code, text := h.do("GET", "/files?path=/x", nil, "X-Access-Token", h.s.token(id), "E2b-Sandbox-Id", other); code != 401 {
		t.Errorf("another's token: %d %s", code, text)
	}
}

// TestAllIsUsedOrRefused: what a client asks for and the server does not know is an error.
func TestAllIsUsedOrRefused(t *testing.T) {
	h := serve(t, false)
	id := h.create(`{"templateID":"base","secure":true}`)
	for _, call := range [][3]string{
		{"POST", "/sandboxes", `{"templateID":"base","network":{"denyout":[],"allow":["x"]}}`}, {"POST", "/v2/sandboxes", `{"templateID":"base","cpuCount":4}`},
		{"GET", "/v2/sandboxes?templateID=base", ""}, {"GET", "/sandboxes/" + id + "?x=1", ""}, {"DELETE", "/sandboxes/" + id + "?dry=true", ""},
		{"POST", "/sandboxes/" + id + "/pause", `{"memry":false}`}, {"POST", "/sandboxes/" + id + "/timeout", `{"timeoutMs":1}`},
		{"PUT", "/sandboxes/" + id + "/network", `{"allow":["x"]}`}, {"GET", "/sandboxes/" + id + "/metrics?since=1", ""},
		{"GET", "/sandboxes/" + id + "/metrics?start=x", ""}, {"GET", "/sandboxes/" + id + "/metrics?start=9&end=8", ""}, {"GET", "/snapshots?template=x", ""},
	} {
		want := 400
		if strings.HasPrefix(call[1], "/snapshots") {
			want = 501 // this server keeps none
		}
		if code, text := h.api(call[0], call[1], call[2]); code != want {
			t.Errorf("%s: %d %s", call, code, text)
		}
	}
	for query, want := range map[string]string{"?start=1&end=2": "[]", "?start=99999999999": "[]", "?template=none": "[]"} {
		path := "/sandboxes/" + id + "/metrics"
		if strings.Contains(query, "template") {
			path = "/v2/sandboxes"
		}
		if code, text := h.api("GET", path+query, ""); code != 200 || strings.TrimSpace(text) != want {
			t.Errorf("%s%s: %d %s", path, query, code, text)
		}
	}
}

func TestSignedURLs(t *testing.T) {
	h := serve(t, true)
	id, other := h.create(`{"templateID":"base"}`), h.create(`{"templateID":"base"}`)
	token, now := h.s.token(id), time.Now().Unix()
	sign := func(operation, path, user, token, expires string) string {
		q := url.Values{"path": {path}, "signature": {wire.Signature(path, operation, user, token, expires)}}
		if user != "" {
			q.Set("username", user)
		}
		if expires != "" {
			q.Set("signature_expiration", expires)
		}
		return "/files?" + q.Encode()
	}
	upload := func(path string) (int, string) {
		return h.do("POST", path, strings.NewReader("text"), "Content-Type", "application/octet-stream")
	}
	if code, text := upload(sign("write", "../tmp/../tmp/x", "", token, fmt.Sprint(now+60))); code != 200 || text != `[{"name":"x","path":"/tmp/x","type":"file"}]`+"\n" {
		t.Fatal(code, text)
	}
	if code, text := h.do("GET", sign("read", "/tmp/x", "root", token, ""), nil); code != 200 || text != "text" {
		t.Fatal(code, text)
	}
	good := sign("read", "/tmp/x", "", token, fmt.Sprint(now+60))
	for name, bad := range map[string]string{
		"other path": strings.Replace(good, "%2Ftmp%2Fx", "%2Fetc%2Fpasswd", 1), "later end": strings.Replace(good, fmt.Sprint(now+60), fmt.Sprint(now+600), 1),
		"no end": strings.Replace(good, fmt.Sprint("&signature_expiration=", now+60), "", 1), "other user": good + "&username=root", "two paths": good + "&path=/etc/passwd",
		"write": sign("write", "/tmp/x", "", token, ""), "no signature": "/files?path=/tmp/x", "empty signature": "/files?path=/tmp/x&signature=",
		"guessed token": sign("read", "/tmp/x", "", "", ""), "the key": sign("read", "/tmp/x", "", testKey, ""), "no number": sign("read", "/tmp/x", "", token, "soon"),
	} {
		if bad == good {
			t.Errorf("%s: the URL is the good one", name)
		}
		if code, text := h.do("GET", bad, nil); code != 401 && !(name == "two paths" && code == 400) {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
	if code, text := h.do("GET", sign("read", "/tmp/x", "", token, fmt.Sprint(now-1)), nil); code != 401 || text != `{"code":401,"message":"signature is already expired"}`+"\n" {
		t.Error(code, text)
	}
	if code, _ := h.do("GET", good, nil, "E2b-Sandbox-Id", other); code != 401 {
		t.Error("a signature of one sandbox opens another:", code)
	}
	if code, _ := h.api("DELETE", "/sandboxes/"+id, ""); code != 204 {
		t.Fatal(code)
	}
	if code, text := h.do("GET", good, nil); code == 200 {
		t.Error("a URL of a sandbox that has ended: ", code, text)
	}
}

// TestEnvd makes the calls that E2B's SDK makes, in a VM. make e2b-sdk has the SDK itself make them.
func TestEnvd(t *testing.T) {
	h := serve(t, true)
	id := h.create(`{"templateID":"base","envVars":{"A":"b"}}`)
	text64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	start := func(line string) string {
		return fmt.Sprintf(`{"process":{"cmd":"/bin/bash","args":["-l","-c",%q],"envs":{"C":"d"}},"stdin":false}`, line)
	}
	got := h.stream(id, "process.Process/Start", start("echo $A$C; exit 3"))
	want := []string{
		`0 {"event":{"start":{"pid":1}}}`, `0 {"event":{"data":{"stdout":"` + text64("bd\n") + `"}}}`,
		`0 {"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"}}}`, `2 {}`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q", got)
	}
	if got := h.stream(id, "process.Process/Start", start("sleep 100"), "Connect-Timeout-Ms", "300"); !strings.Contains(strings.Join(got, ""), "deadline_exceeded") {
		t.Errorf("%q", got)
	}
	if got := h.stream(id, "process.Process/Start", start("sleep 0.5"), "Keepalive-Ping-Interval", "0"); !strings.Contains(strings.Join(got, ""), `"exited":true`) {
		t.Errorf("%q", got)
	}
	if got := h.stream(id, "process.Process/Start", `{"process":{"cmd":"/bin/true","cwd":"/nowhere"}}`); len(got) != 1 || !strings.Contains(got[0], "invalid_argument") {
		t.Errorf("%q", got)
	}
	if got := h.stream(id, "process.Process/Connect", `{"process":{"pid":99}}`); len(got) != 1 || !strings.Contains(got[0], "not_found") {
		t.Errorf("%q", got)
	}
	cut := make(chan []string)
	go func() { cut <- h.stream(id, "process.Process/Start", `{"process":{"cmd":"/bin/cat"},"tag":"cat"}`) }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if code, _ := h.rpc(id, "process.Process/SendInput", `{"process":{"tag":"cat"},"input":{"stdin":"`+text64("in")+`"}}`); code == 200 {
			break
		} else if time.Now().After(end) {
			t.Fatal("cat does not start")
		}
	}
	for _, c := range []struct {
		method, body string
		code         int
		text         string
	}{
		{"process.Process/List", `{}`, 200, `"tag":"cat"`},
		{"process.Process/SendSignal", `{"process":{"tag":"cat"},"signal":"SIGNAL_STOP"}`, 400, "SIGNAL_SIGKILL"},
		{"process.Process/SendSignal", `{"process":{"pid":99},"signal":"SIGNAL_SIGKILL"}`, 404, "not_found"},
		{"process.Process/SendSignal", `{`, 400, "invalid_argument"},
		{"process.Process/CloseStdin", `{"process":{"tag":"cat"}}`, 200, "{}"},
		{"process.Process/SendInput", `{"process":{"tag":"cat"},"input":{"stdin":"eA=="}}`, 400, "failed_precondition"},
		{"filesystem.Filesystem/MakeDir", `{"path":"d/e"}`, 200, `"path":"/root/d/e"`},
		{"filesystem.Filesystem/MakeDir", `{"path":"/root/d/e"}`, 409, "already_exists"},
		{"filesystem.Filesystem/MakeDir", `{"path":"/etc/passwd/x"}`, 400, "invalid_argument"},
		{"filesystem.Filesystem/Move", `{"source":"d/e","destination":"f/g"}`, 200, `"path":"/root/f/g"`},
		{"filesystem.Filesystem/Stat", `{"path":"d/e"}`, 404, "not_found"},
		{"filesystem.Filesystem/Stat", `{"path":"a\u0000b"}`, 400, "invalid_argument"},
		{"filesystem.Filesystem/ListDir", `{"path":"/root/../root","depth":2}`, 200, `"path":"/root/f/g"`},
		{"filesystem.Filesystem/Remove", `{"path":"f"}`, 200, "{}"},
		{"filesystem.Filesystem/Remove", `{"path":"/tmp/.."}`, 400, "invalid_argument"},
	} {
		if code, text := h.rpc(id, c.method, c.body); code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s %s: %d %.300s, want %d with %q", c.method, c.body, code, text, c.code, c.text)
		}
	}
	if got := strings.Join(<-cut, ""); !strings.Contains(got, text64("in")) || !strings.Contains(got, `"exited":true`) {
		t.Error(got)
	}

	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	for _, name := range []string{"m/one", "/tmp/two"} {
		part, err := parts.CreateFormFile("file", name)
		if err == nil {
			_, err = io.WriteString(part, name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = parts.Close()
	headers := []string{"E2b-Sandbox-Id", id, "X-Access-Token", h.s.token(id)}
	if code, text := h.do("POST", "/files", &form, append(headers, "Content-Type", parts.FormDataContentType())...); code != 200 || !strings.Contains(text, `"path":"/root/m/one"`) {
		t.Error(code, text)
	}
	if code, text := h.do("GET", "/files?path=/tmp/two", nil, headers...); code != 200 || text != "/tmp/two" {
		t.Error(code, text)
	}
	if code, text := h.do("GET", "/files?path=/tmp/two&username=stranger", nil, headers...); code != 401 || !strings.Contains(text, "no user") {
		t.Error(code, text)
	}

	go func() { cut <- h.stream(id, "process.Process/Start", start("echo runs; sleep 100")) }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, text := h.rpc(id, "process.Process/List", `{}`); strings.Contains(text, "echo runs") {
			break
		} else if time.Now().After(end) {
			t.Fatal("sleep does not start")
		}
	}
	if code, _ := h.api("DELETE", "/sandboxes/"+id, ""); code != 204 {
		t.Error(code)
	}
	if got := strings.Join(<-cut, ""); strings.Contains(got, `"end"`) || strings.Contains(got, "2 {") {
		t.Error("a stream of a sandbox that was killed has an end:", got)
	}
}

// TestKinds: each kind of error has one status of the control API. Package rpc has the codes of envd.
func TestKinds(t *testing.T) {
	for err, want := range map[error]int{
		errors.New("no more is known"): 500, fs.ErrInvalid: 400, fs.ErrNotExist: 404, client.ErrExists: 409, fs.ErrPermission: 403, &http.MaxBytesError{}: 413,
		os.ErrDeadlineExceeded: 408, context.Canceled: 503, context.DeadlineExceeded: 504, fail(429, "its own"): 429, fmt.Errorf("in: %w", fail(502, "its own")): 502,
	} {
		w := httptest.NewRecorder()
		writeError(w, err)
		if w.Code != want || !strings.Contains(w.Body.String(), fmt.Sprintf(`{"code":%d,"message":%q}`, want, err)) {
			t.Errorf("%v: %d %s, want %d", err, w.Code, w.Body, want)
		}
	}
}

func FuzzRequests(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x02{}"), "~/../x")
	f.Add([]byte(`{"process":{"cmd":"a","envs":{"A":"b"}},"pty":{"size":{"cols":1}}}`), "/a")
	f.Add([]byte(`{"denyOut":["0.0.0.0/0"],"allowOut":["*.example.org:443"]}`), "a/../../b")
	f.Fuzz(func(t *testing.T, b []byte, p string) {
		for _, message := range []any{new(startRequest), new(selectRequest), new(pathRequest)} {
			_ = codec{}.Unmarshal(b, message)
		}
		var n network
		if json.Unmarshal(b, &n) == nil {
			most := egress.Policy{Mode: egress.None}
			if got, err := n.policy(most, nil); err == nil && got.Effective() != egress.None {
				t.Errorf("%s widens the policy to %s", b, got)
			}
		}
		u := user{name: "user", home: "/home/user"}
		if got, err := u.path(p); err == nil && (got[0] != '/' || strings.Contains(got+"/", "/../")) {
			t.Errorf("%q becomes %q", p, got)
		}
	})
}
