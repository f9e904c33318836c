package preview

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestHostAttacks has a good token under names that are not the preview's, which is what DNS rebinding leads to. Not even the store is asked.
func TestHostAttacks(t *testing.T) {
	w := newWorld(t, nil)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	p := create(t, w.store, "dev", 3000, 0)
	port := ":" + strconv.Itoa(int(w.port))
	path := "/p/" + p.Token + "/"
	for _, host := range []string{
		"evil.example" + port, p.Token + ".evil.example" + port, p.Token + ".localhost.evil.example" + port, "evil" + p.Token + "localhost" + port,
		"127.0.0.1.evil.example" + port, "a&b.localhost" + port, "127.0.0.1", "127.0.0.1:1", "localhost:99999", p.Token + ".localhost", p.Token + ".localhost:1",
		"x." + p.Token + ".localhost" + port, "localhost." + port, p.Token + ".localhost." + port, "127.1" + port, "0.0.0.0" + port, "2130706433" + port,
		"[::ffff:127.0.0.1]" + port, "192.168.0.1" + port, "127.0.0.1:0" + port[1:], "127.0.0.1:+" + port[1:], "user@127.0.0.1" + port, "127.0.0.2" + port,
	} {
		// Under a wrong name a good token and a bad one are the same.
		var replies []reply
		for _, path := range []string{path, "/p/" + strings.Repeat("0", 63) + "/", "/"} {
			replies = append(replies, w.raw(t, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n"))
		}
		for _, r := range replies {
			if r.status != http.StatusMisdirectedRequest && r.status != http.StatusBadRequest || r.body != replies[0].body {
				t.Errorf("Host %s: %d, %s", host, r.status, r.body)
			}
			if r.header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("Host %s: pages of anybody may read the answer", host)
			}
		}
	}
	for _, request := range []string{
		"GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1" + port + "\r\n\r\n",
		"GET http://127.0.0.1" + port + path + " HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1" + port + "\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1" + port + "\r\n\r\n",
		"GET " + path + " HTTP/1.1\r\n\r\n",
		"GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1" + port + "\r\nHost: evil.example\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		if r := w.raw(t, request); r.status != http.StatusBadRequest && r.status != 505 {
			t.Errorf("%q: %d, %s", request, r.status, r.body)
		}
	}
	if n := w.vms.count(); n != 0 {
		t.Errorf("the VM was reached %d times", n)
	}
}

// TestOrigin has what browsers send with requests of other pages.
func TestOrigin(t *testing.T) {
	w := newWorld(t, nil)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(echo))
	p := create(t, w.store, "dev", 3000, 0)
	base := p.URL(w.port)
	own := strings.TrimSuffix(base, "/")
	for _, c := range []struct {
		name   string
		fields []string
		status int
		cookie bool // goes to the guest
	}{
		{"typed in", nil, 200, true},
		{"own page", []string{"Origin: " + own, "Sec-Fetch-Site: same-origin"}, 200, true},
		{"link elsewhere", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"}, 200, true},
		{"image elsewhere", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"}, 200, false},
		{"another port's page", []string{"Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors"}, 200, false},
		{"fetch elsewhere", []string{"Origin: https://example.com"}, 200, false},
		{"another preview", []string{"Origin: http://" + strings.Repeat("0", 63) + ".localhost:" + strconv.Itoa(int(w.port))}, 200, false},
		{"the landing page", []string{"Origin: http://127.0.0.1:" + strconv.Itoa(int(w.port))}, 200, false},
		{"https", []string{"Origin: " + strings.Replace(own, "http:", "https:", 1)}, 200, false},
		{"opaque", []string{"Origin: null"}, 200, false},
		{"opaque elsewhere", []string{"Origin: null", "Sec-Fetch-Site: cross-site"}, 200, false},
		{"two", []string{"Origin: " + own, "Origin: https://example.com"}, 400, false},
		{"with a path", []string{"Origin: https://example.com/x"}, 400, false},
		{"nonsense", []string{"Origin: x"}, 400, false},
		{"list", []string{"Origin: " + own + " https://example.com"}, 400, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := w.get(t, base, append(c.fields, "Cookie: session=1")...)
			if r.status != c.status || strings.Contains(r.body, "Cookie: session=1") != c.cookie {
				t.Errorf("status %d, the guest received\n%s", r.status, r.body)
			}
		})
	}
}

func TestCORS(t *testing.T) {
	w := newWorld(t, nil)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		w.Header().Set("Access-Control-Allow-Credentials", "true")
		w.Header().Set("Referrer-Policy", "unsafe-url")
		w.Header().Set("Alt-Svc", `h2="evil.example:443"`)
		fmt.Fprint(w, r.Method)
	}))
	p := create(t, w.store, "dev", 3000, 0)
	for form, base := range w.forms(p) {
		t.Run(form, func(t *testing.T) {
			ask := []string{"Origin: https://example.com", "Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: authorization, X-Mine",
				"Access-Control-Request-Private-Network: true"}
			r := w.do(t, http.MethodOptions, base+"x", "", ask...)
			for name, want := range map[string]string{"Allow-Origin": "*", "Allow-Methods": "PUT", "Allow-Headers": "authorization, X-Mine", "Allow-Private-Network": "true", "Allow-Credentials": ""} {
				if got := r.header.Get("Access-Control-" + name); got != want {
					t.Errorf("preflight: %s is %q, want %q", name, got, want)
				}
			}
			if r.status != http.StatusNoContent || w.vms.count() != 0 {
				t.Errorf("preflight: status %d, %d dials", r.status, w.vms.count())
			}
			ask[1], ask[2] = "Access-Control-Request-Method: (", "Access-Control-Request-Headers: a\tb, <"
			if r := w.do(t, http.MethodOptions, base, "", ask...); r.header.Get("Access-Control-Allow-Methods") != "*" || r.header.Get("Access-Control-Allow-Headers") != "*" {
				t.Errorf("preflight for nonsense: %v", r.header)
			}
			for _, method := range []string{"GET", "OPTIONS"} {
				r = w.do(t, method, base, "", "Origin: https://example.com")
				if r.body != method || r.header.Get("Alt-Svc") != "" {
					t.Errorf("%s: %+v", method, r)
				}
				for name, want := range map[string][]string{"Access-Control-Allow-Origin": {"*"}, "Access-Control-Allow-Credentials": nil, "Referrer-Policy": {"no-referrer"}} {
					if diff := cmp.Diff(want, r.header.Values(name)); diff != "" {
						t.Errorf("%s: %s (-want +got):\n%s", method, name, diff)
					}
				}
			}
			w.vms.mu.Lock()
			w.vms.dials = 0
			w.vms.mu.Unlock()
			w.server.transport.CloseIdleConnections()
		})
	}
	if r := w.do(t, http.MethodOptions, fmt.Sprintf("http://127.0.0.1:%d/p/x/", w.port), "", "Origin: https://example.com", "Access-Control-Request-Method: PUT"); r.status != 404 || r.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("preflight without a token: %+v", r)
	}
}
