package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"agentvm/client"
	"agentvm/internal/api/pod"
	"agentvm/internal/api/pod/ticket"
)

// testPod is a process that serves a pod.
type testPod struct {
	t       *testing.T
	url     string
	uid     string
	gateway ed25519.PrivateKey
	sandbox string
}

func (p testPod) send(path, body string, headers ...string) *http.Response {
	p.t.Helper()
	method := "POST"
	if body == "" {
		method = "GET"
	}
	r, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(ticket.Header, ticket.Make(p.gateway, p.uid, time.Now()))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	r.Host = r.Header.Get("Host")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	return answer
}

func (p testPod) ask(path, body string, want int, headers ...string) string {
	p.t.Helper()
	began := time.Now()
	answer := p.send(path, body, headers...)
	b, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil || answer.StatusCode != want {
		p.t.Fatalf("%s: %s %s, %v", path, answer.Status, b, err)
	}
	p.t.Logf("%s: %v", path, time.Since(began).Round(time.Millisecond))
	return string(b)
}

// toEnvd are the headers of a request to envd of the pod's sandbox.
func (p testPod) toEnvd() []string {
	return []string{"Host", "49983-" + p.sandbox + ".sandboxes.test", "X-Access-Token", "a-token-of-the-tests"}
}

// podEvent is an event of a process.
type podEvent struct {
	Event struct {
		Start struct{ PID int }
		Data  struct{ Stdout, Stderr, PTY []byte }
		End   *struct{ ExitCode int }
	}
}

// events sends a request to envd that answers with a stream.
func (p testPod) events(method, message string) (next func() podEvent, leave func()) {
	p.t.Helper()
	envelope := string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))) + message
	answer := p.send("/process.Process/"+method, envelope, append(p.toEnvd(), "Content-Type", "application/connect+json")...)
	return func() (e podEvent) {
		p.t.Helper()
		var head [5]byte
		_, err := io.ReadFull(answer.Body, head[:])
		text := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if err == nil {
			_, err = io.ReadFull(answer.Body, text)
		}
		if err == nil {
			err = json.Unmarshal(text, &e)
		}
		if err != nil || head[0] != 0 {
			p.t.Fatalf("%s %s: %d %s, %v", method, message, head[0], text, err)
		}
		return e
	}, func() { _ = answer.Body.Close() }
}

// unary calls a method of envd's processes.
func (p testPod) unary(method, message string) string {
	p.t.Helper()
	return p.ask("/process.Process/"+method, message, 200, p.toEnvd()...)
}

// TestPod has a sandbox with a program leave one pod for an object store, and continue in another pod.
func TestPod(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("interrupts a program")
	}
	dir, env := mcpKit(t)
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, "gateway.pub")
	if err := os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	// start starts a pod with a store of its own.
	start := func(uid string) testPod {
		store := filepath.Join(dir, uid)
		if err := os.CopyFS(store, os.DirFS(filepath.Join(dir, "store"))); err != nil {
			t.Fatal(err)
		}
		url, _ := startServer(t, `at (http://\S+)`, append(append([]string(nil), env...), "POD_UID="+uid, "AGENTVM_STORE="+store),
			"pod", "--listen", "127.0.0.1:0", "--gateway-key", key, "--image", "busybox", "--memory", "128M", "--domain", "sandboxes.test")
		return testPod{t, url, uid, private, "one"}
	}
	secret, err := client.NewStateKey()
	if err != nil {
		t.Fatal(err)
	}
	state := func(name, since string) string {
		text, err := json.Marshal(pod.State{URL: "file://" + filepath.ToSlash(filepath.Join(dir, "state")), Name: name, Since: since, Key: secret})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	first, second := start("first"), start("second")
	const names = "one=a-token-of-the-tests"
	first.ask("/v2/sandboxes", `{"templateID":"base","network":{"denyOut":["198.51.100.0/24"]}}`, 201, pod.HeaderNew, names)
	first.ask("/v1/vms/one/exec", `{"command":"echo kept >/tmp/file; (while :; do date +%s >/tmp/next; mv /tmp/next /tmp/now; sleep 0.1; done) >/dev/null 2>&1 & echo $! >/tmp/pid"}`, 200)
	first.ask("/v1/vms/one/exec", `{"command":"mkdir /www; echo a page >/www/page; httpd -p 8000 -h /www"}`, 200)
	if got := first.ask("/page", "", 200, "Host", "8000-one.sandboxes.test"); got != "a page\n" {
		t.Errorf("its server: %q", got)
	}
	// Three processes for clients: one with input and a tag, a terminal, and one that ends.
	next, leave := first.events("Start", `{"process":{"cmd":"/bin/sh","args":["-c","n=0; while read a; do n=$((n+1)); echo $n $a; done; exit 5"]},"tag":"counts"}`)
	if pid := next().Event.Start.PID; pid != 1 {
		t.Errorf("the first process is %d", pid)
	}
	first.unary("SendInput", `{"process":{"pid":1},"input":{"stdin":"eAo="}}`)
	if got := next().Event.Data.Stdout; string(got) != "1 x\n" {
		t.Errorf("output %q", got)
	}
	leave()
	next, leave = first.events("Start", `{"process":{"cmd":"/bin/sh"},"pty":{"size":{"cols":70,"rows":20}}}`)
	next()
	leave()
	next, leave = first.events("Start", `{"process":{"cmd":"true"}}`)
	for next().Event.End == nil {
	}
	leave()
	first.ask("/sandboxes/one/hibernate", state("one.1", ""), 204)
	first.ask("/sandboxes/one/hibernate", state("one.1", ""), 204)
	second.ask("/restore", state("one.2", ""), 404, pod.HeaderNew, names)
	second.ask("/restore", state("one.1", ""), 201, pod.HeaderNew, names)
	if got := second.ask("/v1/vms/one/exec", `{"command":"cat /tmp/file; was=$(cat /tmp/now); i=0; until test $(cat /tmp/now) -gt $was || [ $i = 300 ]; do sleep 0.2; i=$((i+1)); done; test $(cat /tmp/now) -gt $was && kill -0 $(cat /tmp/pid) && echo it continues"}`, 200); !strings.Contains(got, "kept") || !strings.Contains(got, "it continues") {
		t.Errorf("in the second pod: %s", got)
	}
	if got := second.unary("List", "{}"); !regexp.MustCompile(`"pid":1,"tag":"counts".*"pid":2\b`).MatchString(got) || strings.Contains(got, `"pid":3`) {
		t.Errorf("processes of the second pod: %s", got)
	}
	next, leave = second.events("Connect", `{"process":{"tag":"counts"}}`)
	next()
	second.unary("SendInput", `{"process":{"pid":1},"input":{"stdin":"eQo="}}`)
	if got := next().Event.Data.Stdout; string(got) != "2 y\n" {
		t.Errorf("output in the second pod: %q", got)
	}
	leave()
	second.ask("/sandboxes/one/hibernate", state("one.2", "one.1"), 204)
	third := start("third")
	third.ask("/restore", state("one.2", ""), 201, pod.HeaderNew, names)
	if got := third.ask("/v1/vms/one/exec", `{"command":"cat /tmp/file"}`, 200); !strings.Contains(got, "kept") {
		t.Errorf("in the third pod: %s", got)
	}
	next, leave = third.events("Connect", `{"process":{"pid":1}}`)
	next()
	third.unary("SendInput", `{"process":{"pid":1},"input":{"stdin":"ego="}}`)
	if got := next().Event.Data.Stdout; string(got) != "3 z\n" {
		t.Errorf("output in the third pod: %q", got)
	}
	// A snapshot, of which another sandbox is made: both continue, and what a client has open stays.
	third.ask("/sandboxes/one/snapshot", state("sn.1", "one.2"), 204)
	third.unary("SendInput", `{"process":{"pid":1},"input":{"stdin":"dwo="}}`)
	if got := next().Event.Data.Stdout; string(got) != "4 w\n" {
		t.Errorf("output after the snapshot: %q", got)
	}
	fourth := start("fourth")
	fourth.sandbox = "two"
	creation := strings.TrimSuffix(state("sn.1", ""), "}") + `,"creation":{"templateID":"base","envVars":{"OF":"a snapshot"}}}`
	fourth.ask("/restore", creation, 201, pod.HeaderNew, "two=a-token-of-the-tests")
	const who = `{"command":"cat /sys/class/net/eth0/address /proc/sys/kernel/random/uuid /tmp/file"}`
	one, two := third.ask("/v1/vms/one/exec", who, 200), fourth.ask("/v1/vms/two/exec", who, 200)
	if mac := regexp.MustCompile(`(..:){5}..`); mac.FindString(one) == mac.FindString(two) || !strings.Contains(two, "kept") {
		t.Errorf("the sandbox and that of its snapshot: %s %s", one, two)
	}
	copied, leaveCopy := fourth.events("Connect", `{"process":{"tag":"counts"}}`)
	copied()
	fourth.unary("SendInput", `{"process":{"pid":1},"input":{"stdin":"dgo="}}`)
	if got := copied().Event.Data.Stdout; string(got) != "4 v\n" {
		t.Errorf("output of the copy: %q", got)
	}
	leaveCopy()
	copied, leaveCopy = fourth.events("Start", `{"process":{"cmd":"/bin/sh","args":["-c","echo $OF"]}}`)
	copied()
	if got := copied().Event.Data.Stdout; string(got) != "a snapshot\n" {
		t.Errorf("its variables: %q", got)
	}
	leaveCopy()
	third.unary("CloseStdin", `{"process":{"pid":1}}`)
	if end := next().Event.End; end == nil || end.ExitCode != 5 {
		t.Errorf("its end: %+v", end)
	}
	leave()
	next, leave = third.events("Connect", `{"process":{"pid":2}}`)
	next()
	third.unary("Update", `{"process":{"pid":2},"pty":{"size":{"cols":50,"rows":10}}}`)
	third.unary("SendInput", `{"process":{"pid":2},"input":{"pty":"`+base64.StdEncoding.EncodeToString([]byte("stty size; exit 6\n"))+`"}}`)
	var screen []byte
	for {
		e := next().Event
		if screen = append(screen, e.Data.PTY...); e.End != nil {
			if !bytes.Contains(screen, []byte("10 50")) || e.End.ExitCode != 6 {
				t.Errorf("terminal: %q, %+v", screen, e.End)
			}
			break
		}
	}
	leave()
	next, leave = third.events("Start", `{"process":{"cmd":"/bin/sleep","args":["1000"]}}`)
	if pid := next().Event.Start.PID; pid != 4 {
		t.Errorf("a new process is %d", pid)
	}
	leave()
	third.unary("SendSignal", `{"process":{"pid":4},"signal":"SIGNAL_SIGKILL"}`)
}
