package vm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProxySource reads the proxy's URL from where it is kept. Errors do not have it.
func TestProxySource(t *testing.T) {
	const want = "http://user:word@proxy.example:3128"
	store, file := t.TempDir(), filepath.Join(t.TempDir(), "proxy")
	if err := os.WriteFile(file, []byte(want+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TEST_PROXY", want)
	t.Setenv("TEST_PROXY_BAD", "ftp://user:word@proxy.example")
	t.Setenv("TEST_PROXY_EMPTY", "")
	for source, problem := range map[string]string{
		"file:" + file: "", "env:TEST_PROXY": "", "env:TEST_PROXY_BAD": "want http", "env:TEST_PROXY_EMPTY": "empty", "env:TEST_PROXY_NONE": "not set", "file:" + file + "-none": "no such",
	} {
		c := Config{Network: Network{Proxy: source}}
		if err := c.Network.Check(); err != nil {
			t.Errorf("%s: %v", source, err)
		}
		got, err := c.readProxy(store)
		if problem == "" {
			if err != nil || got != want {
				t.Errorf("%s: %q, %v", source, got, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), problem) || strings.Contains(err.Error(), "word") {
			t.Errorf("%s: %v; want %q", source, err, problem)
		}
	}
}
