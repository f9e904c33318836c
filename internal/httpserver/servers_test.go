package httpserver_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"agentvm/client"
	"agentvm/internal/api/e2b"
	"agentvm/internal/api/mcp"
	"agentvm/internal/api/serve"
	"agentvm/internal/api/ui"
	"agentvm/internal/httpserver"
	"agentvm/internal/httpserver/servertest"
)

const key = "the-key-of-the-owner"

// TestServersAgainstStrangers attacks the servers that can be without a VM. The others are attacked where they are tested.
func TestServersAgainstStrangers(t *testing.T) {
	store, err := client.OpenStore(client.StoreOptions{Dir: t.TempDir(), Program: "/nonexistent"})
	if err != nil {
		t.Fatal(err)
	}
	var audited atomic.Int64
	audit := func(httpserver.Record) { audited.Add(1) }
	api := serve.Options{Store: store, Keys: httpserver.Keys{{Name: "owner", Value: key}}, Version: "test", Audit: audit}
	header := func(name string) func(key, path string) (string, []string) {
		return func(key, path string) (string, []string) { return path, []string{name + key} }
	}
	bearer := header("Authorization: Bearer ")
	for name, s := range map[string]struct {
		post  string
		show  func(key, path string) (string, []string)
		serve func(ctx context.Context, at func(url string)) error
	}{
		"serve": {"POST /v1/vms", bearer, func(ctx context.Context, at func(string)) error {
			s, err := serve.New(api)
			if err != nil {
				return err
			}
			return s.Serve(ctx, "127.0.0.1:0", at)
		}},
		"ui": {"POST /vms", bearer, func(ctx context.Context, at func(string)) error {
			s, err := ui.New(ui.Options{API: api})
			if err != nil {
				return err
			}
			return s.Serve(ctx, "127.0.0.1:0", func() { at(s.Link()) })
		}},
		"e2b": {"POST /sandboxes", header("X-Api-Key: "), func(ctx context.Context, at func(string)) error {
			s, err := e2b.New(e2b.Config{Key: key, Audit: audit})
			if err != nil {
				return err
			}
			defer s.Close()
			return s.Serve(ctx, "127.0.0.1:0", at)
		}},
		"mcp": {"POST " + mcp.Path, bearer, func(ctx context.Context, at func(string)) error {
			s := mcp.New(mcp.Config{Default: "dev", Audit: audit})
			defer s.Close()
			return s.Serve(ctx, "127.0.0.1:0", key, at)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			urls, ended := make(chan string, 1), make(chan error, 1)
			go func() { ended <- s.serve(ctx, func(url string) { urls <- url }) }()
			defer func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()
			address, rest, _ := strings.Cut(strings.TrimPrefix(<-urls, "http://"), "/")
			owner := key
			if link, isLink := strings.CutPrefix(rest, "#"); isLink {
				owner = session(t, address, link)
			}
			servertest.Attack(t, servertest.Target{
				Address: address, Good: "GET /metrics", Post: s.post, Owner: owner, Show: s.show, Audited: func() int { return int(audited.Load()) },
			})
		})
	}
}

// session exchanges a link of the page for a key.
func session(t *testing.T, address, link string) string {
	t.Helper()
	r, err := http.Post("http://"+address+"/session", "application/json", strings.NewReader(`{"Link":"`+link+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var out struct{ Key string }
	if err := json.NewDecoder(r.Body).Decode(&out); err != nil || out.Key == "" {
		t.Fatalf("session: %s %v", r.Status, err)
	}
	return out.Key
}
