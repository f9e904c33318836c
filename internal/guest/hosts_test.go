//go:build linux

package guest

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHostsFile(t *testing.T) {
	const local = "127.0.0.1 localhost # agentvm\n::1 localhost ip6-localhost ip6-loopback # agentvm\n"
	own := netip.MustParseAddr("10.0.2.15")
	for _, test := range []struct {
		name, old, hostname string
		own                 netip.Addr
		added               []string
		want                string
	}{
		{"empty", "", "dev", own, nil, local + "10.0.2.15 dev # agentvm\n"},
		{"no network", "", "dev", netip.Addr{}, nil, local + "127.0.1.1 dev # agentvm\n"},
		{"image's", "127.0.0.1\tlocalhost\n", "dev", own, nil, "127.0.0.1\tlocalhost\n10.0.2.15 dev # agentvm\n"},
		{"without a line end", "127.0.0.1 localhost", "dev", own, nil, "127.0.0.1 localhost\n10.0.2.15 dev # agentvm\n"},
		{"user's name for itself", "127.0.0.1 localhost dev\n", "dev", own, nil, "127.0.0.1 localhost dev\n"},
		{"in a comment", "127.0.0.1 localhost # dev\n", "dev", own, nil, "127.0.0.1 localhost # dev\n10.0.2.15 dev # agentvm\n"},
		{"of an earlier start", "127.0.0.1 localhost\n10.0.2.9 old # agentvm\n192.0.2.7 db # agentvm\n192.0.2.8 mine\n", "dev", own, []string{"192.0.2.9 db"},
			"127.0.0.1 localhost\n192.0.2.8 mine\n192.0.2.9 db # agentvm\n10.0.2.15 dev # agentvm\n"},
		{"domain", "127.0.0.1 localhost\n", "dev.example.org", own, nil, "127.0.0.1 localhost\n10.0.2.15 dev.example.org dev # agentvm\n"},
		{"no name", "127.0.0.1 localhost\n", "", own, nil, "127.0.0.1 localhost\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := hostsFile(test.old, test.hostname, test.own, test.added)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if again := hostsFile(got, test.hostname, test.own, test.added); again != got {
				t.Errorf("the second start writes\n%s", again)
			}
		})
	}
}

// TestWriteHosts completes files of several kinds, and leaves alone what it cannot read.
func TestWriteHosts(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(path string) error
		want string // in the file, or in the error
	}{
		{"missing", func(string) error { return nil }, "127.0.1.1 dev # agentvm"},
		{"file", func(path string) error { return os.WriteFile(path, []byte("192.0.2.1 kept\n"), 0o600) }, "192.0.2.1 kept\n127.0.0.1 localhost"},
		{"link to a file", func(path string) error {
			return os.Symlink("other", path)
		}, "127.0.1.1 dev # agentvm"},
		{"pipe", func(path string) error { return syscall.Mkfifo(path, 0o600) }, "left alone"},
		{"folder", func(path string) error { return os.Mkdir(path, 0o700) }, "left alone"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, "etc", "hosts")
			if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := test.make(path); err != nil {
				t.Fatal(err)
			}
			if err := writeHosts(root, "dev", netip.Addr{}, nil); err != nil {
				if !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want %s", err, test.want)
				}
				return
			}
			text, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(text), test.want) {
				t.Errorf("%q, %v; want %q", text, err, test.want)
			}
		})
	}
}
