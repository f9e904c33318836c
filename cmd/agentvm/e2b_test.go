package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"agentvm/internal/daemon"
)

// TestE2B makes a sandbox of agentvm e2b and a fork of it, and interrupts the server: nothing is left. make e2b-sdk has E2B's own SDK do more.
func TestE2B(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("interrupts a program")
	}
	dir, env := mcpKit(t)
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("a-key-of-the-tests\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range [][]string{{"--listen", "0.0.0.0:3000"}, {"--max-sandboxes", "0"}, {"--key-file", os.DevNull}} {
		command := exec.Command("agentvm", append([]string{"e2b"}, wrong...)...)
		command.Env = env
		if out, err := command.CombinedOutput(); err == nil {
			t.Errorf("%v is taken: %s", wrong, out)
		}
	}
	url, end := startServer(t, `E2B_API_URL=(\S+)`, env, "e2b", "--listen", "127.0.0.1:0", "--key-file", key, "--image", "busybox", "--memory", "128M")
	defer end()
	call := func(path, body string, want int) string {
		t.Helper()
		r, err := http.NewRequest("POST", url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-API-Key", "a-key-of-the-tests")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != want {
			t.Fatalf("%s: %s %s, %v", path, answer.Status, b, err)
		}
		return string(b)
	}
	var made struct{ SandboxID string }
	if err := json.Unmarshal([]byte(call("/v2/sandboxes", `{"templateID":"base"}`, 201)), &made); err != nil {
		t.Fatal(err)
	}
	if got := call("/sandboxes/"+made.SandboxID+"/fork", `{"timeout":600}`, 201); !strings.Contains(got, `"sandbox":`) {
		t.Error(got)
	}
	call("/sandboxes/"+made.SandboxID+"/snapshots", `{"name":"../other"}`, 400)
	call("/sandboxes/"+made.SandboxID+"/snapshots", `{"name":"kept"}`, 201)
	call("/sandboxes/"+made.SandboxID+"/snapshots", `{"name":"kept"}`, 409)
	var copied struct{ SandboxID, TemplateID string }
	if err := json.Unmarshal([]byte(call("/v2/sandboxes", `{"templateID":"kept"}`, 201)), &copied); err != nil || copied.TemplateID != "kept" {
		t.Error(copied, err)
	}
	call("/v2/sandboxes", `{"templateID":"e2b-kept"}`, 404)
	vms := daemon.Store{Dir: filepath.Join(dir, "store", "vms")}
	if list, err := vms.List(t.Context()); err != nil || len(list) != 3 {
		t.Error(list, err)
	}
	end()
	if list, err := vms.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%v are left, %v", list, err)
	}
}
