package ui

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"agentvm/client"
	"agentvm/internal/api/serve"
)

// page is a server with an empty store, and a client of it.
type page struct {
	t      *testing.T
	server *Server
	url    string
	http   *http.Client
	store  string   // its directory
	rules  []string // that were written
}

func newPage(t *testing.T) *page {
	t.Helper()
	p := &page{t: t, store: t.TempDir()}
	store, err := client.OpenStore(client.StoreOptions{Dir: p.store, Program: "/nonexistent/agentvm"})
	if err != nil {
		t.Fatal(err)
	}
	p.server, err = New(Options{API: serve.Options{Store: store}, Home: "/nonexistent/home", WriteRule: func(rule string, allow bool) (string, error) {
		p.rules = append(p.rules, fmt.Sprint(rule, allow))
		return "written", nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	l := httptest.NewServer(p.server.Handler())
	t.Cleanup(l.Close)
	p.server.url, p.url, p.http = l.URL, l.URL, l.Client()
	return p
}

// do sends a request with header fields as name, value and returns the answer with its body read.
func (p *page) do(method, path, body string, header ...string) (*http.Response, string) {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		} else {
			r.Header.Set(header[i], header[i+1])
		}
	}
	answer, err := p.http.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return answer, string(text)
}

// begin opens a session.
func (p *page) begin() (key string) {
	p.t.Helper()
	_, link, _ := strings.Cut(p.server.Link(), "#")
	answer, text := p.do("POST", "/session", fmt.Sprintf(`{"link": %q}`, link))
	var out struct{ Key string }
	if err := json.Unmarshal([]byte(text), &out); err != nil || answer.StatusCode != 200 {
		p.t.Fatalf("%s: %s", answer.Status, text)
	}
	return out.Key
}

func TestSession(t *testing.T) {
	p := newPage(t)
	link := p.server.Link()
	if !strings.HasPrefix(link, p.url+"/#") {
		t.Fatalf("%s: the secret is not in the fragment, which no server gets", link)
	}
	_, secret, _ := strings.Cut(link, "#")
	body := fmt.Sprintf(`{"link": %q}`, secret)
	if answer, text := p.do("POST", "/session", body); answer.StatusCode != 200 || answer.Header.Get("Set-Cookie") != "" {
		t.Fatalf("%s %q: %s", answer.Status, answer.Header.Get("Set-Cookie"), text)
	}
	for name, body := range map[string]string{"a link that was used": body, "no link": `{}`, "another": `{"link": "AAAAAAAAAAAAAAAAAAAAAAAAAA"}`, "no JSON": "link", "too long": `{"link": "` + strings.Repeat("A", 2000) + `"}`} {
		if answer, text := p.do("POST", "/session", body); answer.StatusCode < 400 {
			t.Errorf("%s: %s: %s", name, answer.Status, text)
		}
	}
	first := p.server.Link()
	for range maxLinks {
		p.server.Link()
	}
	_, secret, _ = strings.Cut(first, "#")
	if answer, _ := p.do("POST", "/session", fmt.Sprintf(`{"link": %q}`, secret)); answer.StatusCode != 403 {
		t.Errorf("the oldest of too many links: %s", answer.Status)
	}
}

// TestStrangers has other pages, other names and clients without a session try what the page does.
func TestStrangers(t *testing.T) {
	p := newPage(t)
	key := p.begin()
	port := p.url[strings.LastIndex(p.url, ":"):]
	known := []string{"Authorization", "Bearer " + key}
	for name, test := range map[string]struct {
		header []string
		want   int
	}{
		"the page":                        {append([]string{"Origin", p.url, "Sec-Fetch-Site", "same-origin"}, known...), 200},
		"a program with the key":          {known, 200},
		"by the name localhost":           {append([]string{"Host", "localhost" + port}, known...), 200},
		"a port that ssh forwards":        {append([]string{"Host", "127.0.0.1:9999", "Origin", "http://127.0.0.1:9999"}, known...), 200},
		"no key":                          {nil, 401},
		"a wrong key":                     {[]string{"Authorization", "Bearer AAAAAAAAAAAAAAAAAAAAAAAAAA"}, 401},
		"a key as cookie":                 {[]string{"Cookie", "key=" + key}, 401},
		"another origin":                  {append([]string{"Origin", "https://evil.example"}, known...), 403},
		"a server at another port":        {append([]string{"Origin", "http://127.0.0.1:1", "Sec-Fetch-Site", "same-site"}, known...), 403},
		"an origin that is hidden":        {append([]string{"Origin", "null"}, known...), 403},
		"another site without an origin":  {append([]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, known...), 403},
		"a link of another site":          {append([]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, known...), 403},
		"an origin that is none":          {append([]string{"Origin", "127.0.0.1"}, known...), 403},
		"another name (DNS rebinding)":    {append([]string{"Host", "evil.example" + port}, known...), 421},
		"another address":                 {append([]string{"Host", "192.0.2.1" + port}, known...), 421},
		"a port that is a policy":         {append([]string{"Host", "127.0.0.1:80;script-src:*"}, known...), 421},
		"a WebSocket of another origin":   {[]string{"Origin", "https://evil.example", "Sec-WebSocket-Protocol", "agentvm.terminal, " + keyProtocol + key}, 403},
		"a WebSocket with a wrong key":    {[]string{"Origin", p.url, "Sec-WebSocket-Protocol", "agentvm.terminal, " + keyProtocol + "AAAAAAAAAAAAAAAAAAAAAAAAAA"}, 401},
		"the key in the WebSocket's list": {[]string{"Origin", p.url, "Sec-WebSocket-Protocol", "agentvm.terminal, " + keyProtocol + key}, 200},
	} {
		answer, text := p.do("GET", "/v1/vms", "", test.header...)
		if answer.StatusCode != test.want {
			t.Errorf("%s: %s, want %d: %s", name, answer.Status, test.want, text)
		}
		if answer.Header.Get("X-Content-Type-Options") != "nosniff" || answer.Header.Get("X-Frame-Options") != "DENY" || answer.Header.Get("Access-Control-Allow-Origin") != "" ||
			!strings.Contains(answer.Header.Get("Content-Security-Policy"), "default-src 'none'") || answer.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s: header %v", name, answer.Header)
		}
	}
	for path, method := range map[string]string{"/session": "POST", "/project": "POST", "/assets/main.js": "GET", "/v1/vms/dev": "DELETE", "/vms": "POST", "/vms/dev/log": "GET"} {
		if answer, _ := p.do(method, path, `{"rule": "evil.example"}`, append([]string{"Origin", "https://evil.example"}, known...)...); answer.StatusCode != 403 {
			t.Errorf("%s %s of another origin: %s", method, path, answer.Status)
		}
	}
	for path, method := range map[string]string{"/vms": "POST", "/vms/dev/log": "GET"} {
		if answer, _ := p.do(method, path, `{"name": "dev"}`); answer.StatusCode != 401 {
			t.Errorf("%s %s without a key: %s", method, path, answer.Status)
		}
	}
	if answer, _ := p.do("POST", "/project", `{"rule": "evil.example"}`); answer.StatusCode != 401 || len(p.rules) > 0 {
		t.Errorf("a rule without a key: %s, %q", answer.Status, p.rules)
	}
	if answer, _ := p.do("POST", "/project", `{"rule": "a.org", "allow": true}`, known...); answer.StatusCode != 200 || len(p.rules) != 1 || p.rules[0] != "a.orgtrue" {
		t.Errorf("a rule: %s, %q", answer.Status, p.rules)
	}
	if answer, _ := p.do("GET", "/v1/vms", "", "Authorization", "Bearer "+p.server.apiKey); answer.StatusCode != 401 {
		t.Errorf("the API's own key: %s", answer.Status)
	}
}

func TestPage(t *testing.T) {
	p := newPage(t)
	first, text := p.do("GET", "/", "")
	second, _ := p.do("GET", "/", "")
	policies := []string{first.Header.Get("Content-Security-Policy"), second.Header.Get("Content-Security-Policy")}
	nonce := regexp.MustCompile(`'nonce-([A-Z2-7]{26})'`).FindStringSubmatch(policies[0])
	if nonce == nil || policies[0] == policies[1] || !strings.Contains(text, `content="`+nonce[1]+`"`) {
		t.Errorf("policies %q, page %s", policies, text)
	}
	for _, want := range []string{"default-src 'none'", "script-src 'self';", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"} {
		if !strings.Contains(policies[0], want) {
			t.Errorf("%q has no %s", policies[0], want)
		}
	}
	if regexp.MustCompile(`(?i)<script[^>]*>[^<]|<style|\son\w+=|style=`).MatchString(text) {
		t.Error("the page has a script, a style or a handler in itself, which its policy forbids")
	}
	for _, match := range regexp.MustCompile(`/assets/[\w.-]+`).FindAllString(text, -1) {
		answer, body := p.do("GET", match, "")
		if answer.StatusCode != 200 || body == "" {
			t.Errorf("%s: %s", match, answer.Status)
		}
		if again, body := p.do("GET", match, "", "If-None-Match", answer.Header.Get("ETag")); again.StatusCode != 304 || body != "" {
			t.Errorf("%s again: %s", match, again.Status)
		}
	}
	for _, path := range []string{"/assets/index.html", "/assets/provenance.json", "/assets/..%2fui.go", "/assets/", "/x", "/openapi.json"} {
		if answer, _ := p.do("GET", path, ""); answer.StatusCode != 404 {
			t.Errorf("%s: %s", path, answer.Status)
		}
	}
}

// TestAssets keeps the page small, without functions that make HTML or code of texts, and others' files as they came.
func TestAssets(t *testing.T) {
	total := 0
	makes := regexp.MustCompile(`\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function)\b|setTimeout\(["'\x60]`)
	err := fs.WalkDir(files, "assets", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		body, err := files.ReadFile(path)
		total += len(body)
		if !strings.Contains(path, "xterm") {
			if found := makes.Find(body); found != nil {
				t.Errorf("%s uses %s", path, found)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if total > 300_000 {
		t.Errorf("the page's files have %d bytes", total)
	}
	text, err := os.ReadFile("assets/provenance.json")
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]string{}
	if err := json.Unmarshal(text, &sums); err != nil {
		t.Fatal(err)
	}
	served, err := readAssets()
	if err != nil {
		t.Fatal(err)
	}
	licence, err := os.ReadFile("assets/xterm.LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	served["xterm.LICENSE"] = asset{body: licence}
	for _, name := range []string{"xterm.js", "xterm-fit.js", "xterm.css", "xterm.LICENSE"} {
		body := served[name].body
		if got := sha256.Sum256(body); "sha256:"+hex.EncodeToString(got[:]) != sums[name] {
			t.Errorf("%s is not what assets.sh has made: sha256 %x, want %s", name, got, sums[name])
		}
	}
}
