package httpserver

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestAllowed(t *testing.T) {
	mux := http.NewServeMux()
	for _, pattern := range []string{"GET /a", "DELETE /a", "POST /b/{id}/c", "/b/{id}/{rest...}", "/"} {
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
	}
	for path, want := range map[string]string{"/a": "GET, HEAD, DELETE", "/b/x%2Fy/c": "POST", "/b/x": "", "/b/x/y": "", "/": "", "/a/": ""} {
		if got := Allowed(mux, httptest.NewRequest("PUT", path, nil), "/b/{id}/{rest...}"); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
