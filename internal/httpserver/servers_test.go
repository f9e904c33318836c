package httpserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"agentvm/client"
	"agentvm/internal/api/e2b"
	"agentvm/internal/api/mcp"
	"agentvm/internal/api/serve"
	"agentvm/internal/api/ui"
	"agentvm/internal/httpserver"
	"agentvm/internal/httpserver/servertest"
)

const key = "the-key-of-the-owner"

// servers are agentvm's that can be without a VM: for each a way to serve, a header with a key, and a request that a key lets through.
func servers(t *testing.T) map[string]serverUnderTest {
	store, err := client.OpenStore(client.StoreOptions{Dir: t.TempDir(), Program: "/nonexistent"})
	if err != nil {
		t.Fatal(err)
	}
	api := serve.Options{Store: store, Keys: httpserver.Keys{{Name: "owner", Value: key}}, Version: "test"}
	bearer := func(key string) string { return "Authorization: Bearer " + key }
	return map[string]serverUnderTest{
		"serve": {func(ctx context.Context, at func(string)) error {
			s, err := serve.New(api)
			if err != nil {
				return err
			}
			return s.Serve(ctx, "127.0.0.1:0", at)
		}, bearer, "GET /v1/vms", "POST /v1/vms"},
		"ui": {func(ctx context.Context, at func(string)) error {
			s, err := ui.New(ui.Options{API: api})
			if err != nil {
				return err
			}
			return s.Serve(ctx, "127.0.0.1:0", func() { at(s.Link()) })
		}, bearer, "GET /v1/vms", "POST /session"},
		"e2b": {func(ctx context.Context, at func(string)) error {
			s, err := e2b.New(e2b.Config{Key: key})
			if err != nil {
				return err
			}
			defer s.Close()
			return s.Serve(ctx, "127.0.0.1:0", at)
		}, func(key string) string { return "X-Api-Key: " + key }, "GET /v2/sandboxes", "POST /sandboxes"},
		"mcp": {func(ctx context.Context, at func(string)) error {
			s := mcp.New(mcp.Config{Default: "dev"})
			defer s.Close()
			return s.Serve(ctx, "127.0.0.1:0", key, at)
		}, bearer, "DELETE " + mcp.Path, "POST " + mcp.Path},
	}
}

type serverUnderTest struct {
	serve      func(ctx context.Context, at func(url string)) error
	key        func(string) string // a header
	good, post string              // requests with a key, and with a body
}

// TestServersAgainstStrangers has, for each server, what everyone who reaches its port can do without its key. Nothing of it is served, and nothing of it keeps
// the owner out.
func TestServersAgainstStrangers(t *testing.T) {
	for name, s := range servers(t) {
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
			url := <-urls
			address, rest, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
			owner := key
			if link, isLink := strings.CutPrefix(rest, "#"); isLink {
				owner = session(t, address, link)
			}
			request := func(first, host string, headers ...string) string {
				return strings.Join(append([]string{first + " HTTP/1.1", "Host: " + host}, headers...), "\r\n") + "\r\n"
			}
			if status := answer(t, address, request(s.good, address, s.key(owner))+"\r\n"); status == 401 || status == 403 || status == 0 {
				t.Fatalf("the owner gets %d", status)
			}
			for what, c := range map[string]struct {
				text   string
				status []int
			}{
				"no key":         {request(s.good, address) + "\r\n", []int{401}},
				"a wrong key":    {request(s.good, address, s.key("another-key-of-no-user")) + "\r\n", []int{401}},
				"an empty key":   {request(s.good, address, s.key("")) + "\r\n", []int{401}},
				"foreign Origin": {request(s.post, address, s.key(owner), "Origin: http://evil.example", "Sec-Fetch-Site: cross-site", "Content-Length: 2") + "\r\n{}", []int{403}},
				"foreign Host":   {request(s.post, "evil.example", s.key(owner), "Content-Length: 2") + "\r\n{}", []int{421, 403}},
				"huge headers":   {request(s.good, address, "X-Long: "+strings.Repeat("x", 3<<20)) + "\r\n", []int{431, 0}},
			} {
				got := answer(t, address, c.text)
				if !slices.Contains(c.status, got) {
					t.Errorf("%s: %d, want %v", what, got, c.status)
				}
			}
			servertest.Crowd(t, address, 300, map[string]string{
				"idle sockets":   "",
				"half headers":   "GET / HTTP/1.1\r\nHo",
				"half bodies":    request(s.post, address, "Content-Type: application/json", "Content-Length: 100") + "\r\n{",
				"wrong keys":     request(s.good, address, s.key("another-key-of-no-user")) + "\r\n",
				"half TLS hello": "\x16\x03\x01\x02\x00",
			}, func() error {
				if status := answer(t, address, request(s.good, address, s.key(owner))+"\r\n"); status == 401 || status == 403 || status == 0 {
					return fmt.Errorf("status %d", status)
				}
				return nil
			})
		})
	}
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

// answer is the status of the answer to a request, 0 when the connection ends without one.
func answer(t *testing.T, address, request string) int {
	t.Helper()
	c := dial(t, address)
	defer c.Close()
	go fmt.Fprint(c, request) // which the server may not read to its end
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
			t.Errorf("no answer in a minute to %.80q", request)
		}
		return 0
	}
	_ = r.Body.Close()
	return r.StatusCode
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
