package main

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"agentvm/client"
	api "agentvm/internal/api/serve"
	"agentvm/internal/httpserver"
	"agentvm/internal/settings"
)

// sample is a value of a setting, in the words of each protocol.
type sample struct {
	flag string // behind --FLAG; "": none
	toml string // a line of the setting's table
	json string // a member of the request that makes a VM
	in   string // the field of the configuration that has it then
}

var samples = map[string]sample{
	"image":             {"busybox", `image = "busybox"`, `"image": "busybox"`, ".image"},
	"platform":          {"linux/arm64", `platform = "linux/arm64"`, `"platform": "linux/arm64"`, ".platform"},
	"cpus":              {"2", `cpus = 2`, `"cpus": 2`, ".cpus"},
	"memory":            {"1G", `memory = "1G"`, `"memory": 1073741824`, ".memory"},
	"cold":              {"true", `cold = true`, ``, ".coldBoot"},
	"host-memory":       {"64M", `host-memory = "64M"`, ``, ".hostMemory"},
	"mounts":            {".:/src:ro", `mounts = [".:/src:ro"]`, ``, ".mounts"},
	"masks":             {"", "mounts = [\".\"]\nmasks = [\".env\"]", ``, ".mounts"},
	"env":               {"A=1", `env = ["A=1"]`, `"env": {"A": "1"}`, ".env"},
	"ports":             {"8080:80", `ports = ["8080:80"]`, ``, ".network.forwards"},
	"ca-cert":           {"ca.pem", `ca-cert = "ca.pem"`, ``, ".caCertificate"},
	"no-new-privileges": {"true", `no-new-privileges = true`, ``, ".noNewPrivileges"},
	"read-only-root":    {"true", `read-only-root = true`, `"readOnlyRoot": true`, ".readOnlyRoot"},
	"sockets":           {"/run/a.sock", `sockets = ["/run/a.sock"]`, ``, ".sockets"},
	"secrets":           {"A=env:B,hosts=a.org", `secrets = ["A=env:B,hosts=a.org"]`, ``, ".secrets"},
	"hostname":          {"other", ``, ``, ".hostname"},
	"idle-timeout":      {"10m", `idle-timeout = "10m"`, `"idleSeconds": 600`, ".idleTimeout"},
	"hibernate-after":   {"90s", `hibernate-after = "90s"`, ``, ".hibernateAfter"},
	"max-lifetime":      {"2h", `max-lifetime = "2h"`, `"lifeSeconds": 7200`, ".maxLifetime"},
	"restart":           {"on-failure", ``, ``, ".restart"},
	"metrics":           {"127.0.0.1:9100", ``, ``, ".metrics"},
	"labels":            {"a=b", ``, `"labels": {"a": "b"}`, ".labels.a"},
	"disk-size":         {"2G", `disk-size = "2G"`, `"diskSize": 2147483648`, ".diskSize"},

	"network.mode":            {"none", `mode = "none"`, `"network": {"mode": "none"}`, ".network.policy.mode"},
	"network.allow":           {"a.org:443", `allow = ["a.org:443"]`, `"network": {"allow": ["a.org:443"]}`, ".network.policy.allow"},
	"network.allow-sni":       {"a.org:443", `allow-sni = ["a.org:443"]`, `"network": {"allowSNI": ["a.org:443"]}`, ".network.policy.allowSNI"},
	"network.allow-private":   {"10.1.0.0/16:5432", `allow-private = ["10.1.0.0/16:5432"]`, `"network": {"allowPrivate": ["10.1.0.0/16:5432"]}`, ".network.policy.allowPrivate"},
	"network.deny":            {"*:25", `deny = ["*:25"]`, `"network": {"deny": ["*:25"]}`, ".network.policy.deny"},
	"network.host-ports":      {"5432", `host-ports = [5432]`, ``, ".network.hostPorts"},
	"network.dns":             {"9.9.9.9", ``, ``, ".network.resolvers"},
	"network.dns-search":      {"corp.example", ``, ``, ".network.search"},
	"network.join":            {"lab", `join = ["lab"]`, ``, ".network.networks"},
	"network.hosts":           {"a.org:192.0.2.1", `hosts = ["a.org:192.0.2.1"]`, ``, ".network.hosts"},
	"network.proxy":           {"http://192.0.2.1:3128", ``, ``, ".network.proxy"},
	"network.capture":         {"a.pcap", ``, ``, ".network.capture"},
	"network.log":             {"a.log", ``, ``, ".network.log"},
	"network.subnet":          {"10.9.0.0/24", `subnet = "10.9.0.0/24"`, ``, ".network.subnet"},
	"network.ip":              {"192.168.127.9", `ip = "192.168.127.9"`, ``, ".network.address"},
	"network.mac":             {"02:00:00:00:00:09", `mac = "02:00:00:00:00:09"`, ``, ".network.mac"},
	"network.mtu":             {"1400", ``, ``, ".network.mtu"},
	"network.no-ipv6":         {"true", ``, ``, ".network.disableIPv6"},
	"network.send-limit":      {"500K", ``, ``, ".network.sendLimit"},
	"network.receive-limit":   {"1M", ``, ``, ".network.receiveLimit"},
	"network.max-connections": {"20", `max-connections = 20`, `"maxConnections": 20`, ".network.limits.tcpFlows"},
	"network.disabled":        {"true", ``, ``, ".network.disabled"},

	"access.listen-allow":          {"80-90", `listen-allow = ["80-90"]`, ``, ".access.listenAllow"},
	"access.listen-deny":           {"80", `listen-deny = ["80"]`, ``, ".access.listenDeny"},
	"access.connect-allow":         {"443", `connect-allow = ["443"]`, ``, ".access.connectAllow"},
	"access.connect-deny":          {"25", `connect-deny = ["25"]`, ``, ".access.connectDeny"},
	"access.loopback-exempt-ports": {"8080", `loopback-exempt-ports = [8080]`, ``, ".access.loopbackExemptPorts"},

	"preview.max-expires-in-seconds": {"", `max-expires-in-seconds = 60`, ``, ".previewMaxLifetime"},
}

// starters are the flags of the commands that start VMs with a name, by which agents, E2B's SDK and pods get theirs.
var starters = map[string]func(*cobra.Command) *startFlags{
	"start": func(c *cobra.Command) *startFlags { f := &startFlags{command: c}; f.register(); return f },
	"mcp":   func(c *cobra.Command) *startFlags { var f mcpFlags; f.register(c); return &f.startFlags },
	"e2b":   func(c *cobra.Command) *startFlags { var f e2bFlags; f.register(c); return &f.startFlags },
	"pod":   func(c *cobra.Command) *startFlags { var f podFlags; f.register(c); return &f.startFlags },
}

// TestSettings sets each setting by each protocol that has it, and finds the same change of the VM's configuration.
func TestSettings(t *testing.T) {
	inProject(t, "")
	writeCertificate(t)
	for _, s := range settings.All() {
		t.Run(s.Key, func(t *testing.T) {
			in, known := samples[s.Key]
			if !known || (in.flag != "") != (s.Flag != "") || (in.toml != "") == s.FlagOnly || in.json == "" && s.JSON != "" {
				t.Fatal("there is no sample for each protocol that has it")
			}
			changes := map[string]map[string]any{}
			for name, register := range starters {
				command := &cobra.Command{Use: name}
				f := register(command)
				if flag := command.Flags().Lookup(s.Flag); flag != nil {
					changes[name] = difference(t, configOfFlags(t, f, "", "--"+s.Flag+"="+in.flag), configOfFlags(t, register(&cobra.Command{Use: name}), ""))
				} else if s.Flag != "" && s.Part != settings.OfDaemon {
					t.Errorf("agentvm %s has no --%s", name, s.Flag)
				}
			}
			if in.toml != "" {
				text := in.toml
				if table, _, found := strings.Cut(s.Key, "."); found {
					text = "[" + table + "]\n" + text
				}
				changes["TOML"] = difference(t, configOfFlags(t, starters["start"](&cobra.Command{Use: "start"}), text), configOfFlags(t, starters["start"](&cobra.Command{Use: "start"}), ""))
			}
			if in.json != "" {
				changes["HTTP"] = difference(t, configOfJSON(t, "{"+in.json+"}"), configOfJSON(t, "{}"))
			}
			for name, change := range changes {
				if _, ok := change[in.in]; !ok || len(change) != 1 {
					t.Errorf("%s changes %v, want %s", name, change, in.in)
				}
				for other, with := range changes {
					if diff := cmp.Diff(change, with); diff != "" {
						t.Errorf("%s and %s (-%[1]s +%[2]s):\n%s", name, other, diff)
					}
				}
			}
		})
	}
}

// writeCertificate makes ca.pem.
func writeCertificate(t *testing.T) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	server.Close()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile("ca.pem", certificate, 0o600); err != nil {
		t.Fatal(err)
	}
}

// configOfFlags is the configuration of a VM that a command starts with some arguments in a directory with a project file.
func configOfFlags(t *testing.T, f *startFlags, project string, args ...string) client.Config {
	t.Helper()
	store, err := vms()
	if err == nil {
		err = os.WriteFile(settings.Name, []byte(project), 0o600)
	}
	err = errors.Join(err, f.command.ParseFlags(append(args, "--trust-project")))
	if err == nil {
		_, err = f.readProject(f.command, []string{"new"})
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.config(store, "new")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// configOfJSON is the configuration of a VM that a client of the HTTP API makes.
func configOfJSON(t *testing.T, body string) client.Config {
	t.Helper()
	store, err := vms()
	if err != nil {
		t.Fatal(err)
	}
	server, err := api.New(api.Options{Store: store, Keys: httpserver.Keys{{Name: "a", Value: strings.Repeat("k", 32)}}})
	if err != nil {
		t.Fatal(err)
	}
	var in api.NewVM
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&in); err != nil {
		t.Fatal(err)
	}
	c, err := server.Config(in)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// difference is what one configuration has that another does not, by the names of its fields.
func difference(t *testing.T, c, base client.Config) map[string]any {
	t.Helper()
	one, other := fields(t, c), fields(t, base)
	for name, value := range other {
		if cmp.Equal(value, one[name]) {
			delete(one, name)
		}
	}
	return one
}

// fields are those of a configuration's JSON, with those of its objects.
func fields(t *testing.T, c client.Config) map[string]any {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(asJSON(t, c)), &object); err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	var add func(string, any)
	add = func(name string, v any) {
		inner, ok := v.(map[string]any)
		if !ok && v != "" { // the mode of a policy is written when it is the default, too
			out[name] = v
		}
		for key, value := range inner {
			add(fmt.Sprint(name, ".", key), value)
		}
	}
	add("", object)
	return out
}

// TestSettingsOfKeptVMs starts a VM again that was made with each setting: without flags it is the same; without a network card it has nothing left of the
// network and all of the rest. A VM that was made without one refuses what would have no meaning.
func TestSettingsOfKeptVMs(t *testing.T) {
	inProject(t, "")
	writeCertificate(t)
	config := func(t *testing.T, before *client.Config, args ...string) client.Config {
		t.Helper()
		c, err := startConfig(t, before, args...)
		if err != nil {
			t.Fatal(err)
		}
		c.StoreDir = ""
		return c
	}
	base, without := config(t, nil), config(t, nil, "--no-network")
	refused := map[string]string{"image": "the files of dev belong to image alpine", "secrets": "a VM without a network cannot use any"} // by the VM without a card
	for _, s := range settings.All() {
		in := samples[s.Key]
		if in.flag == "" {
			continue
		}
		t.Run(s.Key, func(t *testing.T) {
			flag := "--" + s.Flag + "=" + in.flag
			kept := config(t, nil, flag)
			if diff := cmp.Diff(asJSON(t, kept), asJSON(t, config(t, &kept))); diff != "" {
				t.Errorf("started again (-first +again):\n%s", diff)
			}
			if change := difference(t, config(t, &kept, flag), base); len(change) != 1 || change[in.in] == nil {
				t.Errorf("started again with %s: %v, want %s", flag, change, in.in)
			}
			want := kept
			want.Network, want.CaptureFile, want.NetworkLog = without.Network, "", ""
			if got, err := startConfig(t, &kept, "--no-network"); err == nil {
				got.StoreDir = ""
				if diff := cmp.Diff(asJSON(t, want), asJSON(t, got)); diff != "" {
					t.Errorf("started again without a network (-want +got):\n%s", diff)
				}
			} else if why := refused[s.Key]; why == "" || !strings.Contains(err.Error(), why) {
				t.Error(err)
			}
			why := refused[s.Key]
			if s.Part == settings.OfNetwork && s.Key != "network.disabled" {
				why = "--" + s.Flag + ": the VM was made without a network card"
			}
			if got, err := startConfig(t, &without, flag); (err != nil) != (why != "") || err != nil && !strings.Contains(err.Error(), why) {
				t.Errorf("without a network card, %s gives %+v, %v", flag, got.Network, err)
			}
			if s.Part == settings.OfNetwork && s.Key != "network.disabled" {
				if change := difference(t, config(t, &without, "--no-network=false", flag), base); len(change) != 1 || change[in.in] == nil {
					t.Errorf("with a card again: %v, want %s", change, in.in)
				}
			}
		})
	}
}

// TestSubnetOfKeptVM: the address of the VM belongs to its network of before.
func TestSubnetOfKeptVM(t *testing.T) {
	kept, err := startConfig(t, nil, "--subnet", "10.9.0.0/24", "--ip", "10.9.0.9")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, subnet, address, problem string }{
		{"", "10.9.0.0/24", "10.9.0.9", ""},
		{"--subnet 10.8.0.0/24", "10.8.0.0/24", "invalid IP", ""},
		{"--subnet 10.8.0.0/24 --ip 10.8.0.7", "10.8.0.0/24", "10.8.0.7", ""},
		{"--ip 10.9.0.7", "10.9.0.0/24", "10.9.0.7", ""},
		{"--ip 10.8.0.7", "", "", "10.8.0.7"},
		{"--subnet=", "invalid Prefix", "invalid IP", ""},
		{"--no-network", "invalid Prefix", "invalid IP", ""},
		{"--no-network --subnet 10.8.0.0/24", "", "", "--no-network"},
	} {
		got, err := startConfig(t, &kept, strings.Fields(c.args)...)
		switch n := got.Network; {
		case c.problem != "":
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%s: %v", c.args, err)
			}
		case err != nil || n.Subnet.String() != c.subnet || n.Address.String() != c.address:
			t.Errorf("%s: %s, %s, %v", c.args, n.Subnet, n.Address, err)
		}
	}
}
