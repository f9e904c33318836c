package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/images/storetest"
	"agentvm/internal/daemon"
	"agentvm/internal/httpserver"
	"agentvm/vm"
)

// testKey is the key of the tests' clients.
const testKey = "0123456789abcdef"

// kit is what the tests share: a store with a VM dev, which a daemon owns.
var kit struct {
	store storetest.Store
	vms   *client.Store
	once  sync.Once
}

// TestMain also is the daemons: Store.Start runs this program with their arguments.
func TestMain(m *testing.M) {
	if len(os.Args) == 6 && os.Args[1] == "daemon" {
		if err := daemon.Run(context.Background(), daemon.Store{Dir: os.Args[4]}, os.Args[5]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	os.Exit(kit.store.Main(func() int {
		code := m.Run()
		if kit.vms != nil {
			for _, name := range kit.vms.Names() {
				_, _ = kit.vms.Stop(context.Background(), name, 0)
			}
		}
		return code
	}))
}

// noSaved has no snapshots.
type noSaved struct{}

func (noSaved) List(context.Context) ([]Snapshot, error)             { return nil, nil }
func (noSaved) Create(context.Context, string, string, string) error { return nil }
func (noSaved) Restore(context.Context, string, string, func(vm.Network) error) error {
	return nil
}
func (noSaved) Remove(context.Context, string) error { return nil }

// api is a client of a server with a real store.
type api struct {
	t      testing.TB
	url    string
	key    string
	server *Server
	http   *http.Client
}

func serve(t testing.TB, change func(*Options)) *api {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a VM")
	}
	image := kit.store.Image(t)
	kit.once.Do(func() {
		program, err := os.Executable()
		if err == nil {
			kit.vms, err = client.OpenStore(client.StoreOptions{Dir: kit.store.Dir(), Program: program})
		}
		if err != nil {
			t.Fatal(err)
		}
		os.Setenv("AGENTVM_STORE", kit.store.Dir())
	})
	o := Options{Store: kit.vms, Saved: noSaved{}, Keys: httpserver.Keys{{Name: "first", Value: "not-this-one-0123"}, {Name: "test", Value: testKey}}, Version: "test"}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	l := httptest.NewServer(s.Handler())
	t.Cleanup(l.Close)
	a := &api{t, l.URL, testKey, s, l.Client()}
	if kit.vms.Exists("dev") != nil {
		a.want("POST", "/v1/vms", NewVM{Name: "dev", Image: image, Memory: 128 << 20, Network: &Policy{Allow: []string{"pypi.org:443"}}}, 201, nil)
	}
	return a
}

// do sends a request. A body that is no reader is sent as JSON.
func (a *api) do(method, path string, body any, header ...string) *http.Response {
	a.t.Helper()
	reader, raw := body.(io.Reader)
	if !raw && body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			a.t.Fatal(err)
		}
		reader = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path, reader)
	if err != nil {
		a.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+a.key)
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := a.http.Do(r)
	if err != nil {
		a.t.Fatal(err)
	}
	return answer
}

// want sends a request whose answer has a status, and reads its JSON.
func (a *api) want(method, path string, body any, status int, into any, header ...string) string {
	a.t.Helper()
	answer := a.do(method, path, body, header...)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != status {
		a.t.Fatalf("%s %s: status %d, %s, %v; want %d", method, path, answer.StatusCode, text, err, status)
	}
	if into != nil {
		if err := json.Unmarshal(text, into); err != nil {
			a.t.Fatalf("%s %s: %s: %v", method, path, text, err)
		}
	}
	return string(text)
}

// TestPlatform makes a VM of a platform that is asked for; it is described, too, when it does not run.
func TestPlatform(t *testing.T) {
	a := serve(t, nil)
	for _, of := range []struct{ asked, machine, platform string }{{"", "riscv64", "linux/riscv64"}, {"linux/arm64", "aarch64", "linux/arm64"}} {
		var made, stopped VM
		a.want("POST", "/v1/vms", NewVM{Image: "busybox", Platform: of.asked, Memory: 128 << 20}, 201, &made)
		at := "/v1/vms/" + made.Name
		var r Result
		a.want("POST", at+"/exec", Command{Line: "uname -m"}, 200, &r)
		a.want("POST", at+"/stop", StopRequest{}, 200, &stopped)
		if r.Stdout != of.machine+"\n" || made.Platform != of.platform || stopped.Platform != of.platform || stopped.Image != "busybox" {
			t.Errorf("%q: %q, made %+v, stopped %+v", of.asked, r.Stdout, made, stopped)
		}
		a.want("DELETE", at, nil, 204, nil)
	}
}

func TestVMs(t *testing.T) {
	a := serve(t, nil)
	var list []VM
	a.want("GET", "/v1/vms", nil, 200, &list)
	if !slices.ContainsFunc(list, func(v VM) bool { return v.Name == "dev" && v.State == "running" && v.Memory == 128<<20 }) {
		t.Errorf("listed %+v", list)
	}
	var made, stopped, started VM
	a.want("POST", "/v1/vms", NewVM{Image: kit.store.Image(t), Memory: 128 << 20, Env: map[string]string{"A": "b"}, Labels: map[string]string{"of": "test"}}, 201, &made)
	at := "/v1/vms/" + made.Name
	var r Result
	a.want("POST", at+"/exec", Command{Line: "echo $A; echo kept >/root/kept; sync"}, 200, &r)
	if r.Stdout != "b\n" || made.Labels["of"] != "test" {
		t.Errorf("%+v, %+v", r, made)
	}
	a.want("POST", at+"/pause", nil, 200, &stopped)
	if stopped.State != "paused" {
		t.Errorf("paused: %+v", stopped)
	}
	a.want("POST", at+"/resume", nil, 200, nil)
	a.want("POST", at+"/stop", StopRequest{}, 200, &stopped)
	a.want("POST", at+"/exec", Command{Line: "true"}, 409, nil)
	a.want("POST", at+"/start", nil, 200, &started)
	if stopped.State != "stopped" || started.State != "running" {
		t.Errorf("stopped %+v, started %+v", stopped, started)
	}
	a.want("POST", at+"/exec", Command{Args: []string{"cat", "/root/kept"}}, 200, &r)
	if r.Stdout != "kept\n" {
		t.Errorf("%+v", r)
	}
	a.want("DELETE", at, nil, 204, nil)
	a.want("GET", at, nil, 404, nil)
}

func TestExec(t *testing.T) {
	a := serve(t, nil)
	for _, tt := range []struct {
		in   Command
		want Result
	}{
		{Command{Line: "echo out; echo err >&2; exit 3"}, Result{ExitCode: 3, Stdout: "out\n", Stderr: "err\n"}},
		{Command{Args: []string{"cat"}, Stdin: "hello"}, Result{Stdout: "hello"}},
		{Command{Args: []string{"cat"}, Stdin: "/wA=", Base64: true}, Result{Stdout: "/wA="}},
		{Command{Line: "printf '\\377'"}, Result{Stdout: "\uFFFD"}},
		{Command{Line: "pwd; echo $X", Dir: "/tmp", Env: map[string]string{"X": "y z"}}, Result{Stdout: "/tmp\ny z\n"}},
		{Command{Line: "sleep 100", TimeoutSeconds: 0.2}, Result{ExitCode: 137, Signal: 9, TimedOut: true}},
		{Command{Line: "nosuchprogram"}, Result{ExitCode: 127, Stderr: "/bin/sh: nosuchprogram: not found\n"}},
	} {
		var got Result
		a.want("POST", "/v1/vms/dev/exec", tt.in, 200, &got)
		got.DurationSeconds = 0
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", tt.want) {
			t.Errorf("%+v: got %+v, want %+v", tt.in, got, tt.want)
		}
	}
	var cut Result
	a.want("POST", "/v1/vms/dev/exec", Command{Line: "seq 100000", MaxOutput: 100}, 200, &cut)
	if len(cut.Stdout) != 100 || cut.StdoutTruncated == nil || cut.StdoutTruncated.Dropped != 588895-100 {
		t.Errorf("%+v, %+v", cut, cut.StdoutTruncated)
	}
}

// readEvents reads the events of a stream as "event data" lines.
func readEvents(t *testing.T, r io.Reader) (list []string) {
	t.Helper()
	eachEvent(r, func(text string) { list = append(list, text) })
	return list
}

func eachEvent(r io.Reader, use func(string)) {
	event := ""
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if text, found := strings.CutPrefix(lines.Text(), "event: "); found {
			event = text
		} else if text, found := strings.CutPrefix(lines.Text(), "data: "); found {
			use(event + " " + text)
		}
	}
}

func TestStream(t *testing.T) {
	a := serve(t, nil)
	answer := a.do("POST", "/v1/vms/dev/exec/stream", Command{Line: "echo first; read x; echo err >&2; exit 4", Stdin: "x\n"})
	defer answer.Body.Close()
	got := readEvents(t, answer.Body)
	if len(got) != 3 || !slices.Contains(got, `stdout {"data":"first\n"}`) || !slices.Contains(got, `stderr {"data":"err\n"}`) || !strings.Contains(got[2], `exit {"exitCode":4`) {
		t.Errorf("got %q", got)
	}
	// The command is killed when its client goes.
	ctx, cancel := context.WithCancel(t.Context())
	text, _ := json.Marshal(Command{Line: "echo $$; exec sleep 1000"})
	r, _ := http.NewRequestWithContext(ctx, "POST", a.url+"/v1/vms/dev/exec/stream", bytes.NewReader(text))
	r.Header.Set("X-API-Key", testKey)
	answer, err := a.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 100)
	n, _ := io.ReadAtLeast(answer.Body, first, 20)
	pid := regexp.MustCompile(`[0-9]+`).FindString(string(first[:n]))
	cancel()
	_ = answer.Body.Close()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		var r Result
		a.want("POST", "/v1/vms/dev/exec", Command{Line: "kill -0 " + pid}, 200, &r)
		if r.ExitCode != 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %s runs without its client", pid)
		}
	}
}

// A character whose bytes are written one by one comes whole.
func TestStreamCharacters(t *testing.T) {
	recorded := httptest.NewRecorder()
	e := newEvents(recorded)
	w := e.writer("stdout", false)
	for _, b := range []byte("aé€😀\xffz\xc3") {
		if _, err := w.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	w.flush()
	e.close()
	text := ""
	for _, event := range readEvents(t, recorded.Body) {
		var o Output
		if err := json.Unmarshal([]byte(strings.TrimPrefix(event, "stdout ")), &o); err != nil {
			t.Fatal(err)
		}
		text += o.Data
	}
	if text != "aé€😀\uFFFDz\uFFFD" {
		t.Errorf("got %q", text)
	}
}

func TestJobs(t *testing.T) {
	a := serve(t, nil)
	var j Job
	a.want("POST", "/v1/vms/dev/jobs", NewJob{Line: "cat; echo done >&2; exit 7", Input: true, Label: "echo"}, 200, &j)
	at := "/v1/vms/dev/jobs/" + j.ID
	var o JobOutput
	a.want("GET", at+"/output?waitSeconds=0.1", nil, 200, &o)
	if len(o.Chunks) != 0 || o.Ended || o.Next != 0 {
		t.Errorf("nothing was written: %+v", o)
	}
	a.want("POST", at+"/input", strings.NewReader("hello "), 204, nil)
	a.want("POST", at+"/input?end=true", strings.NewReader("world"), 204, nil)
	got := map[string]string{}
	for from := uint64(0); !o.Ended; from = o.Next {
		o = JobOutput{}
		a.want("GET", fmt.Sprintf("%s/output?from=%d&waitSeconds=10", at, from), nil, 200, &o)
		for _, c := range o.Chunks {
			got[c.Stream] += string(c.Data)
		}
	}
	a.want("GET", at, nil, 200, &j)
	if got["stdout"] != "hello world" || got["stderr"] != "done\n" || j.ExitCode == nil || *j.ExitCode != 7 || j.Label != "echo" || j.Ended == nil {
		t.Errorf("%v, %+v", got, j)
	}
	a.want("GET", at+"/output?from=0", nil, 200, &o) // again
	if string(o.Chunks[0].Data) == "" {
		t.Errorf("%+v", o)
	}
	a.want("DELETE", at, nil, 204, nil)
	a.want("GET", at, nil, 404, nil)
	a.want("POST", "/v1/vms/dev/jobs", NewJob{Line: "sleep 1000"}, 200, &j)
	a.want("POST", "/v1/vms/dev/jobs/"+j.ID+"/signal", Signal{15}, 204, nil)
	a.want("GET", "/v1/vms/dev/jobs/"+j.ID+"/output?waitSeconds=20", nil, 200, &o)
	a.want("GET", "/v1/vms/dev/jobs/"+j.ID, nil, 200, &j)
	if !o.Ended || j.Signal != 15 {
		t.Errorf("%+v, %+v", o, j)
	}
	a.want("DELETE", "/v1/vms/dev/jobs/"+j.ID, nil, 204, nil)
}

func TestFiles(t *testing.T) {
	a := serve(t, nil)
	const at = "/v1/vms/dev/files"
	data := strings.Repeat("0123456789", 100000)
	a.want("PUT", at+"?path=/root/d/e/file&mode=750", strings.NewReader(data), 204, nil)
	if got := a.want("GET", at+"?path=/root/d/e/file", nil, 200, nil); got != data {
		t.Errorf("%d bytes came back", len(got))
	}
	var f File
	a.want("GET", at+"/info?path=/root/d/e/file", nil, 200, &f)
	if f.Name != "file" || f.Type != "file" || f.Size != 1000000 || f.Mode != "0750" {
		t.Errorf("%+v", f)
	}
	a.want("PUT", at+"?path=/root/d/e/file", strings.NewReader("short"), 204, nil)
	a.want("GET", at+"/info?path=/root/d/e/file", nil, 200, &f)
	if f.Size != 5 || f.Mode != "0750" {
		t.Errorf("replaced: %+v", f)
	}
	a.want("POST", at+"/directory?path=/root/d/sub", nil, 204, nil)
	a.want("POST", at+"/move", Move{"/root/d/e/file", "/root/d/sub/moved"}, 204, nil)
	var list []File
	a.want("GET", at+"/list?path=/root/d/sub", nil, 200, &list)
	if len(list) != 1 || list[0].Name != "moved" {
		t.Errorf("%+v", list)
	}
	if text := a.want("GET", at+"?path=/proc/version", nil, 200, nil); !strings.HasPrefix(text, "Linux version") {
		t.Errorf("%q", text)
	}
	a.want("DELETE", at+"?path=/root/d", nil, 204, nil)
	for want, paths := range map[int][]string{
		404: {"/root/d", "/nope/file"},
		400: {"", "relative", "../../etc/passwd", "/root/../etc/passwd", "/root//x", "/root/.", "/a%00b", "/root"},
	} {
		for _, p := range paths {
			a.want("GET", at+"?path="+p, nil, want, nil)
		}
	}
	a.want("DELETE", at+"?path=/root/d", nil, 404, nil)
	a.want("PUT", at+"?path=/root/x&mode=7777", strings.NewReader(""), 400, nil)
}

func TestNetwork(t *testing.T) {
	a := serve(t, nil)
	var p Policy
	a.want("GET", "/v1/vms/dev/network", nil, 200, &p)
	if p.Mode != "allowlist" || len(p.Allow) != 1 || p.Allow[0] != "pypi.org:443" {
		t.Errorf("%+v", p)
	}
	var c Change
	a.want("PUT", "/v1/vms/dev/network", Policy{Mode: "none"}, 200, &c)
	if c.Mode != "none" || c.Allow != nil {
		t.Errorf("%+v", c)
	}
	a.want("PUT", "/v1/vms/dev/network", Policy{Mode: "public", Version: p.Version}, 409, nil)
	a.want("PUT", "/v1/vms/dev/network", Policy{Mode: "none", Deny: []string{"*:25"}, Version: c.Version}, 200, &c)
	a.want("PUT", "/v1/vms/dev/network", Policy{Mode: "all"}, 400, nil)
	a.want("PUT", "/v1/vms/dev/network", Policy{Allow: []string{"a b"}}, 400, nil)
	var r Result
	a.want("POST", "/v1/vms/dev/exec", Command{Line: "wget -T 5 -O- http://93.184.216.34/ 2>&1; nc -l -p 8123 >/dev/null 2>&1 </dev/null &"}, 200, &r)
	var denials []Denial
	for deadline := time.Now().Add(time.Minute); len(denials) == 0 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		a.want("GET", "/v1/vms/dev/network/denials", nil, 200, &denials)
	}
	if len(denials) == 0 || denials[0].Destination != "93.184.216.34:80" {
		t.Errorf("%+v, %+v", denials, r)
	}
	var f Forward
	a.want("POST", "/v1/vms/dev/ports", NewForward{Port: 8123}, 200, &f)
	if c, err := net.Dial("tcp", f.Address); err != nil {
		t.Error(err)
	} else {
		_ = c.Close()
	}
	a.want("POST", "/v1/vms/dev/ports", NewForward{}, 400, nil)
	a.want("PUT", "/v1/vms/dev/network", Policy{Allow: []string{"pypi.org:443"}}, 200, nil)
}

func TestForks(t *testing.T) {
	a := serve(t, nil)
	var forks []VM
	a.want("POST", "/v1/vms/dev/forks", Forks{Names: []string{"fork-a", "fork-b"}}, 200, &forks)
	if len(forks) != 2 || forks[1].Name != "fork-b" {
		t.Errorf("%+v", forks)
	}
	for _, f := range forks {
		var r Result
		a.want("POST", "/v1/vms/"+f.Name+"/exec", Command{Line: "hostname"}, 200, &r)
		a.want("DELETE", "/v1/vms/"+f.Name, nil, 204, nil)
	}
	a.want("POST", "/v1/vms/dev/forks", Forks{}, 400, nil)
	a.want("POST", "/v1/vms/dev/forks", Forks{Names: []string{"dev"}}, 409, nil)
}

func TestRefused(t *testing.T) {
	a := serve(t, nil)
	for _, tt := range []struct {
		method, path string
		body         any
		status       int
		detail       string
	}{
		{"POST", "/v1/vms", NewVM{Name: "dev"}, 409, "already"},
		{"POST", "/v1/vms", NewVM{Name: "../x"}, 400, "name"},
		{"POST", "/v1/vms", NewVM{Name: "x", Memory: 1}, 400, "memory"},
		{"POST", "/v1/vms", NewVM{Name: "x", Platform: "linux/amd64"}, 400, "VMs do not run programs for x86 processors: write linux/riscv64 or linux/arm64"},
		{"POST", "/v1/vms", NewVM{Name: "x", MaxConnections: -1}, 400, "maxConnections -1: want a number from 0 to 65535"},
		{"POST", "/v1/vms", NewVM{Name: "x", Image: "oci:/etc"}, 400, "file of the server's host"},
		{"POST", "/v1/vms", NewVM{Name: "x", Image: "/etc/passwd.wasm"}, 400, "file of the server's host"},
		{"POST", "/v1/vms", map[string]any{"mounts": []string{"/:/host"}}, 400, "unknown field"},
		{"POST", "/v1/vms", NewVM{Name: "x", IdleSeconds: -1}, 400, "idleSeconds"},
		{"POST", "/v1/vms", strings.NewReader(`{"name":"x"} {}`), 400, "after the object"},
		{"POST", "/v1/vms", strings.NewReader(`[[[`), 400, "no JSON"},
		{"POST", "/v1/vms", strings.NewReader(strings.Repeat("[", 1<<20)), 400, "no JSON"},
		{"POST", "/v1/vms", strings.NewReader(`{"name":"` + strings.Repeat("x", maxBody) + `"}`), 413, ""},
		{"POST", "/v1/vms/dev/exec", Command{}, 400, ""},
		{"POST", "/v1/vms/dev/exec", Command{Line: "x", MaxOutput: -1}, 400, "maxOutput"},
		{"POST", "/v1/vms/nope/exec", Command{Line: "x"}, 404, "no such VM"},
		{"GET", "/v1/vms/..%2f..%2fetc", nil, 400, "name"},
		{"GET", "/v1/nope", nil, 404, "openapi.json"},
		{"PATCH", "/v1/vms/dev", nil, 405, "GET"},
		{"GET", "/v1/vms/dev/exec", nil, 405, "POST"},
		{"GET", "/v1/vms/dev/jobs/nope", nil, 404, ""},
		{"GET", "/v1/vms/dev/jobs/nope/output?from=-1", nil, 400, "from"},
		{"POST", "/v1/snapshots/x/restore", Restored{Name: "A B"}, 400, ""},
	} {
		var p Problem
		a.want(tt.method, tt.path, tt.body, tt.status, &p)
		if p.Status != tt.status || !strings.Contains(p.Detail, tt.detail) {
			t.Errorf("%s %s: %+v, want %q", tt.method, tt.path, p, tt.detail)
		}
	}
}

func TestWhoMayUseIt(t *testing.T) {
	var records []httpserver.Record
	var mu sync.Mutex
	a := serve(t, func(o *Options) {
		o.Hosts = []string{"vms.example.com"}
		o.Audit = func(r httpserver.Record) { mu.Lock(); defer mu.Unlock(); records = append(records, r) }
	})
	for _, tt := range []struct {
		key    string
		header []string
		status int
	}{
		{testKey, nil, 200},
		{"", nil, 401},
		{testKey[1:], nil, 401},
		{"", []string{"X-API-Key", testKey}, 200},
		{testKey[1:], []string{"X-API-Key", testKey}, 401},
		{testKey, []string{"Host", "vms.example.com:8480"}, 200},
		{testKey, []string{"Host", "LOCALHOST"}, 200},
		{testKey, []string{"Host", "rebound.example.com"}, 421},
		{testKey, []string{"Host", "127.0.0.1.example.com"}, 421},
	} {
		a.key = tt.key
		a.want("GET", "/v1/vms", nil, tt.status, nil, tt.header...)
	}
	a.key = testKey
	for _, header := range [][]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Origin", "null"}} {
		a.want("POST", "/v1/vms/dev/exec", Command{Line: "touch /root/forged"}, 403, nil, header...)
	}
	var r Result
	a.want("POST", "/v1/vms/dev/exec", Command{Line: "test -e /root/forged"}, 200, &r)
	if r.ExitCode == 0 {
		t.Error("a page of another origin has run a command")
	}
	a.key = ""
	a.want("GET", "/healthz", nil, 200, nil)
	a.want("GET", "/metrics", nil, 401, nil)
	mu.Lock()
	defer mu.Unlock()
	if len(records) < 10 || records[0].Key != "test" || records[0].Path != "/v1/vms" || records[1].Status != 401 || records[1].Key != "" {
		t.Errorf("recorded %+v", records[:2])
	}
}

func TestKeysAndAddresses(t *testing.T) {
	for _, keys := range []httpserver.Keys{nil, {{Name: "short", Value: "0123"}}, {{Name: "spaces", Value: "0123456789 0123456789"}}} {
		if _, err := New(Options{Keys: keys}); err == nil {
			t.Errorf("%v was accepted", keys)
		}
	}
	for address, want := range map[string]bool{"127.0.0.1:0": true, "[::1]:80": true, "0.0.0.0:80": false, ":80": false, "example.com:80": false} {
		if err := (Options{}).CheckListen(address); (err == nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestIdempotency(t *testing.T) {
	a := serve(t, nil)
	a.want("POST", "/v1/vms/dev/exec", Command{Line: "rm -f /root/counted"}, 200, nil)
	count := Command{Line: "echo x >>/root/counted; wc -l </root/counted"}
	var texts []string
	for range 3 {
		texts = append(texts, a.want("POST", "/v1/vms/dev/exec", count, 200, nil, "Idempotency-Key", "one"))
	}
	if texts[0] != texts[1] || texts[1] != texts[2] || !strings.Contains(texts[0], `"stdout":"1\n"`) {
		t.Errorf("%q", texts)
	}
	a.want("POST", "/v1/vms/dev/exec", Command{Line: "true"}, 422, nil, "Idempotency-Key", "one")
	if text := a.want("POST", "/v1/vms/dev/exec", count, 200, nil, "Idempotency-Key", "two"); !strings.Contains(text, `"stdout":"2\n"`) {
		t.Errorf("another key: %s", text)
	}
	k := &a.server.kept
	known := func() int {
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.order)
	}
	var busy sync.WaitGroup
	before := known()
	busy.Go(func() {
		a.want("POST", "/v1/vms/dev/exec", Command{Line: "sleep 5"}, 200, nil, "Idempotency-Key", "slow")
	})
	for end := time.Now().Add(time.Minute); known() == before && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	a.want("POST", "/v1/vms/dev/exec", Command{Line: "sleep 5"}, 409, nil, "Idempotency-Key", "slow")
	busy.Wait()
	for i := range 2 * maxKept {
		entry, old := k.begin(fmt.Sprint(i), [32]byte{})
		if old || entry == nil {
			t.Fatal("there is one already")
		}
	}
	if len(k.byKey) > maxKept || len(k.order) != len(k.byKey) {
		t.Errorf("%d answers are kept, in an order of %d", len(k.byKey), len(k.order))
	}
}

// The document names each route, and each answer of one has the type that it says.
func TestOpenAPI(t *testing.T) {
	a := serve(t, nil)
	var document struct {
		OpenAPI string                               `json:"openapi"`
		Paths   map[string]map[string]map[string]any `json:"paths"`
		Servers []struct{ URL string }               `json:"servers"`
	}
	a.key = ""
	a.want("GET", "/openapi.json", nil, 200, &document)
	seen := map[any]bool{}
	for _, r := range a.server.routes {
		operation := document.Paths[r.path][strings.ToLower(r.method)]
		if operation["summary"] != r.summary || seen[operation["operationId"]] {
			t.Errorf("%s %s: %v", r.method, r.path, operation)
		}
		seen[operation["operationId"]] = true
	}
	if len(document.Servers) != 1 || document.Servers[0].URL != "/" {
		t.Errorf("servers %v", document.Servers)
	}
	if document.OpenAPI != "3.1.1" {
		t.Errorf("version %s", document.OpenAPI)
	}
}

func TestSlowClients(t *testing.T) {
	a := serve(t, nil)
	defer func(was time.Duration) { bodyTime = was }(bodyTime)
	bodyTime = 300 * time.Millisecond
	host := strings.TrimPrefix(a.url, "http://")
	c, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "POST /v1/vms/dev/exec HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\n{", testKey)
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if answer, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || answer.StatusCode != http.StatusRequestTimeout {
		t.Errorf("%v, %v", answer, err)
	}
	a.want("POST", "/v1/vms/dev/exec", Command{Line: "true"}, 200, nil)
}

// Serve ends what runs when its context does.
func TestEnds(t *testing.T) {
	a := serve(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	at := make(chan string, 1)
	ended := make(chan error, 1)
	server, err := New(a.server.options)
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- server.Serve(ctx, "127.0.0.1:0", func(url string) { at <- url }) }()
	a.url = <-at
	a.want("POST", "/v1/vms/dev/exec", Command{Line: "true"}, 200, nil)
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it serves on")
	}
}

// TestEndingWaitsForNoPoll: who waits for output, or follows events, does not keep a server that ends.
func TestEndingWaitsForNoPoll(t *testing.T) {
	a := serve(t, nil)
	var j Job
	a.want("POST", "/v1/vms/dev/jobs", NewJob{Line: "sleep 1000"}, 200, &j)
	at := "/v1/vms/dev/jobs/" + j.ID
	answers := make(chan string, 4)
	var waiting sync.WaitGroup
	for _, path := range []string{at + "/output?waitSeconds=60", "/v1/events", "/v1/vms/dev/network/events"} {
		waiting.Go(func() { answers <- path + a.want("GET", path, nil, 200, nil) })
	}
	began := time.Now()
	a.server.end()
	waiting.Wait()
	if took := time.Since(began); took > 40*time.Second { // of 60
		t.Errorf("it took %s", took)
	}
	for range 3 {
		if got := <-answers; strings.HasPrefix(got, at) && !strings.Contains(got, `"chunks":[],"next":0`) {
			t.Errorf("the answer is %s", got)
		}
	}
	a.want("POST", at+"/signal", Signal{9}, 204, nil)
	if p := problemOf(fmt.Errorf("rpc: %w", context.Canceled)); p.Status != http.StatusServiceUnavailable || strings.Contains(p.Detail, "rpc") {
		t.Errorf("a request that the server's end cuts: %+v", p)
	}
}

func FuzzCommand(f *testing.F) {
	f.Add([]byte(`{"command":"x","env":{"A":"b"},"timeoutSeconds":1e9,"maxOutput":5,"stdin":"AA==","base64":true}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		w := httptest.NewRecorder()
		var c Command
		if err := readJSON(w, httptest.NewRequest("POST", "/", bytes.NewReader(body)), &c); err != nil {
			if problemOf(err).Status/100 != 4 {
				t.Errorf("%v", err)
			}
			return
		}
		if _, err := c.command(); err != nil && problemOf(err).Status/100 != 4 {
			t.Errorf("%v", err)
		}
	})
}

func BenchmarkExec(b *testing.B) {
	a := serve(b, nil)
	v, err := kit.vms.Open(b.Context(), "dev")
	if err != nil {
		b.Fatal(err)
	}
	defer v.Close()
	command, _ := Command{Args: []string{"true"}}.command()
	var differences []time.Duration
	for b.Loop() {
		began := time.Now()
		if _, err := v.Run(b.Context(), command); err != nil {
			b.Fatal(err)
		}
		direct := time.Since(began)
		began = time.Now()
		a.want("POST", "/v1/vms/dev/exec", Command{Args: []string{"true"}}, 200, nil)
		differences = append(differences, time.Since(began)-direct)
	}
	slices.Sort(differences)
	b.ReportMetric(differences[len(differences)/2].Seconds()*1000, "ms-more")
}

// A client of a server with limits gets no VM that reaches more, whatever it was made of.
func TestMost(t *testing.T) {
	allow := func(list ...string) Policy { return Policy{Allow: list} }
	serve(t, nil) // dev has to be there, and may reach pypi.org
	server := func(allowed ...string) *api {
		most, err := allow(allowed...).egress()
		if err != nil {
			t.Fatal(err)
		}
		most.Deny = []egress.Rule{must(egress.ParseRule("*:25"))}
		return serve(t, func(o *Options) { o.Most, o.Saved = &vm.Network{Policy: most}, savedDev{noSaved{}, kit.vms} })
	}
	a := server("github.com:443", "10.0.0.5:80")
	for _, c := range []struct {
		method, path string
		body         any
	}{
		{"POST", "/v1/vms", NewVM{Name: "wide", Network: &Policy{Mode: "open"}}},
		{"POST", "/v1/vms", NewVM{Name: "wide", Network: &Policy{Mode: "public"}}},
		{"POST", "/v1/vms", NewVM{Name: "wide", Network: &Policy{Allow: []string{"10.0.0.6:80"}}}},
		{"PUT", "/v1/vms/dev/network", Policy{Mode: "open"}},
		{"PUT", "/v1/vms/dev/network", allow("10.0.0.5")},
		{"POST", "/v1/vms/dev/network/allow", Target{"10.0.0.5:22"}},
		{"POST", "/v1/vms/dev/start", nil},
		{"POST", "/v1/vms/dev/forks", Forks{Names: []string{"wide"}}},
		{"POST", "/v1/snapshots/dev/restore", Restored{"wide"}},
	} {
		if text := a.want(c.method, c.path, c.body, 403, nil); !strings.Contains(text, "would reach more") {
			t.Errorf("%s %s: %s", c.method, c.path, text)
		}
	}
	if kit.vms.Exists("wide") == nil {
		t.Error("a VM was made of what was refused")
	}
	a = server("pypi.org", "github.com")
	var c Change
	a.want("PUT", "/v1/vms/dev/network", allow("github.com:443"), 200, &c)
	if len(c.Deny) != 1 || c.Deny[0] != "*:25" {
		t.Errorf("what no client may reach is not denied: %v", c)
	}
	a.want("POST", "/v1/vms/dev/network/allow", Target{"pypi.org:443"}, 200, nil)
	serve(t, nil).want("PUT", "/v1/vms/dev/network", allow("pypi.org:443"), 200, nil)
}

// A VM that could not be made is not there, so that the corrected request makes it.
func TestCreateFails(t *testing.T) {
	a := serve(t, nil)
	for range 2 {
		a.want("POST", "/v1/vms", NewVM{Name: "wrong", Image: "127.0.0.1:1/none:1"}, 422, nil)
		a.want("GET", "/v1/vms/wrong", nil, 404, nil)
	}
	a.want("POST", "/v1/vms", NewVM{Name: "dev", Image: "127.0.0.1:1/none:1"}, 409, nil)
	a.want("GET", "/v1/vms/dev", nil, 200, nil)
}

// savedDev has a snapshot of dev, that cannot be restored.
type savedDev struct {
	noSaved
	vms *client.Store
}

func (s savedDev) Restore(_ context.Context, snapshot, _ string, permit func(vm.Network) error) error {
	c, err := s.vms.Config(snapshot)
	if err == nil {
		err = permit(c.Network)
	}
	return err
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
