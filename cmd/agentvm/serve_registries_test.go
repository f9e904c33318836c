//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestServeRegistries has a client of agentvm serve name images of registries on this host's loopback and networks: the daemon that is to pull them
// connects to none, and the answer says what the host's owner can do. A registry that the owner has listed is asked.
func TestServeRegistries(t *testing.T) {
	if testing.Short() {
		t.Skip("starts daemons")
	}
	var connections, requests atomic.Int32
	registry := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		http.NotFound(w, r)
	}))
	registry.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	registry.Start()
	defer registry.Close()
	host := registry.Listener.Addr().String()
	_, port, _ := net.SplitHostPort(host)

	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("a-key-of-the-tests\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	store := filepath.Join(dir, "store")
	serve := func(env ...string) (create func(image string) (int, string)) {
		t.Helper()
		url, _ := startServer(t, `serving (http://\S+)`, append(os.Environ(), append([]string{"AGENTVM_STORE=" + store, "DOCKER_CONFIG=" + dir}, env...)...),
			"serve", "--listen", "127.0.0.1:0", "--key-file", key)
		return func(image string) (int, string) {
			t.Helper()
			body, err := json.Marshal(map[string]any{"name": "dev", "image": image, "memory": 128 << 20})
			if err != nil {
				t.Fatal(err)
			}
			r, err := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/vms", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer a-key-of-the-tests")
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			var problem struct{ Detail string }
			if err := json.NewDecoder(answer.Body).Decode(&problem); err != nil {
				t.Fatal(err)
			}
			return answer.StatusCode, problem.Detail
		}
	}

	create := serve()
	for _, image := range []string{host + "/app", "docker://" + host + "/app", "localhost:" + port + "/app", "x.localhost:" + port + "/app", "127.1.2.3:" + port + "/app", "[::ffff:127.0.0.1]:" + port + "/app", "10.0.0.1:5000/app", "169.254.169.254/app"} {
		if status, text := create(image); status != http.StatusUnprocessableEntity || !strings.Contains(text, "private address, which is refused") || !strings.Contains(text, "agentvm image pull") {
			t.Errorf("%s: %d %s", image, status, text)
		}
	}
	if n := connections.Load(); n > 0 {
		t.Errorf("there were %d connections to the host's loopback", n)
	}
	create = serve("AGENTVM_INSECURE_REGISTRIES=" + host)
	if status, text := create(host + "/app"); status != http.StatusUnprocessableEntity || !strings.Contains(text, "has no latest") || requests.Load() == 0 {
		t.Errorf("a registry of the owner's: %d %s, %d requests", status, text, requests.Load())
	}
	if entries, _ := os.ReadDir(filepath.Join(store, "vms", "dev")); len(entries) > 0 {
		t.Errorf("there is a VM: %v", entries)
	}
}
