package main

import (
	"bufio"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"agentvm/client"
	"agentvm/internal/pod"
	"agentvm/internal/pod/ticket"
)

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
	// start starts a pod with a store of its own, and returns what sends it requests.
	start := func(uid string) func(path, body string, want int, headers ...string) string {
		store := filepath.Join(dir, uid)
		if err := os.CopyFS(store, os.DirFS(filepath.Join(dir, "store"))); err != nil {
			t.Fatal(err)
		}
		command := exec.Command("agentvm", "pod", "--listen", "127.0.0.1:0", "--gateway-key", key, "--image", "busybox", "--memory", "128M", "--domain", "sandboxes.test")
		command.Env = append(append([]string(nil), env...), "POD_UID="+uid, "AGENTVM_STORE="+store)
		text, err := command.StderrPipe()
		if err == nil {
			err = command.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = command.Process.Signal(os.Interrupt)
			_ = command.Wait()
		})
		lines, url := bufio.NewScanner(text), ""
		for url == "" && lines.Scan() {
			if m := regexp.MustCompile(`at (http://\S+)`).FindStringSubmatch(lines.Text()); m != nil {
				url = m[1]
			} else {
				t.Log(lines.Text())
			}
		}
		go func() { _, _ = io.Copy(io.Discard, text) }()
		return func(path, body string, want int, headers ...string) string {
			t.Helper()
			method := "POST"
			if body == "" {
				method = "GET"
			}
			r, err := http.NewRequest(method, url+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set(ticket.Header, ticket.Make(private, uid, time.Now()))
			for i := 0; i+1 < len(headers); i += 2 {
				r.Header.Set(headers[i], headers[i+1])
			}
			r.Host = r.Header.Get("Host")
			began := time.Now()
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			b, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != want {
				t.Fatalf("%s: %s %s, %v", path, answer.Status, b, err)
			}
			t.Logf("%s: %v", path, time.Since(began).Round(time.Millisecond))
			return string(b)
		}
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
	first("/v2/sandboxes", `{"templateID":"base","network":{"denyOut":["198.51.100.0/24"]}}`, 201, pod.HeaderNew, names)
	first("/v1/vms/one/exec", `{"command":"echo kept >/tmp/file; (while :; do date +%s >/tmp/next; mv /tmp/next /tmp/now; sleep 0.1; done) >/dev/null 2>&1 & echo $! >/tmp/pid"}`, 200)
	first("/v1/vms/one/exec", `{"command":"mkdir /www; echo a page >/www/page; httpd -p 8000 -h /www"}`, 200)
	if got := first("/page", "", 200, "Host", "8000-one.sandboxes.test"); got != "a page\n" {
		t.Errorf("its server: %q", got)
	}
	first("/sandboxes/one/hibernate", state("one.1", ""), 204)
	first("/sandboxes/one/hibernate", state("one.1", ""), 204)
	second("/restore", state("one.2", ""), 404, pod.HeaderNew, names)
	second("/restore", state("one.1", ""), 201, pod.HeaderNew, names)
	if got := second("/v1/vms/one/exec", `{"command":"cat /tmp/file; was=$(cat /tmp/now); sleep 1; test $(cat /tmp/now) -gt $was && kill -0 $(cat /tmp/pid) && echo it continues"}`, 200); !strings.Contains(got, "kept") || !strings.Contains(got, "it continues") {
		t.Errorf("in the second pod: %s", got)
	}
	second("/sandboxes/one/hibernate", state("one.2", "one.1"), 204)
	third := start("third")
	third("/restore", state("one.2", ""), 201, pod.HeaderNew, names)
	if got := third("/v1/vms/one/exec", `{"command":"cat /tmp/file"}`, 200); !strings.Contains(got, "kept") {
		t.Errorf("in the third pod: %s", got)
	}
}
