package vm_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"agentvm/egress"
	"agentvm/internal/network/reach"
	"agentvm/nat"
	"agentvm/vm"
)

// publicServer is the address of a public server in these tests.
const publicServer = "203.0.112.10:80"

// contains runs a command and checks that it succeeds and that its output has all of want in it.
func contains(t *testing.T, v *vm.VM, line string, want ...string) {
	t.Helper()
	r := mustRun(t, v, vm.Command{Line: line, Timeout: time.Minute})
	for _, text := range want {
		if !strings.Contains(string(r.Stdout), text) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q; want %q in it", line, r.ExitCode, clip(r.Stdout), clip(r.Stderr), text)
		}
	}
	if r.ExitCode != 0 {
		t.Errorf("%q: exit %d, stderr %q", line, r.ExitCode, clip(r.Stderr))
	}
}

// fails runs a command and checks that it fails in a certain way.
func fails(t *testing.T, v *vm.VM, line, want string) {
	t.Helper()
	r := mustRun(t, v, vm.Command{Line: line, Timeout: time.Minute})
	if r.ExitCode == 0 || r.TimedOut || !strings.Contains(strings.ToLower(string(r.Stderr)), strings.ToLower(want)) {
		t.Errorf("%q: exit %d, timed out %v, stdout %q, stderr %q; want %q", line, r.ExitCode, r.TimedOut, clip(r.Stdout), clip(r.Stderr), want)
	}
}

func TestNetwork(t *testing.T) {
	w := newWorld(t)
	data := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(data)
	port := w.serve(publicServer, func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/data":
			_, _ = rw.Write(data)
		default:
			fmt.Fprintf(rw, "hello from %s\n", r.Host)
		}
	})
	v := ownVM(t, w.network(func(n *vm.Network) {
		n.HostPorts, n.AuditProcesses = []uint16{port}, true
		n.Resolvers = []netip.AddrPort{w.resolver(map[string]string{
			"example.com": "203.0.112.10", "inside.example.com": "10.1.2.3", "loop.example.com": "127.0.0.1",
		})}
	}))
	host := fmt.Sprintf("http://host.agentvm.internal:%d", port)

	t.Run("lease", func(t *testing.T) {
		contains(t, v, "ip addr show eth0", "192.168.127.3/24", "02:00:00:00:00:01", "mtu 1500")
		contains(t, v, "ip route", "default via 192.168.127.1")
		contains(t, v, "cat /etc/resolv.conf", "nameserver 192.168.127.1")
	})
	t.Run("IPv6", func(t *testing.T) {
		contains(t, v, "for i in $(seq 100); do ip -6 addr show eth0 | grep fd5a:94ef:e40c && exit; sleep 0.1; done; exit 1", "fd5a:94ef:e40c:")
	})
	t.Run("opened port of the host", func(t *testing.T) {
		wantOutput(t, v, "wget -qO- "+host+"/", fmt.Sprintf("hello from host.agentvm.internal:%d\n", port))
		sum := sha256.Sum256(data)
		contains(t, v, "wget -qO- "+host+"/data | sha256sum", hex.EncodeToString(sum[:]))
	})
	t.Run("public name", func(t *testing.T) {
		wantOutput(t, v, "wget -qO- http://example.com/", "hello from example.com\n")
		connection := func(e egress.Event) bool {
			return e.Kind == egress.KindTCP && e.Verdict == egress.VerdictAllow && e.Destination.String() == publicServer
		}
		allowed := w.event(t, "the connection", connection)
		if !slices.Contains(allowed.Names, "example.com") || !strings.HasPrefix(allowed.Source.String(), "192.168.127.3:") {
			t.Errorf("the event %+v does not name both ends", allowed)
		}
		named := w.withProcess(t, connection, func() { wantOutput(t, v, "wget -qO- http://example.com/", "hello from example.com\n") })
		if !strings.HasPrefix(named.Process, "wget[") {
			t.Errorf("process %q of %+v", named.Process, named)
		}
		ended := w.event(t, "its end", func(e egress.Event) bool { return e.Verdict == egress.VerdictClose && e.Flow == allowed.Flow })
		if ended.Received == 0 || ended.Sent == 0 {
			t.Errorf("the event %+v has no bytes", ended)
		}
	})
	t.Run("denied at once and with a reason", func(t *testing.T) {
		fails(t, v, "wget -qO- http://10.9.8.7/", "refused")
		fails(t, v, "wget -qO- http://127.0.0.2:9/", "refused") // its own loopback
		fails(t, v, "wget -qO- http://host.agentvm.internal:1/", "refused")
		contains(t, v, `for i in $(seq 100); do
			wget -qO- http://agentvm.internal/denials >/tmp/denials; grep -q 10.9.8.7 /tmp/denials && grep -q host.agentvm.internal /tmp/denials && break; sleep 0.1
		done; cat /tmp/denials`, "10.9.8.7", "host.agentvm.internal")
		contains(t, v, "wget -qO- http://agentvm.internal/denials.json", `"kind":"tcp"`, `"reason":"restricted-range"`)
		contains(t, v, "for i in $(seq 100); do grep 10.9.8.7 /run/agentvm/denials && exit; sleep 0.1; done; exit 1", "10.9.8.7")
		contains(t, v, "wget -qO- http://agentvm.internal/policy", "mode public")
		contains(t, v, "wget -qO- http://agentvm.internal/", "/denials")
	})
	t.Run("the process is known", func(t *testing.T) {
		e := w.withProcess(t, func(e egress.Event) bool {
			return e.Verdict == egress.VerdictDeny && e.Destination.String() == "10.9.8.7:80"
		}, func() { fails(t, v, "wget -qO- http://10.9.8.7/", "refused") })
		if !strings.HasPrefix(e.Process, "wget[") && !strings.HasPrefix(e.Process, "busybox[") {
			t.Errorf("process %q of %+v", e.Process, e)
		}
	})
	t.Run("names that lead inside", func(t *testing.T) {
		fails(t, v, "wget -qO- http://inside.example.com/", "")
		fails(t, v, "wget -qO- http://loop.example.com/", "")
	})
	t.Run("whose question was denied", func(t *testing.T) {
		e := w.event(t, "the denial", func(e egress.Event) bool {
			return e.Kind == egress.KindDNS && e.Verdict == egress.VerdictDeny && slices.Equal(e.Names, []string{"inside.example.com"})
		})
		if e.Source.Addr().String() != "192.168.127.3" || e.Source.Port() == 0 {
			t.Errorf("%+v does not say who has asked", e)
		}
		if e.Process == "" {
			t.Log("the guest was too slow to say whose question it was")
		} else if !strings.HasPrefix(e.Process, "wget[") && !strings.HasPrefix(e.Process, "busybox[") {
			t.Errorf("process %q of %+v", e.Process, e)
		}
		find := fmt.Sprintf("grep ' kind=dns source=%s .*names=inside.example.com ' /run/agentvm/denials", e.Source)
		contains(t, v, "for i in $(seq 100); do "+find+" && exit; sleep 0.1; done; exit 1", "names=inside.example.com")
	})
	t.Run("any resolver is ours", func(t *testing.T) {
		contains(t, v, "nslookup example.com 9.9.9.9", "203.0.112.10")
	})
	for _, dial := range w.dials() {
		if strings.Contains(dial, "10.") && !strings.Contains(dial, "203.0.112.10") {
			t.Errorf("dialled %s", dial)
		}
	}
}

// An idle machine makes no DNS queries and no connections.
func TestNetworkIsQuiet(t *testing.T) {
	w := newWorld(t)
	v := ownVM(t, w.network(nil))
	wantOutput(t, v, "sleep 2; cat /run/agentvm/denials 2>/dev/null; true", "")
	if list, dials := must(v.Denials(t.Context())), w.dials(); len(list)+len(dials) > 0 {
		t.Errorf("denied %+v, dialled %v", list, dials)
	}
	if flows := must(v.Flows(limited(t))); len(flows) > 0 {
		t.Errorf("flows %+v", flows)
	}
}

func TestPolicyChangesWhileFlowsRun(t *testing.T) {
	w := newWorld(t)
	ended := make(chan struct{})
	w.serve(publicServer, func(rw http.ResponseWriter, r *http.Request) {
		defer close(ended)
		for r.Context().Err() == nil {
			if _, err := io.WriteString(rw, "more\n"); err != nil {
				return
			}
			rw.(http.Flusher).Flush()
			time.Sleep(20 * time.Millisecond)
		}
	})
	v := ownVM(t, w.network(nil))
	lines := make(chan struct{}, 1)
	p, err := v.Start(limited(t), vm.Command{Line: "wget -qO- http://203.0.112.10/", Stdout: signalWriter(lines)})
	if err != nil {
		t.Fatal(err)
	}
	<-lines
	flows := must(v.Flows(limited(t)))
	if len(flows) != 1 || flows[0].Destination.String() != publicServer || flows[0].State != nat.Established || !strings.Contains(flows[0].Process, "[") {
		t.Errorf("flows %+v", flows)
	}
	cut, err := v.SetPolicy(t.Context(), egress.Policy{Allow: rules(t, "example.com")})
	if err != nil || cut != 1 {
		t.Errorf("SetPolicy = %d, %v", cut, err)
	}
	if d := must(v.Explain(t.Context(), "203.0.112.10", 80, "tcp")); d.Allowed {
		t.Errorf("Explain says %+v", d)
	}
	if _, err := p.Wait(limited(t)); err != nil {
		t.Error(err)
	}
	<-ended
	fails(t, v, "wget -qO- http://203.0.112.10/", "refused")
	if _, err := v.SetPolicy(t.Context(), egress.Policy{}); err != nil {
		t.Error(err)
	}
	if d := must(v.Explain(t.Context(), "203.0.112.10", 80, "tcp")); !d.Allowed {
		t.Errorf("Explain says %+v", d)
	}
}

// The guest holds its connection open and reads nothing: nat has nothing to do with the connection when the policy changes.
func TestPolicyCutsFlowsThatNobodyReads(t *testing.T) {
	w := newWorld(t)
	ended := make(chan struct{})
	w.serve(publicServer, func(rw http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		for {
			if _, err := rw.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	v := ownVM(t, w.network(nil))
	p, err := v.Start(limited(t), vm.Command{Line: "wget -qO- http://203.0.112.10/ | sleep 600"})
	if err != nil {
		t.Fatal(err)
	}
	allowed := w.event(t, "the connection", func(e egress.Event) bool { return e.Verdict == egress.VerdictAllow && e.Kind == egress.KindTCP })
	for last := uint64(0); ; { // until nothing moves any more
		time.Sleep(300 * time.Millisecond)
		flows := must(v.Flows(limited(t)))
		if len(flows) != 1 {
			t.Fatalf("flows %+v", flows)
		}
		if flows[0].Received > 0 && flows[0].Received == last {
			break
		}
		last = flows[0].Received
	}
	if cut, err := v.SetPolicy(t.Context(), egress.Policy{Mode: egress.None}); err != nil || cut != 1 {
		t.Errorf("SetPolicy = %d, %v", cut, err)
	}
	w.event(t, "its end", func(e egress.Event) bool { return e.Verdict == egress.VerdictClose && e.Flow == allowed.Flow })
	<-ended
	for deadline := time.Now().Add(20 * time.Second); len(must(v.Flows(limited(t)))) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("flows %+v", must(v.Flows(limited(t))))
		}
	}
	_ = p.Kill(limited(t))
	_, _ = p.Wait(limited(t))
}

// signalWriter tells a channel that something was written.
type signalWriter chan struct{}

func (w signalWriter) Write(p []byte) (int, error) {
	select {
	case w <- struct{}{}:
	default:
	}
	return len(p), nil
}

func TestNetworkOfModeNoneDialsNothing(t *testing.T) {
	w := newWorld(t)
	port := w.serve(publicServer, func(http.ResponseWriter, *http.Request) {})
	v := ownVM(t, w.network(func(n *vm.Network) {
		n.Policy.Mode = egress.None
		n.HostPorts = []uint16{port}
	}))
	fails(t, v, "wget -qO- http://203.0.112.10/", "refused")
	fails(t, v, fmt.Sprintf("wget -qO- http://host.agentvm.internal:%d/", port), "refused")
	fails(t, v, "wget -qO- http://example.com/", "")
	fails(t, v, "nslookup example.com 9.9.9.9 >&2", "")
	mustRun(t, v, vm.Command{Line: "ping -c 1 -W 1 203.0.112.10; echo x | nc -u -w 1 203.0.112.10 9; ping6 -c 1 -W 1 2001:db9::1", Timeout: time.Minute})
	contains(t, v, "wget -qO- http://agentvm.internal/policy", "mode none")
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	if dials := w.dials(); len(dials) > 0 {
		t.Errorf("dialled %v", dials)
	}
	if s := must(v.NetworkStats(t.Context())); s.Egress.Dials != 0 || s.Egress.Denied == 0 || s.Link.FramesFromGuest == 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestForwards(t *testing.T) {
	free := nat.Forward{GuestPort: 8080}
	w := newWorld(t)
	a := ownVM(t, w.network(nil))
	b := ownVM(t, func(c *vm.Config) { c.Network.Forwards = []nat.Forward{free} })
	if got, want := len(must(b.Forwards(t.Context()))), 1; got != want {
		t.Fatalf("%d addresses", got)
	}
	for name, v := range map[string]*vm.VM{"a": a, "b": b} {
		listen(t, v, "this is "+name)
		at, err := v.Forward(limited(t), free)
		if err != nil {
			t.Fatal(err)
		}
		if ip := at.(*net.TCPAddr).IP; !ip.IsLoopback() {
			t.Errorf("it listens at %v", at)
		}
		if got, want := get(t, at), "this is "+name+"\n"; got != want {
			t.Errorf("VM %s answers %q", name, got)
		}
	}
	ended := w.event(t, "the end of the connection", func(e egress.Event) bool { return e.Verdict == egress.VerdictClose })
	if ended.Reason != egress.ReasonForward || ended.Flow < egress.InwardFlows || ended.Sent == 0 || ended.Received == 0 || ended.Destination.Port() != 8080 {
		t.Errorf("event %+v", ended)
	}
	refused, err := a.Forward(limited(t), nat.Forward{GuestPort: 8081})
	if err != nil {
		t.Fatal(err)
	}
	if response, err := http.Get("http://" + refused.String() + "/"); err == nil {
		response.Body.Close()
		t.Error("a port of the guest at which nothing listens answered")
	}
	_, err = vm.Start(limited(t), vm.Config{
		Image: kit.store.Image(t), StoreDir: kit.store.Dir(), Network: vm.Network{Forwards: []nat.Forward{{Listen: refused.(*net.TCPAddr).AddrPort(), GuestPort: 80}}},
	})
	if err == nil || !strings.Contains(err.Error(), refused.String()) {
		t.Errorf("a taken port: %v", err)
	}
}

// listen starts a server on port 8080 of the guest that answers every request with a line.
func listen(t *testing.T, v *vm.VM, text string) {
	t.Helper()
	line := fmt.Sprintf(`cat >/tmp/answer <<'END'
while read line && [ ${#line} -gt 1 ]; do :; done
printf 'HTTP/1.0 200 OK\r\n\r\n%s\n'
END
while nc -l -p 8080 -e sh /tmp/answer; do :; done`, text)
	p, err := v.Start(limited(t), vm.Command{Line: line})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill(limited(t))
		_, _ = p.Wait(limited(t))
	})
	contains(t, v, "for i in $(seq 200); do netstat -ltn | grep :8080 && exit; sleep 0.05; done; exit 1", ":8080")
}

func get(t *testing.T, at net.Addr) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	response, err := client.Get("http://" + at.String() + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestNoNetwork(t *testing.T) {
	v := ownVM(t, func(c *vm.Config) { c.Network.Disabled = true })
	wantOutput(t, v, "ls /sys/class/net", "lo\n")
	if _, err := v.SetPolicy(t.Context(), egress.Policy{}); err == nil {
		t.Error("a policy was set")
	}
	if _, err := v.Forward(limited(t), nat.Forward{GuestPort: 80}); err == nil {
		t.Error("a port was forwarded")
	}
	if d := must(v.Explain(t.Context(), "example.com", 443, "tcp")); d.Allowed || len(must(v.Flows(limited(t)))) > 0 || len(must(v.Denials(t.Context()))) > 0 {
		t.Errorf("%+v", d)
	}
	pair(t, v, listener(t, v, "127.0.0.1:0")) // its loopback it has all the same, with its limit
	want := nat.LimitUse{Limit: "local connections", Used: 2, Maximum: reach.MaxConnections}
	got := must(v.NetworkStats(t.Context())).Limits
	if len(got) != 2 || got[0].Limit != nat.MemoryLimit || got[0].Maximum != vm.DefaultHostMemory || got[1] != want {
		t.Errorf("limits %+v, want %s and %+v", got, nat.MemoryLimit, want)
	}
}
