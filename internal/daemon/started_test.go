package daemon

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"agentvm/egress"
	"agentvm/internal/storage/snapshot"
	"agentvm/nat"
	"agentvm/vm"
)

func rule(t *testing.T, text string) egress.Rule {
	t.Helper()
	r, err := egress.ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A snapshot that leaves the host has no value of a variable, no path and no port of the host.
func TestStartedTellsNoSecrets(t *testing.T) {
	c := Config{
		Config: vm.Config{
			Image: "alpine", Hostname: "dev", Env: []string{"TOKEN=xyzzy", "EMPTY="}, StoreDir: "/xyzzy/store", ReadOnlyRoot: true,
			Mounts: []vm.Mount{
				{HostPath: "/home/xyzzy/src", GuestPath: "/src", ReadOnly: true}, {HostPath: "/xyzzy", GuestPath: "/data"},
				{HostPath: "/xyzzy/c", GuestPath: "/cow", CopyOnWrite: true},
			},
			Network: vm.Network{
				Policy: egress.Policy{Mode: egress.Allowlist, Allow: []egress.Rule{rule(t, "example.com")}}, HostPorts: []uint16{5432},
				Forwards:  []nat.Forward{{Listen: netip.MustParseAddrPort("127.0.0.1:8080"), GuestPort: 80}},
				Resolvers: []netip.AddrPort{netip.MustParseAddrPort("10.1.2.3:53")}, SendLimit: 1000,
			},
			Access:      vm.Access{Listen: vm.PortPolicy{Allow: []vm.PortRange{{First: 80, Last: 90}}}, LoopbackExemptPorts: []uint16{80}},
			UnixSockets: []vm.UnixSocket{{Host: "/xyzzy/socket", Guest: "/run/socket"}},
		},
		CAFile: "/xyzzy/ca", CaptureFile: "/xyzzy/pcap", NetworkLog: "/xyzzy/log", Metrics: "127.0.0.1:9",
		Sidecars: []Sidecar{{Name: "db", Args: []string{"xyzzy"}, Env: []string{"PASSWORD=xyzzy"}}}, Labels: map[string]string{"team": "a"},
	}
	raw, err := json.Marshal(c.Started())
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"xyzzy", "5432", "8080", "10.1.2.3"} {
		if strings.Contains(string(raw), secret) {
			t.Errorf("%q is in %s", secret, raw)
		}
	}
	extra, err := json.Marshal(map[string]any{"started": json.RawMessage(raw)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := StartedAs(snapshot.Meta{Extra: extra})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]MountRef{{GuestPath: "/src", ReadOnly: true}, {GuestPath: "/data"}, {GuestPath: "/cow", CopyOnWrite: true}}, s.Mounts); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"TOKEN", "EMPTY"}, s.Env); diff != "" {
		t.Error(diff)
	}
	got, err := s.Config()
	if err != nil {
		t.Fatal(err)
	}
	if got.Network.Policy.Effective() != egress.Allowlist || got.Labels["team"] != "a" || len(got.Access.Listen.Allow) != 1 || got.Network.SendLimit != 1000 {
		t.Errorf("%+v", got)
	}
	if !got.ReadOnlyRoot || got.NoNewPrivileges {
		t.Errorf("switches: %+v", got.Config)
	}
	if len(got.Env)+len(got.Mounts)+len(got.Access.LoopbackExemptPorts) != 0 {
		t.Errorf("it gives what is to be asked for: %+v", got)
	}
}

// Whatever a stranger writes into a snapshot, it gives the VM nothing of the host.
func TestStartedGrantsNothing(t *testing.T) {
	hostile := `{"env":["PATH"],"mounts":[{"guestPath":"/"}],"network":{"policy":{"mode":"open"},"hostPorts":[22],"forwards":["0.0.0.0:22:22"],
		"capture":"/etc/passwd","log":"/etc/passwd","resolvers":["10.0.0.1:53"]},"access":{"loopbackExemptPorts":[22]},
		"caCertificate":"/etc/shadow","sockets":["/run/docker.sock:/x"],"storeDir":"/tmp","metrics":"127.0.0.1:1"}`
	s, err := StartedAs(snapshot.Meta{Extra: json.RawMessage(`{"started":` + hostile + `}`)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Config()
	if !errors.Is(err, ErrOpenNetwork) {
		t.Errorf("Config() = %v", err)
	}
	if diff := cmp.Diff(Config{}, got, cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}), cmpopts.IgnoreUnexported(vm.Config{})); diff != "" {
		t.Errorf("it gives (-want +got):\n%s", diff)
	}
	private := s
	private.Network.Policy = egress.Policy{}
	if err := private.Network.Policy.Add(map[string][]string{"allow-private": {"10.1.0.0/16"}}); err != nil {
		t.Fatal(err)
	}
	if got, err := private.Config(); !errors.Is(err, ErrOpenNetwork) || got.Network.Policy.ReachesRestricted() {
		t.Errorf("a private network: %v", err)
	}
	s.Switches = []string{"no-such-setting"}
	if _, err := s.Config(); err == nil || !strings.Contains(err.Error(), `"no-such-setting"`) {
		t.Errorf("a setting that this program cannot keep: %v", err)
	}
	for _, bad := range []string{`{"started":5}`, `{"started":{"env":{}}}`, `[]`} {
		if _, err := StartedAs(snapshot.Meta{Extra: json.RawMessage(bad)}); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
	if s, err := StartedAs(snapshot.Meta{}); err != nil || s.Hostname != "" {
		t.Errorf("%+v, %v", s, err)
	}
}

func FuzzStarted(f *testing.F) {
	f.Add([]byte(`{"started":{"network":{"policy":{"mode":"allowlist","allow":["example.com"]}},"labels":{"a":"b"},"access":{"listenAllow":["80-90"]}}}`))
	f.Add([]byte(`{"started":{"network":{"policy":{"mode":"open"}},"diskSize":-1}}`))
	f.Fuzz(func(t *testing.T, extra []byte) {
		s, err := StartedAs(snapshot.Meta{Extra: extra})
		if err != nil {
			return
		}
		c, err := s.Config()
		if err == nil && c.Network.Policy.Effective() == egress.Open {
			t.Error("an open network")
		}
		if len(c.Env)+len(c.Mounts)+len(c.UnixSockets)+len(c.Network.Forwards)+len(c.Network.HostPorts) != 0 || c.CAFile+c.CaptureFile+c.NetworkLog != "" || c.CACertificate != nil || c.StoreDir != "" {
			t.Errorf("%+v", c)
		}
	})
}
