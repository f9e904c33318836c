package client

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"agentvm/nat"
	"agentvm/vm"
)

// TestForkConfig leaves out of a configuration what only one VM can have, and nothing else.
func TestForkConfig(t *testing.T) {
	config := Config{
		Config: vm.Config{
			Image: "alpine", Hostname: "dev", Env: []string{"A=1"}, NoNewPrivileges: true,
			Mounts: []vm.Mount{{HostPath: "/a", GuestPath: "/b", ReadOnly: true}}, UnixSockets: []vm.UnixSocket{{Host: "/s", Guest: "/s"}},
			Network: vm.Network{Forwards: forwards(t, "8080:80", "127.0.0.2:53:53/udp"), HostPorts: []uint16{1}},
		},
		Metrics: "127.0.0.1:9100", Labels: map[string]string{"a": "b"}, CaptureFile: "/c", NetworkLog: "/l",
	}
	want := config
	want.Hostname, want.Metrics = "", "127.0.0.1:0"
	want.CaptureFile, want.NetworkLog = "", ""
	want.Network.Forwards = forwards(t, "0:80/tcp", "127.0.0.2:0:53/udp")
	unshare(&config)
	if diff := cmp.Diff(want.Network.Forwards, config.Network.Forwards, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Errorf("forwards (-want +got):\n%s", diff)
	}
	want.Network.Forwards, config.Network.Forwards = nil, nil
	if a, b := configText(t, want), configText(t, config); a != b {
		t.Errorf("want %s\ngot  %s", a, b)
	}
}

func forwards(t *testing.T, texts ...string) (list []nat.Forward) {
	t.Helper()
	for _, text := range texts {
		f, err := nat.ParseForward(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, f)
	}
	return list
}

func configText(t *testing.T, c Config) string {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
