//go:build linux

package guest

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestResolverFile(t *testing.T) {
	const head = "# written by agentvm when the VM's network starts\n"
	long := strings.Repeat("a", 100) + ".example"
	for _, tt := range []struct {
		name    string
		servers string
		search  []string
		want    string
	}{
		{"server", "192.168.127.1", nil, "nameserver 192.168.127.1\n"},
		{"four servers", "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4", nil, "nameserver 10.0.0.1\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n"},
		{"domains", "10.0.0.1", []string{"a.example", "b.example.", "a.example"}, "search a.example b.example\nnameserver 10.0.0.1\n"},
		{
			"what would be another line, a comment or nothing", "10.0.0.1",
			[]string{"a\nnameserver 6.6.6.6", "b c", "#d", ";e", "", ".", "\x7f", "f"}, "search f\nnameserver 10.0.0.1\n",
		},
		{"too many domains", "10.0.0.1", []string{"a", "b", "c", "d", "e", "f", "g"}, "search a b c d e f\nnameserver 10.0.0.1\n"},
		{"too long domains", "10.0.0.1", []string{long, "b" + long, "c" + long}, "search " + long + " b" + long + "\nnameserver 10.0.0.1\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var servers []netip.Addr
			for s := range strings.FieldsSeq(tt.servers) {
				servers = append(servers, netip.MustParseAddr(s))
			}
			if diff := cmp.Diff(head+tt.want, resolverFile(servers, tt.search)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestWriteResolver: whatever the image has in its place, in the end there is a regular file that all can read.
func TestWriteResolver(t *testing.T) {
	servers := []netip.Addr{netip.MustParseAddr("192.168.127.1")}
	for _, tt := range []struct {
		name    string
		prepare func(root string) error
	}{
		{"nothing", func(string) error { return nil }},
		{"empty etc", func(root string) error { return os.Mkdir(root+"/etc", 0o755) }},
		{"file", func(root string) error {
			return os.WriteFile(root+"/etc/resolv.conf", []byte("nameserver 6.6.6.6\n"), 0o600)
		}},
		{"link to nowhere", func(root string) error { return os.Symlink("../run/nothing/resolv.conf", root+"/etc/resolv.conf") }},
		{"link to a file", func(root string) error {
			if err := os.WriteFile(root+"/other", []byte("other"), 0o600); err != nil {
				return err
			}
			return os.Symlink("../other", root+"/etc/resolv.conf")
		}},
		{"left over", func(root string) error {
			return os.WriteFile(root+"/etc/.resolv.conf.agentvm", []byte("half"), 0o600)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			defer syscall.Umask(syscall.Umask(0o077))
			root := t.TempDir()
			if !strings.HasPrefix(tt.name, "nothing") && tt.name != "empty etc" {
				if err := os.Mkdir(root+"/etc", 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := tt.prepare(root); err != nil {
				t.Fatal(err)
			}
			if err := writeResolver(root, servers, []string{"a.example"}); err != nil {
				t.Fatal(err)
			}
			st, err := os.Lstat(root + "/etc/resolv.conf")
			if err != nil || st.Mode() != 0o644 {
				t.Fatalf("got %v, %v", st, err)
			}
			b, err := os.ReadFile(root + "/etc/resolv.conf")
			if want := resolverFile(servers, []string{"a.example"}); err != nil || string(b) != want {
				t.Errorf("got %q, %v", b, err)
			}
			if names := namesIn(t, root+"/etc"); !slices.Equal(names, []string{"resolv.conf"}) {
				t.Errorf("etc has %q", names)
			}
			if b, err := os.ReadFile(root + "/other"); err == nil && string(b) != "other" {
				t.Errorf("the link was followed: %q", b)
			}
		})
	}
}

func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// TestResolverOfShare: nothing is written into a share.
func TestResolverOfShare(t *testing.T) {
	root := t.TempDir()
	etc := filepath.Join(root, "etc")
	var a, b syscall.Stat_t
	if syscall.Stat("/dev/shm", &a) != nil || syscall.Stat(root, &b) != nil || a.Dev == b.Dev {
		t.Skip("needs a second file system at /dev/shm")
	}
	share, err := os.MkdirTemp("/dev/shm", "agentvm")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(share) })
	if err := os.Symlink(share, etc); err != nil { // it leads to another file system, as a mount does
		t.Fatal(err)
	}
	err = writeResolver(root, []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil)
	if err == nil || !strings.Contains(err.Error(), `/etc is a share; it needs the line "nameserver 10.0.0.1"`) {
		t.Errorf("got %v", err)
	}
	if names := namesIn(t, share); len(names) > 0 {
		t.Errorf("the share has %q", names)
	}
}

// TestResolverWithoutServer: without a server, the image's own file stays.
func TestResolverWithoutServer(t *testing.T) {
	root := t.TempDir()
	if err := writeResolver(root, nil, []string{"a"}); err != nil || len(namesIn(t, root)) > 0 {
		t.Errorf("got %v, %q", err, namesIn(t, root))
	}
}
