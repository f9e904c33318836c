package httpretry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRoundTrip(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name    string
		method  string
		status  int
		after   string // Retry-After
		refused int    // how often
		stream  bool   // the body cannot be had again
		want    int
		waits   []time.Duration
	}{
		{"answered", "GET", 503, "", 0, false, 200, nil},
		{"once", "GET", 429, "", 1, false, 200, []time.Duration{10 * ms}},
		{"seconds", "GET", 429, "7", 2, false, 200, []time.Duration{7 * time.Second, 7 * time.Second}},
		{"date", "GET", 503, "Wed, 21 Oct 2015 07:28:05 GMT", 1, false, 200, []time.Duration{5 * time.Second}},
		{"past date", "GET", 503, "Wed, 21 Oct 2015 07:00:00 GMT", 1, false, 200, []time.Duration{0}},
		{"rubbish", "GET", 503, "soon", 1, false, 200, []time.Duration{10 * ms}},
		{"negative", "GET", 503, "-5", 1, false, 200, []time.Duration{10 * ms}},
		{"an hour", "GET", 429, "3600", 1, false, 429, nil},
		{"a minute, again and again", "GET", 429, "50", 9, false, 429, []time.Duration{50 * time.Second, 50 * time.Second}},
		{"always", "GET", 503, "", 9, false, 503, []time.Duration{10 * ms, 20 * ms, 40 * ms, 80 * ms}},
		{"gateway", "GET", 502, "", 1, false, 200, []time.Duration{10 * ms}},
		{"missing", "GET", 404, "1", 1, false, 404, nil},
		{"upload", "PUT", 429, "1", 1, false, 200, []time.Duration{time.Second}},
		{"upload that may have been done", "PUT", 502, "", 1, false, 502, nil},
		{"stream", "PUT", 429, "1", 1, true, 429, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			refused := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if body, err := io.ReadAll(r.Body); err != nil || string(body) != "hello" {
					t.Errorf("received %q, %v", body, err)
				}
				if refused == test.refused {
					return
				}
				refused++
				w.Header().Set("Date", "Wed, 21 Oct 2015 07:28:00 GMT")
				if test.after != "" {
					w.Header().Set("Retry-After", test.after)
				}
				w.WriteHeader(test.status)
			}))
			defer server.Close()
			var waits []time.Duration
			client := http.Client{Transport: &Transport{Base: http.DefaultTransport, Backoff: 10 * ms, Wait: func(_ context.Context, d time.Duration) error {
				waits = append(waits, d)
				return nil
			}}}
			var body io.Reader = strings.NewReader("hello")
			if test.stream {
				body = io.MultiReader(body)
			}
			r, err := http.NewRequestWithContext(t.Context(), test.method, server.URL, body)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.StatusCode != test.want {
				t.Errorf("status %d, want %d", answer.StatusCode, test.want)
			}
			if diff := cmp.Diff(test.waits, waits); diff != "" {
				t.Errorf("waits (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCancelled ends a wait with its context.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusTooManyRequests)
		cancel()
	}))
	defer server.Close()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&http.Client{Transport: &Transport{Base: http.DefaultTransport}}).Do(r); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
