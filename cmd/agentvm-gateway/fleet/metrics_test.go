package fleet_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentvm/cmd/agentvm-gateway/fleet"
)

// TestMetrics reads what the gateway's own port says after two tenants of a file have made sandboxes, and after the file has lost a key.
func TestMetrics(t *testing.T) {
	c := newCluster(t)
	path := filepath.Join(t.TempDir(), "tenants")
	const red, blue = "red the-key-of-tenant-red\n", "blue the-key-of-tenant-blue\n"
	write := func(text string) {
		t.Helper()
		// As the files of a Secret are replaced: another file in the place.
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(red + blue + "green short\n")
	var later atomic.Int64
	file, err := fleet.OpenTenants(path, slog.New(slog.DiscardHandler), func() time.Time { return time.Now().Add(time.Duration(later.Load())) })
	if err != nil {
		t.Fatal(err)
	}
	c.tenants = file.Tenants
	c.warm(4)
	g := c.gateway("a")

	ctx, cancel := context.WithCancel(context.Background())
	at, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- g.ServeMetrics(ctx, "127.0.0.1:0", func(url string) { at <- url }) }()
	url := <-at
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	get := func(method, path string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, method, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
	want := func(when string, lines ...string) {
		t.Helper()
		var text string
		g.eventually(when, func() bool {
			_, text = get("GET", "/metrics")
			for _, line := range lines {
				if !strings.Contains(text, "\n"+line+"\n") {
					return false
				}
			}
			return true
		})
		if t.Failed() {
			t.Fatal(text)
		}
		for _, secret := range []string{"the-key-of", "short"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s: it has %q: %s", when, secret, text)
			}
		}
	}
	want("before", "agentvm_tenant_keys 2", "agentvm_tenant_problems 1", `agentvm_pods{template="base",state="warm"} 4`, "agentvm_claim_seconds_count 0")
	id, _ := g.create("red", `{"templateID":"base"}`)
	g.create("red", `{"templateID":"base"}`)
	g.create("blue", `{"templateID":"base"}`)
	if code, text := g.do("DELETE", "/sandboxes/"+id, "blue", ""); code != 404 {
		t.Errorf("another's sandbox: %d %s", code, text)
	}
	if code, text := g.do("GET", "/v2/sandboxes", "green", ""); code != 401 {
		t.Errorf("a key that is none: %d %s", code, text)
	}
	want("after three sandboxes", "agentvm_tenant_keys 2", "agentvm_tenant_problems 1", `agentvm_pods{template="base",state="claimed"} 3`, "agentvm_claim_seconds_count 3", `agentvm_requests_failed_total{status="404"} 1`, `agentvm_requests_failed_total{status="401"} 1`)
	write(red)
	later.Store(int64(time.Minute)) // the file is read again
	want("when blue's key is gone", "agentvm_tenant_keys 1", "agentvm_tenant_problems 0", `agentvm_pods{template="base",state="claimed"} 3`)
	if code, text := g.do("GET", "/v2/sandboxes", "blue", ""); code != 401 {
		t.Errorf("the key that is gone: %d %s", code, text)
	}
	if code, _ := get("POST", "/metrics"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST /metrics: %d", code)
	}
	if code, _ := get("GET", "/v2/sandboxes"); code != http.StatusNotFound {
		t.Errorf("the API at the port of the metrics: %d", code)
	}
}
