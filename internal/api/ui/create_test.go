package ui

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCreateFields has one field of a new VM wrong at a time. The answer names it and says what to do; nothing is started.
func TestCreateFields(t *testing.T) {
	p := newPage(t)
	key := p.begin()
	dir := t.TempDir()
	for name, test := range map[string]struct{ body, field, says string }{
		"name":             {`{"name": "No Name"}`, "name", "up to 63"},
		"image":            {`{"name": "a", "image": "Alpine"}`, "image", "use lower-case letters"},
		"a module":         {`{"name": "a", "image": "x.wasm"}`, "image", "agentvm image import"},
		"a file":           {`{"name": "a", "image": "docker-archive:/etc/passwd"}`, "image", "agentvm image import"},
		"platform":         {`{"name": "a", "platform": "linux/amd64"}`, "platform", "write linux/riscv64 or linux/arm64"},
		"memory":           {`{"name": "a", "memory": 1024}`, "memory", "at least"},
		"network":          {`{"name": "a", "network": {"mode": "allowlist", "allow": ["a b"]}}`, "network", "a b"},
		"relative mount":   {`{"name": "a", "mounts": ["src:/src"]}`, "mounts", "whole path"},
		"no mount":         {`{"name": "a", "mounts": [":/src"]}`, "mounts", "want host"},
		"missing mount":    {`{"name": "a", "mounts": ["` + dir + `/none:/src"]}`, "mounts", "does not exist"},
		"mount of a home":  {`{"name": "a", "mounts": ["~/none:/src"]}`, "mounts", "/nonexistent/home/none"},
		"another's home":   {`{"name": "a", "mounts": ["~root:/src"]}`, "mounts", "whole path"},
		"mounts one place": {`{"name": "a", "mounts": ["` + dir + `:/src", "` + dir + `:/src"]}`, "mounts", "same place"},
		"port":             {`{"name": "a", "ports": ["8080"]}`, "ports", "port forward"},
	} {
		answer, text := p.do("POST", "/vms", test.body, "Authorization", "Bearer "+key)
		var problem struct{ Field, Detail string }
		if err := json.Unmarshal([]byte(text), &problem); err != nil || answer.StatusCode != 400 || problem.Field != test.field || !strings.Contains(problem.Detail, test.says) {
			t.Errorf("%s: %s %s", name, answer.Status, text)
		}
	}
	// The API that the page also uses, and that serve has, takes no files of the host.
	for _, field := range []string{"mounts", "ports"} {
		if answer, text := p.do("POST", "/v1/vms", `{"name": "a", "`+field+`": []}`, "Authorization", "Bearer "+key); answer.StatusCode != 400 || !strings.Contains(text, field) {
			t.Errorf("%s by the API: %s %s", field, answer.Status, text)
		}
	}
	if answer, text := p.do("POST", "/vms", `{"name": "a", "mount": []}`, "Authorization", "Bearer "+key); answer.StatusCode != 400 || !strings.Contains(text, "mount") {
		t.Errorf("an unknown field: %s %s", answer.Status, text)
	}
	if entries, _ := os.ReadDir(filepath.Join(p.store, "vms")); len(entries) > 0 {
		t.Errorf("there are %v", entries)
	}
}

// TestLog follows the log of a VM from its end on, until the VM is removed.
func TestLog(t *testing.T) {
	p := newPage(t)
	key := p.begin()
	dir := filepath.Join(p.store, "vms", "dev")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "daemon.log")
	long := strings.Repeat("0123456789\n", logBacklog/11+1000)
	for file, text := range map[string]string{filepath.Join(dir, "config.json"): "{}", path: long + "one\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if answer, text := p.do("GET", "/vms/other/log", "", "Authorization", "Bearer "+key); answer.StatusCode != 404 {
		t.Errorf("no VM: %s %s", answer.Status, text)
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", p.url+"/vms/dev/log", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	answer, err := p.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != 200 || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/plain") || answer.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Fatalf("%s %v", answer.Status, answer.Header)
	}
	lines := bufio.NewScanner(answer.Body)
	read, size := "", 0
	next := func(want string) {
		t.Helper()
		for read = ""; read != want && lines.Scan(); size += len(read) + 1 {
			read = lines.Text()
		}
		if read != want {
			t.Fatalf("there is no line %q: %v", want, lines.Err())
		}
	}
	next("one")
	if size > logBacklog+16 {
		t.Errorf("it begins %d bytes before the end", size)
	}
	log, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := log.WriteString("<b>two</b>\n"); err != nil {
		t.Fatal(err)
	}
	next("<b>two</b>")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if lines.Scan() {
		t.Errorf("after the VM: %q", lines.Text())
	}
}
