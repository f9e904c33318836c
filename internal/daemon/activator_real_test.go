//go:build linux || darwin

package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/network/preview"
	"agentvm/nat"
)

// TestHibernatePorts: a request to a published port of a hibernated VM, and a visit of a preview, wake it, and have the whole answer of a server in
// it. Its clock is right then, its timers have waited with it, and its generation counts each waking, as it does any restoration.
func TestHibernatePorts(t *testing.T) {
	config := realConfig(t)
	config.Image = "busybox" // which has httpd
	config.HibernateAfter = Duration(time.Second)
	config.Network.Forwards = []nat.Forward{{GuestPort: 80, Listen: netip.MustParseAddrPort("127.0.0.1:0")}}
	s := testStore(t, roleReal)
	s.Dir = filepath.Join(s.Dir, strings.Repeat("long", 20)) // too long for a socket, in a confined process
	s.Command[1], s.ActivatorCommand[1] = s.Dir, s.Dir
	c, err := s.Start(t.Context(), "dev", config, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := s.paths("dev")
	defer func() {
		_, _ = s.Stop(t.Context(), "dev", 0)
		defer func() { // or the activator, which looks at all VMs, makes a file in a folder that is just being removed
			if err := s.Remove(t.Context(), "dev"); err != nil {
				t.Error(err)
			}
		}()
		for _, path := range []string{p.log(), s.activator().log()} {
			if log, _ := os.ReadFile(path); t.Failed() {
				t.Logf("%s:\n%s", path, log)
			}
		}
	}()
	out, _ := shell(t, c, daemonrpc.JobOptions{}, "mkdir /www; seq 1 60000 >/www/index.html; httpd -p 80 -h /www && cat /www/index.html")
	ports, err := c.Info(t.Context())
	place, err2 := c.Preview(t.Context())
	if err != nil || err2 != nil || len(ports.Ports) != 1 {
		t.Fatalf("%+v, %v, %v", ports, err, err2)
	}
	url := "http://" + strings.TrimSuffix(ports.Ports[0], " -> 80/tcp") + "/index.html"
	links, err := preview.OpenStore(s.PreviewPath(), preview.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = links.Close() }()
	link, err := links.Create(t.Context(), "dev", place.ID, 80, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	shell(t, c, daemonrpc.JobOptions{}, "(sleep 6; echo rang >/root/timer) >/dev/null 2>&1 </dev/null &")
	_ = c.Close()
	sleeps(t, s)
	awake := time.Since(began)
	time.Sleep(6 * time.Second) // which its timer does not see
	for round, url := range []string{url, link.PathURL(place.PreviewPort) + "index.html", url} {
		began := time.Now()
		answered := make(chan struct{}, 20)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				code, got := get(t, url)
				answered <- struct{}{}
				if code != 200 || got != out {
					t.Errorf("round %d: %d, %d bytes of %d: %.100q", round, code, len(got), len(out), got)
				}
			})
		}
		<-answered
		c, err = s.Connect(t.Context(), "dev") // while others are under way, or it could hibernate once more
		all.Wait()
		t.Logf("20 requests woke the VM and were answered in %v", time.Since(began))
		if err != nil {
			t.Fatal(err)
		}
		asked := time.Now()
		now, _ := shell(t, c, daemonrpc.JobOptions{}, "date +%s; head -n 1 /run/agentvm/generation; cat /root/timer 2>/dev/null")
		clock, rest, _ := strings.Cut(now, "\n")
		var at int64
		if _, err := fmt.Sscan(clock, &at); err != nil || at < asked.Unix()-5 || at > time.Now().Unix()+5 {
			t.Errorf("clock: %q", clock)
		}
		mayRing := round > 0 || awake+time.Since(began) >= 6*time.Second
		if want := fmt.Sprintf("%d\n", round+1); rest != want && (!mayRing || rest != want+"rang\n") {
			t.Errorf("round %d: %q: the timer was to wait, and the generation to count", round, rest)
		}
		if round == 0 {
			if rang, _ := shell(t, c, daemonrpc.JobOptions{}, "i=0; until [ -s /root/timer ] || [ $i = 30 ]; do sleep 1; i=$((i+1)); done; cat /root/timer"); rang != "rang\n" {
				t.Errorf("timer: %q", rang)
			}
		}
		_ = c.Close()
		if round < 2 {
			sleeps(t, s)
		}
	}
}
