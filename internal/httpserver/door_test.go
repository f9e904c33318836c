package httpserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// testDoor has two clients and a public path, and refuses by the status alone.
func testDoor(change func(*Door)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/{name}", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, ClientOf(r.Context())) })
	d := Door{
		Server: "test", Handler: mux, Client: Keys{{"one", "the-key-of-one-client"}, {"two", "the-key-of-another-one"}}.KeyIn("X-Key"),
		IsHost: func(host string) bool { return IsHost(host, netip.Addr.IsLoopback) },
		Public: func(r *http.Request) bool { return r.URL.Path == "/public" },
		Refuse: func(w http.ResponseWriter, _ *http.Request, status int) { w.WriteHeader(status) },
	}
	if change != nil {
		change(&d)
	}
	return d.Open()
}

func TestDoor(t *testing.T) {
	door := testDoor(nil)
	const key = "Authorization: Bearer the-key-of-one-client"
	for _, test := range []struct {
		method, path string
		headers      string
		status       int
		body         string
	}{
		{"GET", "/x", key, 200, "one"},
		{"GET", "/x", "X-Key: the-key-of-another-one", 200, "two"},
		{"GET", "/x", "", 401, ""},
		{"GET", "/public", "", 200, ""},
		{"POST", "/x", key + "|Origin: http://localhost", 200, "one"},
		{"POST", "/x", key + "|Origin: https://localhost", 200, "one"}, // TLS of a proxy
		{"POST", "/x", key + "|Origin: https://vms.example|Sec-Fetch-Site: same-origin", 200, "one"},
		{"POST", "/x", key + "|Sec-Fetch-Site: none", 200, "one"},
		{"POST", "/x", key + "|Origin: https://vms.example", 403, ""},
		{"POST", "/x", key + "|Origin: null", 403, ""},
		{"POST", "/x", key + "|Sec-Fetch-Site: cross-site", 403, ""},
		{"GET", "/x", key + "|Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: no-cors", 403, ""},
		{"GET", "/public", "Origin: https://vms.example", 200, ""},
		{"POST", "/public", "Origin: https://vms.example", 403, ""},
		// The first that is wrong decides: who is not called for learns nothing of keys.
		{"POST", "/x", "Host: evil.example|Origin: http://evil.example", 421, ""},
		{"POST", "/x", "Origin: http://evil.example", 403, ""},
	} {
		r := httptest.NewRequest(test.method, "http://localhost"+test.path, nil)
		for line := range strings.SplitSeq(test.headers, "|") {
			name, value, _ := strings.Cut(line, ": ")
			if name == "Host" {
				r.Host = value
			} else if name != "" {
				r.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		door.ServeHTTP(w, r)
		if w.Code != test.status || w.Body.String() != test.body {
			t.Errorf("%s %s %s: %d %q, want %d %q", test.method, test.path, test.headers, w.Code, w.Body, test.status, test.body)
		}
	}
}

// TestDoorNotesAll: each answer is counted by the server's own words, and audited: refusals, and those that a handler aborts, too.
func TestDoorNotesAll(t *testing.T) {
	var metrics Metrics
	var lines bytes.Buffer
	door := testDoor(func(d *Door) {
		d.Metrics, d.Audit = &metrics, AuditTo(&lines, func(err error) { t.Error(err) })
		inner := d.Handler
		d.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/abort" {
				panic(http.ErrAbortHandler)
			}
			inner.ServeHTTP(w, r)
		})
	})
	for _, path := range []string{"/x", "/abort", "/y/z", "/x"} {
		func() {
			defer func() { _ = recover() }()
			r := httptest.NewRequest("GET", "http://localhost"+path, nil)
			r.Header.Set("X-Key", "the-key-of-another-one")
			door.ServeHTTP(httptest.NewRecorder(), r)
		}()
	}
	door.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "http://localhost/x", nil))
	var said []string
	for decoder := json.NewDecoder(&lines); ; {
		var r Record
		if err := decoder.Decode(&r); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		said = append(said, fmt.Sprint(r.Server, " ", r.Key, " ", r.Method, " ", r.Path, " ", r.Status))
	}
	if want := "test two GET /x 200,test two GET /abort 200,test two GET /y/z 404,test two GET /x 200,test  GET /x 401"; strings.Join(said, ",") != want {
		t.Errorf("audited %q, want %q", said, want)
	}
	w := httptest.NewRecorder()
	metrics.ServeHTTP(w, nil)
	for _, want := range []string{
		`agentvm_http_requests_total{method="",route="/{name}",status="200"} 2`, `agentvm_http_requests_total{method="",route="none",status="401"} 1`,
		`agentvm_http_requests_total{method="",route="none",status="404"} 1`, `agentvm_http_seconds_total{method="",route="none",status="401"} `,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%q is missing:\n%s", want, w.Body)
		}
	}
}

// TestDoorPlaces: a client whose requests hang leaves places for another, and streams take none.
func TestDoorPlaces(t *testing.T) {
	hang, reached := make(chan struct{}), make(chan struct{})
	door := testDoor(func(d *Door) {
		d.Requests = 4
		d.Streams = func(r *http.Request) bool { return r.URL.Path == "/stream" }
		d.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hang" {
				reached <- struct{}{}
				<-hang
			}
		})
	})
	ask := func(path, key string) int {
		r := httptest.NewRequest("GET", "http://localhost"+path, nil)
		r.Header.Set("X-Key", key)
		w := httptest.NewRecorder()
		door.ServeHTTP(w, r)
		return w.Code
	}
	const one, two = "the-key-of-one-client", "the-key-of-another-one"
	ended := make(chan int)
	for range 3 {
		go func() { ended <- ask("/hang", one) }()
	}
	for range 2 {
		<-reached
	}
	select { // the third may have found a place: used 2 leaves 2 free
	case <-reached:
	case code := <-ended:
		t.Errorf("a third request of four places gets %d", code)
	}
	for path, want := range map[string]int{"/x": 503, "/stream": 200} {
		if code := ask(path, one); code != want {
			t.Errorf("%s of the first client: %d, want %d", path, code, want)
		}
	}
	if code := ask("/x", two); code != 200 {
		t.Errorf("the other client gets %d", code)
	}
	close(hang)
	for range 3 {
		if code := <-ended; code != 200 {
			t.Errorf("a request that was let go: %d", code)
		}
	}
	if code := ask("/x", one); code != 200 {
		t.Errorf("afterwards: %d", code)
	}
}
