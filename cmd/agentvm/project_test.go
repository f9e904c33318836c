package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"agentvm/egress"
	"agentvm/images/storetest"
	"agentvm/internal/settings"
)

// inProject writes a project file into a new working directory.
func inProject(t *testing.T, text string) (dir string) {
	t.Helper()
	dir = realPath(t.TempDir())
	t.Chdir(dir)
	t.Setenv("AGENTVM_STORE", filepath.Join(dir, "store"))
	for name, home := range storetest.UserVariables(filepath.Join(t.TempDir(), "user")) {
		t.Setenv(name, home)
	}
	if err := errors.Join(os.Mkdir(".git", 0o755), os.Mkdir("sub", 0o755), os.WriteFile(settings.Name, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// parseVMFlags returns what arguments of a command become.
func parseVMFlags(t *testing.T, args ...string) (*vmFlags, error) {
	t.Helper()
	var f vmFlags
	command := &cobra.Command{Use: "exec", RunE: func(*cobra.Command, []string) error { return nil }, SilenceErrors: true, SilenceUsage: true}
	f.register(command)
	command.SetArgs(args)
	return &f, command.Execute()
}

const testProject = `
memory = "1G"
mounts = [".:/src"]
masks = [".env", "sub/secret"]
env = ["A=1", "B=2"]
[network]
allow = ["pypi.org"]
deny = ["*:25"]
`

func TestProjectFlags(t *testing.T) {
	dir := inProject(t, testProject)
	src := dir + ":/src:mask=.env:mask=sub/secret"
	for _, tc := range []struct {
		name, in string
		args     []string
		memory   string
		want     vmFlags
	}{
		{"all", ".", nil, "1G", vmFlags{mounts: []string{src}, env: []string{"A=1", "B=2"},
			networkFlags: networkFlags{policyFlags: policyFlags{rules: rulesOf("pypi.org", "*:25")}}}},
		{"from below", "sub", []string{"--no-network"}, "1G", vmFlags{mounts: []string{src}, env: []string{"A=1", "B=2"}}},
		{"flags replace", ".", []string{"--memory", "2G", "-m", "sub:/x", "--mask", "y", "-e", "C=3", "--allow", "a.org"}, "2G", vmFlags{
			mounts: []string{"sub:/x:mask=y:mask=secret"}, env: []string{"C=3"},
			networkFlags: networkFlags{policyFlags: policyFlags{rules: rulesOf("a.org", "*:25")}}}},
		{"none", ".", []string{"--no-project"}, "512M", vmFlags{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Chdir(filepath.Join(dir, tc.in))
			f, err := parseVMFlags(t, tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			if memory, _ := f.flags.GetString("memory"); memory != tc.memory {
				t.Errorf("--memory %s, want %s", memory, tc.memory)
			}
			got := vmFlags{mounts: f.mounts, env: f.env, networkFlags: networkFlags{policyFlags: f.policyFlags}}
			compare := cmp.AllowUnexported(vmFlags{}, networkFlags{}, policyFlags{}, changesFlags{})
			if tc.want.rules == nil {
				tc.want.rules = rulesOf("", "")
			}
			if diff := cmp.Diff(tc.want, got, compare); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// rulesOf are the rules of flags, at most one of each kind.
func rulesOf(allow, deny string) map[string]*[]string {
	rules := make(map[string]*[]string)
	for _, list := range new(egress.Policy).Lists() {
		rules[list.Name] = new([]string)
		if text := map[string]string{"allow": allow, "deny": deny}[list.Name]; text != "" {
			*rules[list.Name] = []string{text}
		}
	}
	return rules
}

func TestProjectErrors(t *testing.T) {
	for _, tc := range []struct {
		name, text, want string
		trust            bool // helps
	}{
		{"bad mount", `mounts = [".:x"]`, ":1:11: mount", false},
		{"bad rule", "[network]\nallow = [\"pypi.org\", \"a b\"]", ":2:22: ", false},
		{"bad port", `ports = ["80"]`, ":1:10: ", false},
		{"bad mask", `masks = ["../x"]`, ":1:10: the mask", false},
		{"mount above", `mounts = ["..:/x"]`, ":1:11: ", true},
		{"mount elsewhere", `mounts = ["/:/x"]`, ":1:11: ", true},
		{"mount by a link", `mounts = ["link:/x"]`, ":1:11: ", true},
		{"variable", `env = ["HOME"]`, ":1:8: ", true},
		{"port for neighbours", `ports = ["0.0.0.0:80:80"]`, ":1:10: ", true},
		{"private networks", "[network]\nmode = \"open\"", ":2:8: ", true},
		{"addresses", "[network]\nallow = [\"10.0.0.0/8:22\"]", ":2:10: ", true},
		{"a private network", "network.allow-private = [\"10.1.0.0/16\"]", ":1:26: ", true},
		{"bad socket", `sockets = ["/run/s:x"]`, ":1:12: socket", false},
		{"socket", `sockets = ["s:/run/s"]`, ":1:12: ", true},
		{"certificate elsewhere", `ca-cert = "/etc/ca.pem"`, ":1:11: ", true},
		{"certificate by a link", `ca-cert = "link/ca.pem"`, ":1:11: ", true},
		{"memory of the host", `host-memory = "2G"`, ":1:15: ", true},
		{"connections", "[network]\nmax-connections = 1025", ":2:19: more than 1024 connections", true},
		{"ports of the host", "network.host-ports = [5432]", ":1:23: ", true},
		{"a name's address", "network.hosts = [\"pypi.org:192.0.2.7\"]", ":1:18: ", true},
		{"other VMs", "network.join = [\"lab\"]", ":1:17: ", true},
		{"no address", "network.hosts = [\"pypi.org\"]", ":1:18: ", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inProject(t, tc.text)
			if err := os.Symlink(os.TempDir(), "link"); err != nil {
				t.Skip("no symbolic links here: ", err)
			}
			if _, err := parseVMFlags(t); err == nil || !strings.Contains(err.Error(), settings.Name+tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
			if _, err := parseVMFlags(t, "--trust-project"); (err == nil) != tc.trust {
				t.Errorf("trusted: %v", err)
			}
		})
	}
}

func TestMaskFlag(t *testing.T) {
	inProject(t, "")
	for _, args := range [][]string{{"--mask", "a"}, {"--mask", "a", "-m", "."}, {"-m", ".", "--mask", "../a"}} {
		if _, err := parseVMFlags(t, args...); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	f, err := parseVMFlags(t, "-m", ".", "-m", "sub:/sub:ro", "--mask", ".env", "--mask", "a:b")
	if diff := cmp.Diff([]string{".", "sub:/sub:ro:mask=.env:mask=a%3Ab"}, f.mounts); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	specs, err := f.config()
	if err != nil || len(specs.Mounts) != 2 || !cmp.Equal(specs.Mounts[1].Masks, []string{".env", "a:b"}) {
		t.Errorf("%+v, %v", specs.Mounts, err)
	}
}
