package main

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/internal/daemon"
	"agentvm/nat"
	"agentvm/vm"
)

func TestNearest(t *testing.T) {
	names := []string{"dev", "build", "x"}
	for name, want := range map[string]string{
		"dve": "dev", "deb": "dev", "devv": "dev", "buidl": "build", "biuld": "build", "build2": "build",
		"production": "", "y": "", "ab": "", "": "",
	} {
		if got := nearest(name, names); got != want {
			t.Errorf("nearest(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"kitten", "sitting", 3}, {"dev", "dve", 2},
	} {
		if got := distance(test.a, test.b); got != test.want {
			t.Errorf("distance(%q, %q) = %d, want %d", test.a, test.b, got, test.want)
		}
	}
}

func TestParsePlace(t *testing.T) {
	for text, want := range map[string]place{
		"dev:/etc/hosts": {"dev", "/etc/hosts"},
		"dev:a:b":        {"dev", "a:b"},
		"file":           {"", "file"},
		"-":              {"", "-"},
		"./dev:x":        {"", "./dev:x"},
		"/a/b:c":         {"", "/a/b:c"},
		`C:\file`:        {"", `C:\file`},
		`dir\dev:x`:      {"", `dir\dev:x`},
		":x":             {"", ":x"},
		"a:/x":           {"a", "/x"},
	} {
		if text == "a:/x" && runtime.GOOS == "windows" {
			want = place{"", text} // a drive
		}
		if got := parsePlace(text); got != want {
			t.Errorf("parsePlace(%q) = %+v, want %+v", text, got, want)
		}
	}
}

// startConfig returns the configuration that start makes of arguments for a VM that was started before with config, unless that is nil.
func startConfig(t *testing.T, before *daemon.Config, args ...string) (daemon.Config, error) {
	t.Helper()
	var f startFlags
	f.command = &cobra.Command{Use: "start"}
	f.register()
	if err := f.command.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if before != nil {
		writeVM(t, filepath.Join(dir, "vms"), "dev", *before)
	}
	store, err := client.OpenStore(client.StoreOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return f.config(store, "dev")
}

func TestStartConfig(t *testing.T) {
	here, err := filepath.Abs("dir")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PASSED", "on")
	forward := func(host, guest uint16) []nat.Forward {
		return []nat.Forward{{Listen: netip.AddrPortFrom(netip.Addr{}, host), GuestPort: guest}}
	}
	before := daemon.Config{
		Config: vm.Config{
			Image: "busybox", Memory: 1 << 28, Env: []string{"A=1"}, Mounts: []vm.Mount{{HostPath: "/a", GuestPath: "/b"}},
			Network: vm.Network{Policy: egress.Policy{Mode: egress.None}, HostPorts: []uint16{1}, Forwards: forward(1, 2), MTU: 1400},
		},
		MaxLifetime: daemon.Duration(time.Hour), CaptureFile: "/c",
	}
	changed := func(change func(*daemon.Config)) daemon.Config { c := before; change(&c); return c }
	switched := changed(func(c *daemon.Config) { c.ReadOnlyRoot = true })
	for _, test := range []struct {
		name   string
		before *daemon.Config
		args   []string
		want   daemon.Config
	}{
		{"new", nil, nil, daemon.Config{Config: vm.Config{Memory: 512 << 20}}},
		{"new with flags", nil, []string{"--memory", "1G", "-e", "PASSED", "-e", "X=y", "-m", "dir:/src:ro:mask=.env", "--disk-size", "2G", "--label", "k=v", "--idle-timeout", "1m"},
			daemon.Config{
				Config: vm.Config{
					Memory: 1 << 30, Env: []string{"PASSED=on", "X=y"},
					Mounts: []vm.Mount{{HostPath: here, GuestPath: "/src", ReadOnly: true, Masks: []string{".env"}}},
				},
				DiskSize: 2 << 30,
				Labels:   map[string]string{"k": "v"}, IdleTimeout: daemon.Duration(time.Minute),
			}},
		{"no disk", nil, []string{"--disk-size", "0"}, daemon.Config{Config: vm.Config{Memory: 512 << 20}, DiskSize: -1}},
		{"no network", nil, []string{"--no-network"}, daemon.Config{Config: vm.Config{Memory: 512 << 20, Network: vm.Network{Disabled: true}}}},
		{"as before", &before, nil, before},
		{"the same image", &before, []string{"--image", "busybox"}, before},
		{"one thing changed", &before, []string{"--memory", "1G"}, changed(func(c *daemon.Config) { c.Memory = 1 << 30 })},
		{"memory on the host", &before, []string{"--host-memory", "64M"}, changed(func(c *daemon.Config) { c.HostMemory = 64 << 20 })},
		{"no network, and no capture of one", &before, []string{"--no-network"}, changed(func(c *daemon.Config) {
			c.Network, c.CaptureFile = vm.Network{Disabled: true}, ""
		})},
		{"switches", &before, []string{"--read-only-root", "--no-new-privileges"}, changed(func(c *daemon.Config) { c.NoNewPrivileges, c.ReadOnlyRoot = true, true })},
		{"a switch taken back", &switched, []string{"--read-only-root=false"}, before},
		{"limit taken back", &before, []string{"--max-lifetime", "0"}, changed(func(c *daemon.Config) { c.MaxLifetime = 0 })},
		{"another policy", &before, []string{"--net", "open"}, changed(func(c *daemon.Config) {
			c.Network.Policy, c.Network.HostPorts = egress.Policy{Mode: egress.Open}, nil
		})},
		{"another port", &before, []string{"-p", "3:4"}, changed(func(c *daemon.Config) { c.Network.Forwards = forward(3, 4) })},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := startConfig(t, test.before, test.args...)
			if err != nil {
				t.Fatal(err)
			}
			got.StoreDir = ""
			if diff := cmp.Diff(asJSON(t, test.want), asJSON(t, got)); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStartKeepsTheImage(t *testing.T) {
	if _, err := startConfig(t, &daemon.Config{Config: vm.Config{Image: "busybox"}}, "--image", "alpine"); err == nil {
		t.Error("the image of a VM that has a disk was changed")
	}
	if _, err := startConfig(t, &daemon.Config{Config: vm.Config{Image: "busybox"}, DiskSize: -1}, "--image", "alpine"); err != nil {
		t.Error(err)
	}
}

// asJSON is a configuration as it is kept.
func asJSON(t *testing.T, config daemon.Config) string {
	t.Helper()
	text, err := json.MarshalIndent(config, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// writeVM makes a VM as an earlier start would have left it.
func writeVM(t *testing.T, store, name string, config daemon.Config) {
	t.Helper()
	text := asJSON(t, config)
	dir := filepath.Join(store, name)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestOnlyFresh: no flag that a VM with a name cannot follow is passed over in silence, above all none that restricts it.
func TestOnlyFresh(t *testing.T) {
	var f vmFlags
	command := &cobra.Command{Use: "exec"}
	f.register(command)
	harmless := []string{"env", "no-project", "trust-project", "quiet", "mask", "unprotected"} // the last two are errors without --mount
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		flag.Changed = true
		if refused := onlyFresh(command, "dev") != nil; refused == slices.Contains(harmless, flag.Name) {
			t.Errorf("exec -n dev --%s is refused: %v", flag.Name, refused)
		}
		flag.Changed = false
	})
}

// A VM whose name would be a drive cannot be made on Windows, where nothing could be copied to it.
func TestNamesThatAreDrives(t *testing.T) {
	for _, test := range []struct {
		name, system string
		ok           bool
	}{{"a", "linux", true}, {"a", "windows", false}, {"7", "windows", false}, {"ab", "windows", true}, {"", "linux", false}, {"A B", "windows", false}} {
		if err := checkNew(test.name, test.system); (err == nil) != test.ok {
			t.Errorf("%q on %s: %v", test.name, test.system, err)
		}
	}
}
