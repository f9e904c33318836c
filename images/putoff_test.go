package images

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestServerPutsOff pulls from, and pushes to, a registry with a login that refuses each kind of request at first.
func TestServerPutsOff(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "app", twoLayers(t))
	var mu sync.Mutex
	refused := map[string]bool{}
	r.setAnswer(func(w http.ResponseWriter, request *http.Request) bool {
		mu.Lock()
		key := request.Method + " " + request.URL.Path
		first := !refused[key]
		refused[key] = true
		mu.Unlock()
		switch {
		case first:
			w.Header().Set("Retry-After", "3")
			w.WriteHeader([]int{http.StatusTooManyRequests, http.StatusServiceUnavailable}[len(key)%2])
		case request.URL.Path == "/token":
			fmt.Fprint(w, `{"token":"t"}`)
		case request.Header.Get("Authorization") != "Bearer t":
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="test"`, request.Host))
			w.WriteHeader(http.StatusUnauthorized)
		default:
			return false
		}
		return true
	})
	s := openStore(t, "")
	s.alpine.fetch.wait = func(_ context.Context, d time.Duration) error {
		if d != 3*time.Second {
			t.Errorf("waits %v", d)
		}
		return nil
	}
	image, err := s.Pull(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkTwoLayers(t, s, image)
	if _, err := s.Push(t.Context(), image.Name, r.host+"/copy:1", nil); err != nil {
		t.Error(err)
	}
	for _, part := range []string{"GET /v2/", "GET /token", "GET /v2/app/manifests/", "GET /v2/app/blobs/", "POST /v2/copy/blobs/uploads/", "PATCH /", "PUT /v2/copy/manifests/"} {
		found := false
		for key := range refused {
			found = found || strings.HasPrefix(key, part)
		}
		if !found {
			t.Errorf("%s... was not asked for", part)
		}
	}
}
