package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"agentvm/internal/daemon"
	"agentvm/vm"
)

func TestFetchRequest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(file, []byte("of a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name                string
		path                string
		flags               fetchFlags
		hasData             bool
		stdin               string
		method, url, body   string
		length              int64
		header, value, want string // want: an error
	}{
		{name: "plain", path: "/a?b=c", method: "GET", url: "http://localhost:80/a?b=c", header: "Accept", value: "*/*"},
		{name: "data", path: "/", flags: fetchFlags{data: "x"}, hasData: true, method: "POST", url: "http://localhost:80/", body: "x", length: 1, header: "Content-Type", value: "application/x-www-form-urlencoded"},
		{name: "no data", path: "/", hasData: true, method: "POST", url: "http://localhost:80/"},
		{name: "file", path: "/", flags: fetchFlags{data: "@" + file, method: "PUT"}, hasData: true, method: "PUT", url: "http://localhost:80/", body: "of a file", length: 9},
		{name: "standard input", path: "/", flags: fetchFlags{data: "@-"}, hasData: true, stdin: "typed", method: "POST", url: "http://localhost:80/", body: "typed", length: 5},
		{name: "much of it", path: "/", flags: fetchFlags{data: "@-"}, hasData: true, stdin: strings.Repeat("x", knownBody+1), method: "POST", url: "http://localhost:80/", body: strings.Repeat("x", knownBody+1), length: -1},
		{name: "header", path: "/", flags: fetchFlags{headers: []string{"content-type: text/plain", "Host: a.localhost"}, data: "x"}, hasData: true, method: "POST", url: "http://localhost:80/", body: "x", length: 1, header: "Content-Type", value: "text/plain"},
		{name: "user in the path", path: "//user@example.org/", method: "GET", url: "http://localhost:80//user@example.org/"},
		{name: "no slash", path: "@example.org/", want: "begins with a slash"},
		{name: "space", path: "/a b\x7f", want: "request"},
		{name: "method", path: "/", flags: fetchFlags{method: "A B"}, want: "method"},
		{name: "bad header", path: "/", flags: fetchFlags{headers: []string{"nothing"}}, want: "KEY: VALUE"},
		{name: "no such file", path: "/", flags: fetchFlags{data: "@" + file + "x"}, hasData: true, want: "--data"},
		{name: "directory", path: "/", flags: fetchFlags{data: "@" + filepath.Dir(file)}, hasData: true, want: "is a directory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdin, err := os.CreateTemp(t.TempDir(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer stdin.Close()
			if _, err := stdin.WriteString(test.stdin); err != nil {
				t.Fatal(err)
			}
			if _, err := stdin.Seek(0, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			r, closer, err := test.flags.newRequest(80, test.path, test.hasData, stdin)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want %q", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer closer.Close()
			checkRequest(t, r, test.method, test.url, test.body, test.length)
			if test.header != "" && r.Header.Get(test.header) != test.value {
				t.Errorf("%s: %q, want %q", test.header, r.Header.Get(test.header), test.value)
			}
		})
	}
}

func checkRequest(t *testing.T, r *http.Request, method, url, body string, length int64) {
	t.Helper()
	got, err := io.ReadAll(r.Body)
	if err != nil || r.Method != method || r.URL.String() != url || string(got) != body || r.ContentLength != length {
		t.Errorf("%s %s with %d bytes %.40q, %v; want %s %s with %d bytes", r.Method, r.URL, r.ContentLength, got, err, method, url, length)
	}
}

func TestTokenIn(t *testing.T) {
	for text, want := range map[string]string{
		"dev":                               "dev",
		"0a1b2c3d4e5f6":                     "0a1b2c3d4e5f6",
		"http://0token.localhost:4000/":     "0token",
		"http://0token.localhost:4000/a/b":  "0token",
		"http://0token.localhost":           "0token",
		"http://127.0.0.1:4000/p/0token/":   "0token",
		"http://127.0.0.1:4000/p/0token":    "0token",
		"http://t.localhost:4000/p/0token/": "t",
	} {
		if got := tokenIn(text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestParseForwards(t *testing.T) {
	list, err := parseForwards([]string{"80", "8080:80", "0:80", "127.0.0.2:1:2"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range list {
		got = append(got, f.String())
	}
	want := []string{"80:80/tcp", "8080:80/tcp", "0:80/tcp", "127.0.0.2:1:2/tcp"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"", "x", "80:", ":80", "1:2:3", "70000", "0"} {
		if list, err := parseForwards([]string{bad}); err == nil {
			t.Errorf("%q: %v", bad, list)
		}
	}
}

func TestAccessFlags(t *testing.T) {
	ports := func(first, last uint16) []vm.PortRange { return []vm.PortRange{{First: first, Last: last}} }
	var f vmFlags
	command := &cobra.Command{}
	f.register(command)
	args := []string{"--listen-allow", "3000-3999", "--listen-deny", "3001", "--connect-allow", "443", "--connect-deny", "25", "--loopback-exempt", "8080"}
	if err := command.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	config, err := f.config()
	if err != nil {
		t.Fatal(err)
	}
	want := vm.Access{
		Listen:  vm.PortPolicy{Allow: ports(3000, 3999), Deny: ports(3001, 3001)},
		Connect: vm.PortPolicy{Allow: ports(443, 443), Deny: ports(25, 25)}, LoopbackExemptPorts: []uint16{8080},
	}
	if diff := cmp.Diff(want, config.Access); diff != "" {
		t.Error(diff)
	}
	before := daemon.Config{Config: vm.Config{Memory: 512 << 20, Access: want}}
	got, err := startConfig(t, &before, "--listen-allow", "80")
	want.Listen.Allow = ports(80, 80)
	if diff := cmp.Diff(want, got.Access); err != nil || diff != "" {
		t.Errorf("one of them is changed: %v\n%s", err, diff)
	}
	for _, bad := range [][]string{{"--listen-allow", "0"}, {"--listen-deny", "5-4"}, {"--connect-allow", "x"}, {"--connect-deny", "70000"}, {"--loopback-exempt", "1-2"}} {
		if _, err := startConfig(t, nil, bad...); err == nil || !strings.Contains(err.Error(), bad[0]) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}
