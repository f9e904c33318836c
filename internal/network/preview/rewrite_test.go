package preview

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// twoRequests are of the same preview of port 3000, by name and by path, with short tokens.
func twoRequests() (byName, byPath request) {
	p := Preview{ID: "id", VM: "dev", Port: 3000, Token: "tok"}
	return request{preview: p, token: "tok", host: "tok.localhost:9"}, request{preview: p, token: "tok", host: "127.0.0.1:9", byPath: true}
}

func TestPublic(t *testing.T) {
	byName, byPath := twoRequests()
	for _, c := range []struct{ name, to, named, pathed string }{
		{"relative", "x/y?z", "=", "="},
		{"upwards", "../x", "=", "="},
		{"query", "?x", "=", "="},
		{"root", "/", "=", "/p/tok/"},
		{"path", "/a/b?c#d", "=", "/p/tok/a/b?c#d"},
		{"path of another preview", "/p/other/", "=", "/p/tok/p/other/"},
		{"like the prefix", "/p/token", "=", "/p/tok/p/token"},
		{"heeds the prefix", "/p/tok/x", "=", "="},
		{"guest's own", "http://localhost:3000/x?y=1%2F#z", "http://tok.localhost:9/x?y=1%2F#z", "http://127.0.0.1:9/p/tok/x?y=1%2F#z"},
		{"guest's own without a path", "http://localhost:3000", "http://tok.localhost:9/", "http://127.0.0.1:9/p/tok/"},
		{"guest's own, query only", "http://localhost:3000?q", "http://tok.localhost:9/?q", "http://127.0.0.1:9/p/tok/?q"},
		{"guest's own by number", "http://127.0.0.1:3000/x", "http://tok.localhost:9/x", "http://127.0.0.1:9/p/tok/x"},
		{"guest's own, version 6", "http://[::1]:3000/x", "http://tok.localhost:9/x", "http://127.0.0.1:9/p/tok/x"},
		{"guest's own in capitals", "HTTP://LocalHost:3000/X", "http://tok.localhost:9/X", "http://127.0.0.1:9/p/tok/X"},
		{"guest's own without a scheme", "//localhost:3000/x", "http://tok.localhost:9/x", "http://127.0.0.1:9/p/tok/x"},
		{"heeds X-Forwarded-Host, by name", "http://tok.localhost:9/x", "=", "="},
		{"heeds X-Forwarded-Host, by path", "http://127.0.0.1:9/x", "=", "http://127.0.0.1:9/p/tok/x"},
		{"heeds all", "http://127.0.0.1:9/p/tok/x", "=", "="},
		{"another port of the guest", "http://localhost:3001/x", "=", "="},
		{"no port", "http://localhost/x", "=", "="},
		{"TLS", "https://localhost:3000/x", "=", "="},
		{"another host", "https://example.com/x", "=", "="},
		{"another host without a scheme", "//example.com/x", "=", "="},
		{"a program's", "myapp:open", "=", "="},
		{"a script", "javascript:alert(1)", "=", "="},
		{"no URL", "http://[::1/", "=", "="},
		{"empty", "", "=", "="},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := func(s string) string { return strings.TrimSuffix(strings.Replace(s, "=", c.to, 1)+"|", "|") }
			if c.named == "=" {
				c.named = want(c.named)
			}
			if c.pathed == "=" {
				c.pathed = want(c.pathed)
			}
			if got := byName.public(c.to); got != c.named {
				t.Errorf("by name %q, want %q", got, c.named)
			}
			if got := byPath.public(c.to); got != c.pathed {
				t.Errorf("by path %q, want %q", got, c.pathed)
			}
		})
	}
}

func TestPublicOfPort80(t *testing.T) {
	byName, _ := twoRequests()
	byName.preview.Port = 80
	if got := byName.public("http://localhost/x"); got != "http://tok.localhost:9/x" {
		t.Error(got)
	}
}

func TestPublicRefresh(t *testing.T) {
	_, byPath := twoRequests()
	for value, want := range map[string]string{
		"\xb6\xe2\xfa\xf5url='": "\xb6\xe2\xfa\xf5url='", // not UTF-8: longer in lower case
		"5":                     "5",
		"5; url=/x":             "5; url=/p/tok/x",
		"0;URL='/x'":            "0;URL=/p/tok/x",
		`0; Url="/x"`:           "0; Url=/p/tok/x",
		"0; url=":               "0; url=",
		"0; url='":              "0; url='",
		"0; url=http://a/b":     "0; url=http://a/b",
	} {
		if got := byPath.publicRefresh(value); got != want {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
	}
}

func TestSetCookies(t *testing.T) {
	byName, byPath := twoRequests()
	for _, c := range []struct{ name, line, named, pathed string }{
		{"plain", "a=b", "a=b", "agentvm-id-a=b"},
		{"all attributes", "a=b; Path=/x; Domain=localhost; Max-Age=5; HttpOnly; SameSite=Strict; Secure; Partitioned",
			"a=b; Path=/x; Max-Age=5; HttpOnly; SameSite=Strict; Secure; Partitioned",
			"agentvm-id-a=b; Path=/p/tok/x; Max-Age=5; HttpOnly; SameSite=Strict; Secure; Partitioned"},
		{"for everything", "a=b; path=/;domain=.localhost", "a=b; Path=/", "agentvm-id-a=b; Path=/p/tok/"},
		{"domain in other words", "a=b ;  DOMAIN = x ; PATH = /y", "a=b; Path=/y", "agentvm-id-a=b; Path=/p/tok/y"},
		{"no path", "a=b; Path=x; Path", "a=b; Path=x; Path", "agentvm-id-a=b; Path=x; Path"},
		{"another preview's path", "a=b; Path=/p/other", "a=b; Path=/p/other", "agentvm-id-a=b; Path=/p/tok/p/other"},
		{"heeds the prefix", "a=b; Path=/p/tok/x", "a=b; Path=/p/tok/x", "agentvm-id-a=b; Path=/p/tok/x"},
		{"another preview's name", "agentvm-other-a=b", "agentvm-other-a=b", "agentvm-id-agentvm-other-a=b"},
		{"without a name", "b", "b", ""},
		{"value with signs", `a="x=y"; Path=/`, `a="x=y"; Path=/`, `agentvm-id-a="x=y"; Path=/p/tok/`},
	} {
		t.Run(c.name, func(t *testing.T) {
			for v, want := range map[*request]string{&byName: c.named, &byPath: c.pathed} {
				h := http.Header{"Set-Cookie": {c.line, "z=1"}}
				v.rewriteSetCookies(h)
				lines := h["Set-Cookie"]
				if want == "" && len(lines) == 1 {
					continue
				}
				if lines[0] != want || len(lines) != 2 {
					t.Errorf("by path %v: %q, want %q", v.byPath, lines, want)
				}
			}
		})
	}
}

// TestCookiesOfOthers has in the visitor's browser what other programs on 127.0.0.1 have set.
func TestCookiesOfOthers(t *testing.T) {
	byName, byPath := twoRequests()
	line := "jenkins=secret; agentvm-id-a=b;agentvm-id-c=\"d e\"; agentvm-other-a=x; agentvm-id-; plain"
	for v, want := range map[*request][]string{&byName: {line}, &byPath: {`a=b; c="d e"; `}} {
		h := http.Header{"Cookie": {line}}
		v.rewriteCookies(h)
		if diff := cmp.Diff(want, h["Cookie"]); diff != "" {
			t.Errorf("by path %v (-want +got):\n%s", v.byPath, diff)
		}
	}
	h := http.Header{"Cookie": {"jenkins=secret"}}
	if byPath.rewriteCookies(h); h["Cookie"] != nil {
		t.Errorf("with none of its own: %q", h["Cookie"])
	}
}

// TestRedirectsAndCookies goes through a login by both forms, with a client that keeps cookies by RFC 6265.
func TestRedirectsAndCookies(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/login", func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "1", Path: "/home", Domain: "localhost", HttpOnly: true})
		w.Header().Set("Location", "http://"+r.Host+"/home?x")
		w.Header().Set("Service-Worker-Allowed", "/")
		w.Header().Set("Clear-Site-Data", `"cookies"`)
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/home", func(w http.ResponseWriter, r *http.Request) {
		cookie, err := r.Cookie("session")
		if err != nil || cookie.Value != "1" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
		}
	})
	w := newWorld(t, nil)
	w.vms.serve(t, "dev", 3000, mux)
	p := create(t, w.store, "dev", 3000, 0)
	for form, base := range w.forms(p) {
		t.Run(form, func(t *testing.T) {
			r := w.get(t, base+"login")
			cookies, err := http.ParseSetCookie(r.header.Get("Set-Cookie"))
			if err != nil || cookies.Domain != "" {
				t.Fatalf("cookie %q, %v", r.header.Get("Set-Cookie"), err)
			}
			if r.status != http.StatusFound || r.header.Get("Location") != base+"home?x" {
				t.Fatalf("%d to %q", r.status, r.header.Get("Location"))
			}
			if !strings.HasSuffix(base+"home", cookies.Path) {
				t.Errorf("the cookie is for %s", cookies.Path)
			}
			if form == "by path" && (r.header.Get("Service-Worker-Allowed") != "" || r.header.Get("Clear-Site-Data") != "") {
				t.Errorf("header %v", r.header)
			}
			if r := w.get(t, r.header.Get("Location"), "Cookie: other=2; "+cookies.Name+"="+cookies.Value); r.status != 200 {
				t.Errorf("home: %d", r.status)
			}
		})
	}
}
