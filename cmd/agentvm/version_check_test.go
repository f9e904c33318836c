package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestNewer(t *testing.T) {
	order := []string{"0.1.0", "0.1.1-rc.1", "0.1.1-rc.2", "0.1.1", "0.2.0", "0.10.0", "1.0.0"}
	for i, a := range order {
		for j, b := range order {
			if got := newer(a, b); got != (i > j) {
				t.Errorf("newer(%s, %s) is %v", a, b, got)
			}
		}
	}
	if !newer("0.1.0", "devel") || newer("devel", "0.1.0") {
		t.Error("what is no version comes first")
	}
}

// TestNewestRelease asks servers that have a release, and such that have none or lead elsewhere.
func TestNewestRelease(t *testing.T) {
	asked := make(chan *http.Request, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/good/SHA256SUMS":
			asked <- r
			_, _ = w.Write([]byte("00  README\n11 *agentvm_1.20.3_linux_amd64.tar.gz\n22  agentvm_1.20.3_oci.tar\n"))
		case "/other/SHA256SUMS":
			_, _ = w.Write([]byte("<html>agentvm_9.9.9</html>\n00  agentvm_x.y.z_linux\n\x1b[2J  agentvm_1.2.3\x1b]0;t_y\n"))
		case "/moved/SHA256SUMS":
			http.Redirect(w, r, "/good/SHA256SUMS", http.StatusFound)
		case "/round/SHA256SUMS":
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	for _, folder := range []string{"/good", "/good/", "/moved"} {
		if v, err := newestRelease(t.Context(), server.URL+folder); v != "1.20.3" || err != nil {
			t.Errorf("%s: %q, %v", folder, v, err)
		}
		if r := <-asked; r.Header.Get("User-Agent") != "agentvm" || r.URL.RawQuery != "" || len(r.Cookies()) > 0 {
			t.Errorf("it says of itself: %v", r.Header)
		}
	}
	for folder, want := range map[string]string{
		"": "no address of releases", "ftp://h/x": "want https://", "http://192.0.2.1/x": "want https://", "x": "want https://",
		server.URL + "/other": "names no agentvm_VERSION", server.URL + "/none": "404 Not Found", server.URL + "/round": "redirects",
		"http://127.0.0.1:1/x": "at http://127.0.0.1:1/x/SHA256SUMS: dial tcp",
	} {
		if v, err := newestRelease(t.Context(), folder); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v", folder, v, err)
		}
	}
	secure, _ := http.NewRequest(http.MethodGet, "https://h/", nil)
	plain, _ := http.NewRequest(http.MethodGet, "http://h/", nil)
	if onlySecure(plain, []*http.Request{secure}) == nil || onlySecure(secure, []*http.Request{secure}) != nil {
		t.Error("redirects from https")
	}
}
