package client

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/daemon"
	"agentvm/vm"
)

// TestForkConfig leaves out of a configuration what only one VM can have, and nothing else.
func TestForkConfig(t *testing.T) {
	config := Config{
		Config: vm.Config{Image: "alpine", Hostname: "dev", Env: []string{"A=1"}, NoNewPrivileges: true},
		Mounts: []string{"/a:/b:ro"}, Sockets: []string{"/s:/s"},
		Metrics: "127.0.0.1:9100", Labels: map[string]string{"a": "b"},
		Network: daemon.Network{Forwards: []string{"8080:80", "127.0.0.2:53:53/udp"}, HostPorts: []uint16{1}, Capture: "/c", Log: "/l"},
	}
	want := config
	want.Hostname, want.Metrics = "", "127.0.0.1:0"
	want.Network.Capture, want.Network.Log = "", ""
	want.Network.Forwards = []string{"0:80/tcp", "127.0.0.2:0:53/udp"}
	if err := unshare(&config); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Network.Forwards, config.Network.Forwards); diff != "" {
		t.Errorf("forwards (-want +got):\n%s", diff)
	}
	want.Network.Forwards, config.Network.Forwards = nil, nil
	if a, b := configText(t, want), configText(t, config); a != b {
		t.Errorf("want %s\ngot  %s", a, b)
	}
}

func configText(t *testing.T, c Config) string {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
