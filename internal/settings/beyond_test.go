package settings

import (
	"path/filepath"
	"strings"
	"testing"
)

// unchanged stands for real in tests whose paths have no links.
func unchanged(path string) string { return path }

// TestBeyond has for each setting a change that gives more and one that does not.
func TestBeyond(t *testing.T) {
	for _, tc := range []struct {
		key, narrow, wide string
		either            bool // of the two none gives less
	}{
		{"image", ``, `image = "busybox"`, true},
		{"memory", `memory = "256M"`, ``, false},
		{"memory", ``, `memory = "1G"`, false},
		{"host-memory", `host-memory = "64M"`, ``, false},
		{"mounts", ``, `mounts = [".:/src:ro"]`, false},
		{"mounts", `mounts = [".:/src:ro"]`, `mounts = [".:/src:cow"]`, false},
		{"mounts", `mounts = [".:/src:cow"]`, `mounts = [".:/src"]`, false},
		{"mounts", `mounts = ["sub:/src"]`, `mounts = [".:/src"]`, false},
		{"mounts", `mounts = ["sub/below:/x"]`, `mounts = ["sub:/src"]`, false},
		{"mounts", `mounts = ["a:/src"]`, `mounts = ["b:/src"]`, true},
		{"mounts", `mounts = [".:/src:mask=.env"]`, `mounts = [".:/src:mask=.env2"]`, true},
		{"mounts", `mounts = [".:/src:mask=sub"]`, `mounts = [".:/src:mask=sub/secret"]`, false},
		{"mounts", `mounts = [".:/src:mask=sub"]`, `mounts = [".:/src:mask=sub", "sub/x:/x:ro"]`, false},
		{"mounts", `mounts = [".:/src:protected=x"]`, `mounts = [".:/src"]`, false},
		{"mounts", `mounts = [".:/src"]`, `mounts = [".:/src:unprotected=.envrc"]`, false},
		{"mounts", `mounts = [".:/src:unprotected=.git"]`, `mounts = [".:/src:unprotected=."]`, false},
		{"mounts", "mounts = [\".:/src\"]\nmasks = [\"sub\"]", "mounts = [\".:/src\", \"sub:/x:ro\"]\nmasks = [\"sub\"]", false},
		{"masks", `masks = [".env", "sub"]`, `masks = [".env"]`, false},
		{"masks", `masks = ["sub"]`, `masks = ["sub/secret"]`, false},
		{"env", `env = ["TOKEN=1"]`, `env = ["TOKEN"]`, false},
		{"ports", `ports = ["8000-8009:9000-9009"]`, `ports = ["8000-8009:9000-9009", "22:22"]`, false},
		{"ports", `ports = ["127.0.0.1:80:80"]`, `ports = ["0.0.0.0:80:80"]`, true},
		{"ca-cert", ``, `ca-cert = "ca.pem"`, true},
		{"no-new-privileges", `no-new-privileges = true`, `no-new-privileges = false`, false},
		{"read-only-root", `read-only-root = true`, ``, false},
		{"sockets", ``, `sockets = ["/run/s"]`, false},
		{"secrets", ``, `secrets = ["A=env:A,hosts=a.org"]`, false},
		{"secrets", `secrets = ["A=env:A,hosts=a.org"]`, `secrets = ["A=env:A,hosts=b.org"]`, true},
		{"idle-timeout", `idle-timeout = "10m"`, `idle-timeout = "0s"`, false},
		{"hibernate-after", `hibernate-after = "10m"`, ``, false},
		{"max-lifetime", `max-lifetime = "1h"`, `max-lifetime = "2h"`, false},
		{"disk-size", `disk-size = "5G"`, ``, false},
		{"network.mode", `network.mode = "none"`, `network.mode = "public"`, false},
		{"network.mode", `network.mode = "none"`, ``, false},
		{"network.allow", `network.allow = ["a.org:443"]`, `network.allow = ["a.org"]`, false},
		{"network.allow", `network.allow = ["a.org"]`, ``, false},
		{"network.allow-sni", `network.allow-sni = ["a.org:443"]`, `network.allow-sni = ["a.org:443", "b.org:443"]`, false},
		{"network.allow-private", `network.allow-private = ["10.1.0.0/16"]`, `network.allow-private = ["10.0.0.0/8"]`, false},
		{"network.deny", `network.deny = ["*:25"]`, ``, false},
		{"network.host-ports", ``, `network.host-ports = [80]`, false},
		{"network.join", ``, `network.join = ["lab"]`, false},
		{"network.hosts", ``, `network.hosts = ["a.org:192.0.2.1"]`, false},
		{"network.subnet", `network.subnet = "10.9.0.0/24"`, ``, true},
		{"network.ip", ``, `network.ip = "192.168.127.9"`, true},
		{"network.max-connections", `network.max-connections = 20`, ``, false},
		{"network.max-connections", `network.max-connections = 20`, `network.max-connections = 0`, false},
		{"network.max-connections", ``, `network.max-connections = 1025`, false},
		{"access.listen-allow", `access.listen-allow = ["80"]`, ``, false},
		{"access.listen-allow", `access.listen-allow = ["80-90"]`, `access.listen-allow = ["80-91"]`, false},
		{"access.listen-deny", `access.listen-deny = ["80-90"]`, `access.listen-deny = ["80"]`, false},
		{"access.connect-allow", `access.connect-allow = ["80"]`, ``, false},
		{"access.connect-deny", `access.connect-deny = ["80"]`, ``, false},
		{"access.loopback-exempt-ports", ``, `access.loopback-exempt-ports = [80]`, false},
		{"preview.max-expires-in-seconds", `preview.max-expires-in-seconds = 60`, ``, false},
	} {
		narrow, wide := grants(t, tc.narrow), grants(t, tc.wide)
		if list := wide.Beyond(narrow); len(list) == 0 {
			t.Errorf("%s: %q gives no more than %q", tc.key, tc.wide, tc.narrow)
		}
		if list := narrow.Beyond(wide); len(list) > 0 != tc.either {
			t.Errorf("%s: from %q to %q: %q", tc.key, tc.wide, tc.narrow, list)
		}
		for _, same := range []Grants{narrow, wide} {
			if list := same.Beyond(same); len(list) > 0 {
				t.Errorf("%s: the same is more: %q", tc.key, list)
			}
		}
	}
}

func TestHarmlessChanges(t *testing.T) {
	before := grants(t, "cold = true\nenv = [\"A=1\"]\nports = [\"8000-8009:9000-9009\"]\nmounts = [\".:/src:mask=a\"]")
	now := grants(t, "env = [\"A=2\", \"B=1\"]\nports = [\"8003:9003\"]\nmounts = [\"sub:/other\", \".:/b:ro:mask=a:mask=b\"]\nnetwork.mac = \"02:00:00:00:00:09\"\n[[sidecar]]\ncommand = \"true\"")
	if list := now.Beyond(before); len(list) > 0 {
		t.Errorf("%q", list)
	}
	if strings.Contains(strings.Join(grants(t, `env = ["A=secret", "B"]`)["env"], " "), "secret") {
		t.Error("a variable's value is kept")
	}
}

// TestGrantsOfLinks sees that a mount's directory has become a link that leads out of what was mounted.
func TestGrantsOfLinks(t *testing.T) {
	file, err := Parse(filepath.Join(t.TempDir(), Name), []byte(`mounts = ["data:/data"]`))
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := func(path string) string { return strings.Replace(path, "data", "data:with/colon", 1) }
	list := file.Grants(elsewhere).Beyond(file.Grants(unchanged))
	if len(list) != 1 || !strings.Contains(list[0], "data:with") {
		t.Errorf("%q", list)
	}
}

func grants(t *testing.T, text string) Grants {
	t.Helper()
	file, err := Parse(filepath.FromSlash("/p/"+Name), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return file.Grants(unchanged)
}
