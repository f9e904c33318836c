package reach

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"agentvm/egress"
	"agentvm/nat"
	"agentvm/vm"
)

const port = 8080

func ports(list ...uint16) (ranges []vm.PortRange) {
	for _, p := range list {
		ranges = append(ranges, vm.PortRange{First: p, Last: p})
	}
	return ranges
}

func rule(t *testing.T, text string) egress.Rule {
	t.Helper()
	r, err := egress.ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The 8 rows of three controls on a real VM: permission policy (network.listen and network.connect permit the port, or neither does),
// loopback confinement (the port is exempt, or not), egress allowlist (names the port, or not).
func TestThreeControls(t *testing.T) {
	hostService(t, port)
	type row struct{ permitted, exempt, allowed bool }
	type ways struct{ owner, fetch, outside, outward bool }
	table := map[row]ways{
		{false, false, false}: {},
		{false, false, true}:  {},
		{false, true, false}:  {},
		{false, true, true}:   {},
		{true, false, false}:  {owner: true, fetch: true},
		{true, false, true}:   {owner: true, fetch: true, outward: true},
		{true, true, false}:   {owner: true, fetch: true, outside: true},
		{true, true, true}:    {owner: true, fetch: true, outside: true, outward: true},
	}
	for r, want := range table {
		t.Run(fmt.Sprintf("%+v", r), func(t *testing.T) {
			world := newOutside(t)
			c := vm.Config{Network: world.network()}
			c.Network.Policy.Allow = []egress.Rule{rule(t, "198.51.101.1")}
			if !r.permitted {
				c.Access.Listen.Deny, c.Access.Connect.Deny = ports(port), ports(port)
			}
			if r.exempt {
				c.Access.LoopbackExemptPorts = []uint16{port}
			}
			if r.allowed {
				c.Network.Policy.Allow = []egress.Rule{rule(t, public.String())}
			}
			g := boot(t, c)
			if r.permitted {
				g.program(port, "the guest")
			}
			got := ways{outward: g.run("wget -T 20 -qO - http://203.0.112.1:8080/").ExitCode == 0}
			at := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			errs := map[string]error{}
			for name, dial := range map[string]func() (net.Conn, error){
				"owner":   func() (net.Conn, error) { return g.DialContext(limited(t), "tcp", at) },
				"fetch":   func() (net.Conn, error) { return g.DialFetch(limited(t), "tcp", at) },
				"outside": func() (net.Conn, error) { return g.DialFromOutside(limited(t), "tcp", at) },
			} {
				conn, err := dial()
				if errs[name] = err; err == nil {
					conn.Close()
				}
				if err != nil && !errors.Is(err, syscall.EACCES) {
					t.Errorf("%s: %v", name, err)
				}
			}
			got.owner, got.fetch, got.outside = errs["owner"] == nil, errs["fetch"] == nil, errs["outside"] == nil
			if got != want {
				t.Errorf("%+v, want %+v (%v)", got, want, errs)
			}
			world.mu.Lock()
			defer world.mu.Unlock()
			if (len(world.dialed) > 0) != want.outward {
				t.Errorf("dialled %v", world.dialed)
			}
		})
	}
}

// What network.connect denies the guest is refused at once, is recorded with its own reason, and can be read and explained.
func TestConnectPolicyOfTheGuest(t *testing.T) {
	world := newOutside(t)
	g := boot(t, vm.Config{Network: world.network(), Access: vm.Access{Connect: vm.PortPolicy{Allow: ports(80), Deny: ports(81)}}})
	if r := g.run("wget -T 20 -qO - http://203.0.112.1/"); r.ExitCode != 0 || string(r.Stdout) != "the world\n" {
		t.Errorf("a permitted port: %+v", r)
	}
	const message = "blocked by network.connect policy"
	for _, p := range []uint16{81, 8080} {
		r := g.run(fmt.Sprintf("wget -T 20 -qO - http://203.0.112.1:%d/", p))
		if r.ExitCode == 0 || !strings.Contains(string(r.Stderr), "refused") {
			t.Errorf("port %d: %+v", p, r)
		}
		e := world.event(g, "denial", func(e egress.Event) bool { return e.Verdict == egress.VerdictDeny && e.Destination.Port() == p })
		if e.Reason != egress.ReasonConnect || e.Message != message || e.Destination.Addr() != public {
			t.Errorf("event %+v", e)
		}
		if d := must(g.Explain(t.Context(), public.String(), p, "tcp")); d.Allowed || d.Reason != egress.ReasonConnect || d.Message != message {
			t.Errorf("explained as %+v", d)
		}
		g.eventually("the guest can read it", func() bool {
			lines := string(g.run("cat /run/agentvm/denials").Stdout)
			return strings.Contains(lines, message) && strings.Contains(lines, fmt.Sprintf("203.0.112.1:%d", p))
		})
	}
	if r := g.run("ping -c 1 -W 20 192.168.127.1"); r.ExitCode != 0 {
		t.Errorf("the gateway: %+v", r)
	}
	// Inside of the VM nothing is asked: its own programs talk with each other.
	g.program(port, "the guest")
	if r := g.run("wget -qO - http://127.0.0.1:8080/"); string(r.Stdout) != "the guest\n" {
		t.Errorf("inside: %+v", r)
	}
}

// A port forward exempts its port by naming it; one that network.listen denies there is not.
func TestForwardsAndTheControls(t *testing.T) {
	world := newOutside(t)
	c := vm.Config{Network: world.network(), Access: vm.Access{Listen: vm.PortPolicy{Deny: ports(81)}}}
	c.Network.Forwards = []nat.Forward{{GuestPort: port}}
	g := boot(t, c)
	g.program(port, "the guest")
	if text, err := get(t, http.DefaultClient, "http://"+must(g.Forwards(t.Context()))[0].String()+"/"); err != nil || text != "the guest" {
		t.Errorf("%q, %v", text, err)
	}
	http.DefaultClient.CloseIdleConnections()
	if c, err := g.DialFromOutside(limited(t), "tcp", "localhost:8080"); err != nil {
		t.Errorf("a port that is named: %v", err)
	} else {
		c.Close()
	}
	var refusal *vm.AccessError
	at, err := g.Forward(limited(t), nat.Forward{GuestPort: 81})
	if at != nil || !errors.As(err, &refusal) || refusal.Message != "blocked by network.listen policy" || !errors.Is(err, syscall.EACCES) {
		t.Errorf("%v, %v", at, err)
	}
	c.Network.Forwards = append(c.Network.Forwards, nat.Forward{GuestPort: 81})
	if _, err := tryBoot(t, c); !errors.As(err, &refusal) || !strings.Contains(err.Error(), "port 81 of the guest: blocked by network.listen policy") {
		t.Errorf("a VM with such a forward: %v", err)
	}
	if d := must(g.Explain(t.Context(), public.String(), port, "tcp")); !d.Allowed {
		t.Errorf("%+v", d)
	}
}

// Two VMs have a listener at the same port each, and neither reaches the other's but through what is exempt.
func TestTwoVMsWithTheSamePort(t *testing.T) {
	hostService(t, port)
	a := boot(t, vm.Config{Access: vm.Access{LoopbackExemptPorts: []uint16{port}}})
	b := boot(t, vm.Config{})
	stop := a.program(port, "this is a")
	b.program(port, "this is b")
	for name, g := range map[string]*guest{"a": a, "b": b} {
		if text, err := g.fetch("localhost", port); err != nil || text != "this is "+name {
			t.Errorf("fetch of %s: %q, %v", name, text, err)
		}
		if r := g.run("wget -qO - http://192.168.127.3:8080/; wget -qO - http://127.0.0.1:8080/"); string(r.Stdout) != "this is "+name+"\nthis is "+name+"\n" {
			t.Errorf("inside of %s: %+v", name, r)
		}
	}
	// b's programs reach a at port 9000 of their own loopback, by the hands of the host.
	bridge := func(from, to *guest, p int) string {
		l, err := from.Listen(limited(t), "tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			done <- carry(l, func() (net.Conn, error) { return to.DialFromOutside(limited(t), "tcp", "127.0.0.1:8080") })
		}()
		r := from.run(fmt.Sprintf("wget -T 60 -qO - http://127.0.0.1:%d/", p))
		l.Close()
		if err := <-done; err != nil {
			return err.Error()
		}
		return string(r.Stdout)
	}
	if got := bridge(b, a, 9000); got != "this is a\n" {
		t.Errorf("from b to a: %q", got)
	}
	if got := bridge(a, b, 9001); !strings.Contains(got, "port 8080 is not exempt") {
		t.Errorf("from a to b: %q", got)
	}
	stop()
	a.eventually("nothing listens any more", func() bool { return !a.listens(port) })
	if _, err := a.fetch("localhost", port); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a, whose program has ended: %v", err)
	}
	if text, err := b.fetch("localhost", port); err != nil || text != "this is b" {
		t.Errorf("b: %q, %v", text, err)
	}
}

// Programs of the guest cannot bind what network.listen denies; clients, datagrams and other ports are as ever.
func TestListenPolicyInTheGuest(t *testing.T) {
	g := boot(t, vm.Config{Access: vm.Access{Listen: vm.PortPolicy{Allow: []vm.PortRange{{First: 3000, Last: 3999}}, Deny: ports(3500)}}})
	for _, p := range []int{port, 1, 2999, 3500, 4000, 65535} {
		r := g.run(fmt.Sprintf("timeout 20 nc -l -p %d </dev/null", p))
		if r.ExitCode == 0 || !strings.Contains(string(r.Stderr), "Permission denied") {
			t.Errorf("port %d: exit %d, %s", p, r.ExitCode, r.Stderr)
		}
	}
	g.program(3000, "the guest")
	g.program(3999, "the guest")
	if text, err := g.fetch("localhost", 3999); err != nil || text != "the guest" {
		t.Errorf("%q, %v", text, err)
	}
	if r := g.run("wget -qO - http://127.0.0.1:3000/"); string(r.Stdout) != "the guest\n" {
		t.Errorf("a client: %+v", r)
	}
	if l, err := g.Listen(limited(t), "tcp", "127.0.0.1:3500"); !errors.Is(err, syscall.EACCES) {
		t.Errorf("the host's listener: %v, %v", l, err)
	}
	l, err := g.Listen(limited(t), "tcp", "127.0.0.1:3001")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// A fork with a stricter policy has its listeners closed; one with a weaker policy may listen again, and their VM notices nothing.
func TestListenPolicyOfForks(t *testing.T) {
	g := boot(t, vm.Config{Access: vm.Access{Listen: vm.PortPolicy{Deny: ports(81)}}})
	g.program(port, "the guest")
	g.program(82, "the guest")
	forks, err := g.Fork(limited(t), 2, vm.ForkOptions{KeepPrograms: true, Configure: func(i int, c *vm.Config) {
		c.Access.Listen.Deny = [][]vm.PortRange{ports(port), nil}[i]
	}})
	if err != nil {
		t.Fatal(err)
	}
	strict, free := &guest{forks[0], t}, &guest{forks[1], t}
	for _, f := range []*guest{strict, free} {
		t.Cleanup(func() { f.Close() })
	}
	if r := strict.run("netstat -ltn"); strings.Contains(string(r.Stdout), ":8080 ") || !strings.Contains(string(r.Stdout), ":82 ") {
		t.Errorf("the strict fork listens at %s", r.Stdout)
	}
	if _, err := strict.fetch("localhost", port); !errors.Is(err, syscall.EACCES) {
		t.Errorf("the strict fork: %v", err)
	}
	if text, err := strict.fetch("localhost", 82); err != nil || text != "the guest" {
		t.Errorf("the strict fork's other program: %q, %v", text, err)
	}
	strict.program(81, "now")
	free.program(81, "free")
	for _, f := range []*guest{free, g} {
		if text, err := f.fetch("localhost", port); err != nil || text != "the guest" {
			t.Errorf("%q, %v", text, err)
		}
	}
	if r := g.run("timeout 20 nc -l -p 81 </dev/null"); !strings.Contains(string(r.Stderr), "Permission denied") {
		t.Errorf("the VM itself: %+v", r)
	}
}
