package vm_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentvm/internal/mount"
	"agentvm/vm"
)

// mounted adds a host directory at /mnt/host.
func mounted(dir string, readOnly bool) func(*vm.Config) {
	return func(c *vm.Config) {
		c.Mounts = append(c.Mounts, mount.Spec{HostPath: dir, GuestPath: mount.DefaultGuestPath, ReadOnly: readOnly})
	}
}

func TestMounts(t *testing.T) {
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	write(t, secret, "secret")
	host := t.TempDir()
	write(t, filepath.Join(host, "file"), "from the host\n")
	for name, target := range map[string]string{"absolute": secret, "relative": "../" + filepath.Base(outside) + "/secret"} {
		if err := os.Symlink(target, filepath.Join(host, name)); err != nil {
			t.Fatal(err)
		}
	}
	fixed := t.TempDir()
	write(t, filepath.Join(fixed, "file"), "fixed\n")
	v := ownVM(t, func(c *vm.Config) {
		mounted(host, false)(c)
		c.Mounts = append(c.Mounts, mount.Spec{HostPath: fixed, GuestPath: "/srv/fixed", ReadOnly: true})
	})
	wantOutput(t, v, "cat /mnt/host/file /srv/fixed/file", "from the host\nfixed\n")
	wantOutput(t, v, "mkdir /mnt/host/d && echo from the guest >/mnt/host/d/new && mv /mnt/host/d/new /mnt/host/new", "")
	if text, err := os.ReadFile(filepath.Join(host, "new")); string(text) != "from the guest\n" {
		t.Errorf("the guest's file: %q, %v", text, err)
	}
	refused := []struct{ name, line, want string }{
		{"absolute link out", "cat /mnt/host/absolute", "No such file"},
		{"relative link out", "cat /mnt/host/relative", "No such file"},
		{"parent", "cat /mnt/host/../" + filepath.Base(outside) + "/secret", "No such file"},
		{"write to read-only", "echo x >/srv/fixed/file", "Read-only"},
		{"new file in read-only", "touch /srv/fixed/new", "Read-only"},
		{"removal from read-only", "rm /srv/fixed/file", "Read-only"},
		{"read-only made writable", "mount -o remount,rw /srv/fixed && echo x >/srv/fixed/file", ""},
	}
	for _, test := range refused {
		r := mustRun(t, v, vm.Command{Line: test.line})
		if r.ExitCode == 0 || !strings.Contains(string(r.Stderr), test.want) || strings.Contains(string(r.Stdout), "secret") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", test.name, r.ExitCode, r.Stdout, r.Stderr)
		}
	}
	if text, err := os.ReadFile(filepath.Join(fixed, "file")); string(text) != "fixed\n" {
		t.Errorf("the read-only file is %q now, %v", text, err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
