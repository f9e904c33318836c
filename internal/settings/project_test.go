package settings

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"agentvm/vm"
)

const whole = `# what this project's machines are like
image = "alpine"
memory = "1G"
host-memory = "128M"
mounts = [
  ".:/src",   # this directory
  "data:ro",
]
masks = [".env", ".git/hooks"]
env = ["CI=1"]
ports = ["8080:80"]
idle-timeout = "10m"
hibernate-after = "5m"
max-lifetime = "2h"
disk-size = "20G"
ca-cert = "ca.pem"
no-new-privileges = true
cold = true
read-only-root = true
sockets = ["agent.sock:/run/agent.sock:0600"]

[[sidecar]]
command = "redis-server"

[[sidecar]]
name = "web"
command = ["httpd", "-f", ""]
env = ["PORT=80"]
user = "nobody"
restart = "on-failure"
backoff = "500ms"

[network]
mode = "allowlist"
allow = ["pypi.org:443"]
allow-sni = ["*.pythonhosted.org:443"]
deny = ["*:25"]
host-ports = [5432]
hosts = ["db.test:192.0.2.7"]
join = ["lab"]
subnet = "10.9.0.0/24"
ip = "10.9.0.7"
mac = "02:00:00:00:00:42"

[access]
listen-allow = ["3000-3999"]
listen_deny = ["3001"]
connect-allow = ["443", "80"]
connect-deny = ["25"]
loopback_exempt_ports = [8080]

[preview]
max_expires_in_seconds = 600
`

func TestParse(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, Name)
	got, err := Parse(path, []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	want := &File{
		Path: path,
		Values: map[string][]string{
			"image": {"alpine"}, "memory": {"1G"}, "host-memory": {"128M"}, "mounts": {dir + ":/src", filepath.Join(dir, "data") + ":ro"},
			"masks": {".env", ".git/hooks"}, "env": {"CI=1"}, "ports": {"8080:80"},
			"idle-timeout": {"10m"}, "hibernate-after": {"5m"}, "max-lifetime": {"2h"}, "disk-size": {"20G"},
			"ca-cert": {filepath.Join(dir, "ca.pem")}, "no-new-privileges": {"true"}, "cold": {"true"}, "read-only-root": {"true"}, "sockets": {filepath.Join(dir, "agent.sock") + ":/run/agent.sock:0600"},
			"network.mode": {"allowlist"}, "network.allow": {"pypi.org:443"}, "network.allow-sni": {"*.pythonhosted.org:443"}, "network.deny": {"*:25"}, "network.host-ports": {"5432"}, "network.hosts": {"db.test:192.0.2.7"}, "network.join": {"lab"},
			"network.subnet": {"10.9.0.0/24"}, "network.ip": {"10.9.0.7"}, "network.mac": {"02:00:00:00:00:42"},
			"access.listen-allow": {"3000-3999"}, "access.listen-deny": {"3001"}, "access.connect-allow": {"443", "80"}, "access.connect-deny": {"25"},
			"access.loopback-exempt-ports": {"8080"}, "preview.max-expires-in-seconds": {"600"},
		},
		Sidecars: []Sidecar{
			{Name: "1", Command: []string{"/bin/sh", "-c", "redis-server"}},
			{Name: "web", Command: []string{"httpd", "-f", ""}, Env: []string{"PORT=80"}, User: "nobody", Restart: "on-failure", Backoff: "500ms"},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(File{})); diff != "" {
		t.Error(diff)
	}
	if err := got.Errorf("mounts", 1, "bad"); err.Error() != path+":7:3: bad" {
		t.Error(err)
	}
	var again strings.Builder
	if err := got.Encode(&again); err != nil {
		t.Fatal(err)
	}
	if read, err := Parse(path, []byte(again.String())); err != nil || !cmp.Equal(got, read, cmpopts.IgnoreUnexported(File{})) {
		t.Errorf("written and read again: %v\n%s", err, &again)
	}
	if _, err := Parse(path, nil); err != nil {
		t.Error("an empty file:", err)
	}
}

func TestParseErrors(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"syntax", "image = \"a\"\nmemory = = 3", "f:2:10: "},
		{"unknown key", "image = \"a\"\n\n  imagee = 1", `f:3:`},
		{"unknown table", "\n[net]\nmode = \"none\"", "f:2:2: unknown key"},
		{"unknown key of network", "[network]\nallowed = []", "f:2:1: unknown key \"network.allowed\""},
		{"number for text", "memory = 512", "f:1:10: memory is a text"},
		{"empty text", `image = ""`, "f:1:9: image is a text"},
		{"text for list", "mounts = \".\"", "f:1:10: mounts is a list"},
		{"number in list", "env = [\n \"A=1\",\n 2]", "f:3:2: each of env is a text"},
		{"bad size", "memory = \"lots\"", "f:1:10: memory \"lots\""},
		{"bad disk", "disk-size = \"1T\"", "f:1:13: disk-size"},
		{"bad time", "idle-timeout = \"10\"", "f:1:16: idle-timeout"},
		{"negative time", "max-lifetime = \"-10m\"", "f:1:16: max-lifetime"},
		{"bad mode", "[network]\nmode = \"all\"", "f:2:8: network.mode \"all\""},
		{"dotted", "network.mode = \"all\"", "f:1:16: network.mode"},
		{"inline", "network = {deny = [], mode = \"all\"}", "f:1:30: network.mode"},
		{"bad port", "[network]\nhost-ports = [80, 70000]", "f:2:19: each of network.host-ports"},
		{"bad range's place", "[access]\nlisten_allow = [\n 1]", "f:3:2: each of access.listen-allow is a text"},
		{"exempt port", "[access]\nloopback-exempt-ports = [0]", "f:2:26: each of access.loopback-exempt-ports"},
		{"two spellings", "[access]\nlisten_deny = [\"1\"]\nlisten-deny = [\"2\"]", "in another spelling"},
		{"access is no table", "access = 1", "f:1:10: access is a table"},
		{"preview is no table", "preview = 1", "f:1:11: preview is a table"},
		{"a day and a second", "[preview]\nmax-expires-in-seconds = 86401", "f:2:26: preview.max-expires-in-seconds is a number from 1 to 86400"},
		{"no seconds", "[preview]\nmax-expires-in-seconds = 0", "f:2:26: preview.max-expires"},
		{"network is no table", "network = 1", "f:1:11: network is a table"},
		{"bad env", `env = ["=x"]`, "f:1:8: env"},
		{"bool", "no-new-privileges = \"yes\"", "f:1:21: no-new-privileges is true or false"},
		{"sockets", "sockets = [1]", "f:1:12: each of sockets"},
		{"sidecar is no table", "sidecar = 1", "f:1:11: sidecar is an array of tables"},
		{"sidecar is one table", "[sidecar]\ncommand = \"a\"", "f:1:2: sidecar is an array of tables"},
		{"sidecar's key", "[[sidecar]]\ncommand = \"a\"\n[[sidecar]]\ncmd = \"a\"", "f:4:1: unknown key \"sidecar.cmd\""},
		{"no command", "[[sidecar]]\ncommand = \"a\"\n\n[[sidecar]]\nname = \"b\"", "f:4:3: a sidecar has a command"},
		{"empty command", "[[sidecar]]\ncommand = []", "f:2:11: a sidecar has a command"},
		{"number in command", "[[sidecar]]\ncommand = [\"a\",\n1]", "f:3:1: each of command"},
		{"restart", "[[sidecar]]\ncommand = \"a\"\n[[sidecar]]\ncommand = \"a\"\nrestart = \"no\"", "f:5:11: restart \"no\""},
		{"backoff", "[[sidecar]]\ncommand = \"a\"\nbackoff = \"0s\"", "f:3:11: backoff"},
		{"sidecar's env", "[[sidecar]]\ncommand = \"a\"\nenv = [\"A=1\", \"B\"]", "f:3:15: env \"B\""},
		{"inline sidecar", "sidecar = [{command = \"a\"},\n {command = 1}]", "f:2:13: command is a list"},
		{"two of a name", "[[sidecar]]\ncommand = \"a\"\nname = \"x\"\n[[sidecar]]\ncommand = \"b\"\nname = \"x\"", "f:6:8: there are two sidecars"},
		{"too many", strings.Repeat("[[sidecar]]\ncommand = \"a\"\n", 17), "f:33:3: a file has at most 16"},
		{"too long", strings.Repeat("#", maxFile+1), "at most"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("f", []byte(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestMemory(t *testing.T) {
	tests := []struct {
		text string
		want uint64 // 0: refused
	}{
		{"512M", 512 << 20}, {"512", 512 << 20}, {"1g", 1 << 30}, {"2GiB", 2 << 30}, {"65536K", 64 << 20},
		{"", 0}, {"M", 0}, {"-1M", 0}, {"1.5G", 0}, {"1T", 0}, {"1MG", 0}, {"99999999999999G", 0}, {"1 G", 0},
	}
	for _, test := range tests {
		t.Run(test.text, func(t *testing.T) {
			for _, s := range All() {
				if s.Key != "memory" {
					continue
				}
				var c vm.Config
				err := s.Set(Config{Config: &c}, []string{test.text})
				if c.Memory != test.want || (err == nil) != (test.want != 0) {
					t.Errorf("%d, %v; want %d", c.Memory, err, test.want)
				}
			}
		})
	}
}

func TestFind(t *testing.T) {
	top := t.TempDir()
	deep := filepath.Join(top, "repo", "a", "b")
	if err := errors.Join(os.MkdirAll(deep, 0o755), os.Mkdir(filepath.Join(top, "repo", ".git"), 0o755)); err != nil {
		t.Fatal(err)
	}
	write := func(dir string) string {
		path := filepath.Join(dir, Name)
		if err := os.WriteFile(path, []byte(`memory = "1G"`), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write(top) // above .git: not looked at
	if _, err := Load(deep); !errors.Is(err, ErrNotFound) {
		t.Errorf("found one above .git: %v", err)
	}
	for _, dir := range []string{filepath.Join(top, "repo"), filepath.Dir(deep), deep} {
		want := write(dir)
		if f, err := Load(deep); err != nil || f.Path != want || f.Value("memory") != "1G" {
			t.Errorf("%+v, %v; want %s", f, err, want)
		}
	}
	if err := errors.Join(os.Remove(filepath.Join(deep, Name)), os.Mkdir(filepath.Join(deep, Name), 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(deep); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(whole)
	f.Add("network = {deny = ['a', \"\"\"b\"\"\"\"], mode = \"open\"}\n[[x.y]]\n'z' = \"\\\"\"")
	f.Add("\ufeffmounts=[[")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse("f", []byte(text))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("an error without its place: %v", err)
			}
			return
		}
		for i := range file.Values["mounts"] {
			_ = file.Errorf("mounts", i, "x")
		}
		var written, again strings.Builder
		if err := file.Encode(&written); err != nil {
			t.Fatal(err)
		}
		read, err := Parse("f", []byte(written.String()))
		if err == nil {
			err = read.Encode(&again)
		}
		if err != nil || again.String() != written.String() {
			t.Errorf("%q is written as\n%s\nand read and written again as\n%s\n%v", text, &written, &again, err)
		}
	})
}
