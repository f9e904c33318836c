package images

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"agentvm/internal/host/platform"
)

// TestPublicRegistries gives names that lead to this host and its networks to a store that asks public registries alone: nothing is connected
// to, whoever listens there. What the store's owner has listed is asked.
func TestPublicRegistries(t *testing.T) {
	r := newRegistry(t)
	var connected atomic.Bool // layers and configuration are pushed and pulled beside each other
	r.answer = func(http.ResponseWriter, *http.Request) bool { connected.Store(true); return false }
	ref := r.push(t, "app", makeImage(t, platform.RISCV64, makeLayer(t, file("f", nil))))
	_, port, err := net.SplitHostPort(r.host)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	open := func(c Config) *Store {
		c.Dir, c.PublicRegistries = t.TempDir(), true
		s, err := c.Open()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	connected.Store(false)
	for _, host := range []string{
		"127.0.0.1:" + port, "localhost:" + port, "LOCALHOST:" + port, "localhost.:" + port, "x.localhost:" + port, "127.1.2.3:" + port, "[::1]:" + port, "[::ffff:127.0.0.1]:" + port,
		"10.0.0.1:5000", "192.168.0.1", "169.254.169.254", "0.0.0.0:" + port, "[fe80::1]:80", "[fd00::1]:5000", "2130706433:" + port, "0x7f.1:" + port, "017700000001:" + port,
	} {
		_, err := open(Config{}).Resolve(t.Context(), "docker://"+host+"/app")
		if err == nil {
			t.Errorf("%s: pulled", host)
		}
		if host == "127.0.0.1:"+port && (!errors.Is(err, errPrivate) || !strings.Contains(err.Error(), "agentvm image pull")) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if connected.Load() {
		t.Error("it was connected to")
	}
	for name, c := range map[string]Config{
		"insecure": {InsecureRegistries: []string{r.host}}, "mirror": {RegistryMirrors: []string{r.host + "=http://" + r.host}},
	} {
		if _, err := open(c).Resolve(t.Context(), ref); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
