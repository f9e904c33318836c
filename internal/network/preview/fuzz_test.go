package preview

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzToken checks that text is either refused, or is one that Sign has written: there is one text for each token.
func FuzzToken(f *testing.F) {
	k := openKey(f, filepath.Join(f.TempDir(), "key"), nil)
	good := sign(f, k, someToken())
	for _, seed := range []string{good, good[:62], strings.ToUpper(good), good + "=", strings.Repeat("0", 63), strings.Repeat("v", 63), "", "\n", "favicon.ico"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if parsed, body, tag, err := parseToken(text); err == nil {
			if diff := cmp.Diff(body, parsed.body()); diff != "" {
				t.Errorf("what was parsed is not what was signed:\n%s", diff)
			}
			if labelEncoding.EncodeToString(append(body[:bodyBytes:bodyBytes], tag...)) != text {
				t.Error("it has another text")
			}
		} else if !errors.Is(err, ErrForged) {
			t.Errorf("error %v", err)
		}
		token, err := k.Verify(text)
		if text != good && err == nil && sign(t, k, token) != text {
			t.Error("a token that was not signed")
		}
	})
}

// FuzzKeys checks that what is accepted as a key file has keys.
func FuzzKeys(f *testing.F) {
	key := strings.Repeat("0a", keyBytes)
	f.Add([]byte(keyHeader + "\n" + key + "\n"))
	f.Add([]byte(keyHeader + "\n" + key + "\n" + key + " 1800000000\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := parseKeys(text)
		if err == nil && (len(keys) == 0 || len(keys) > maxKeys || keys[0].until != 0) {
			t.Errorf("%d keys", len(keys))
		}
	})
}

// FuzzVisit has any Host, target and Origin. What is accepted is by a name that only loopback has, and has a token of the right place.
func FuzzVisit(f *testing.F) {
	token := strings.Repeat("0", 63)
	for _, seed := range [][3]string{
		{token + ".localhost:80", "/x", ""}, {"127.0.0.1:8080", "/p/" + token + "/x?y", "http://127.0.0.1:8080"}, {"evil.example:80", "/", "null"},
		{"[::1]:80", "//p/x", "https://a.b"}, {"localhost", "/%70/x", "x"}, {"a.b.localhost", "/p//", "http://[::1]"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	s := &Server{ports: map[uint16]bool{80: true, 8080: true}}
	f.Fuzz(func(t *testing.T, host, target, origin string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		r := &http.Request{Method: "GET", URL: u, RequestURI: target, Host: host, Header: http.Header{}}
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		v, err := s.requestOf(r)
		if err != nil {
			return
		}
		name := strings.TrimSuffix(strings.TrimSuffix(v.host, ":8080"), ":80")
		if !isLoopbackName(strings.Trim(name, "[]")) || strings.ContainsAny(v.token, "/.") && !v.byPath {
			t.Errorf("host %q, token %q", v.host, v.token)
		}
		if !v.foreign && origin != "" && !strings.EqualFold(origin, "http://"+v.host) {
			t.Errorf("origin %q is taken for %q", origin, v.host)
		}
	})
}

// FuzzResponse has any header of a guest's in what is rewritten. Nothing permits other origins more than everybody, and no cookie leaves its preview.
func FuzzResponse(f *testing.F) {
	for _, seed := range [][3]string{
		{"http://localhost:3000/x", "a=b; Path=/; Domain=localhost", "5; url=/x"}, {"/x", "a", "url='"}, {"//x", ";;=;", ""},
		{"/p/tok", "a=b; Path=/p/tokx", `0;url="`}, {"http:///x", "agentvm-id-a=b; path", "x"}, {"http://localhost:3000", "a=b;", "url=//localhost:3000"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	byName, byPath := twoRequests()
	f.Fuzz(func(t *testing.T, location, cookie, refresh string) {
		for _, v := range []*request{&byName, &byPath} {
			h := http.Header{"Location": {location}, "Set-Cookie": {cookie}, "Refresh": {refresh}, "Access-Control-Allow-Credentials": {"true"}}
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			if err := rewriteResponse(&http.Response{Header: h, Request: r.WithContext(withRequest(r.Context(), v))}); err != nil {
				t.Fatal(err)
			}
			if h.Get("Access-Control-Allow-Credentials") != "" || h.Get("Access-Control-Allow-Origin") != "*" {
				t.Errorf("header %v", h)
			}
			if v.byPath && strings.HasPrefix(location, "/") && !strings.HasPrefix(location, "//") && !strings.Contains(location, "%") &&
				!strings.HasPrefix(h.Get("Location"), "/p/tok") && isReference(location) {
				t.Errorf("%q leads to %q", location, h.Get("Location"))
			}
			for _, line := range h["Set-Cookie"] {
				checkCookie(t, v, line)
			}
		}
	})
}

func isReference(s string) bool { _, err := url.Parse(s); return err == nil }

func checkCookie(t *testing.T, v *request, line string) {
	t.Helper()
	if !strings.HasPrefix(line, v.cookiePrefix()) {
		t.Errorf("cookie %q has not the preview's prefix", line)
	}
	_, attributes, _ := strings.Cut(line, ";")
	for attribute := range strings.SplitSeq(attributes, ";") {
		name, value, _ := strings.Cut(strings.Trim(attribute, " \t"), "=")
		name, value = strings.ToLower(strings.Trim(name, " \t")), strings.Trim(value, " \t")
		if name == "domain" || name == "path" && strings.HasPrefix(value, "/") && !strings.HasPrefix(value, v.prefix()) {
			t.Errorf("cookie %q", line)
		}
	}
}
