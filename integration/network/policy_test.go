package network

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentvm/egress"
	"agentvm/vm"
)

func rules(t *testing.T, texts ...string) (list []egress.Rule) {
	t.Helper()
	for _, text := range texts {
		r, err := egress.ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

// TestPublic reaches a public name and, under the same policy, nothing private.
func TestPublic(t *testing.T) {
	web := serveHTTP(t, files)
	g := boot(t, vm.Network{})
	g.outer.serve("tcp", "198.51.101.7:80", web.Listener.Addr().String())
	g.outer.names.set("www.example. A", "www.example. 60 IN CNAME cdn.example.\ncdn.example. 60 IN A 198.51.101.7")
	g.outer.names.set("inside.example. A", "inside.example. 60 IN A 10.0.0.1")
	g.outer.names.set("chain.example. A", "chain.example. 60 IN CNAME private.example.\nprivate.example. 60 IN A 192.168.1.1")
	g.want("wget -qO- http://www.example/5000 | sha256sum", sum(data(5000))+"  -")
	g.want("wget -qO- http://198.51.101.7/5000 | sha256sum", sum(data(5000))+"  -") // public mode asks for no name
	for _, name := range []string{"inside.example", "chain.example"} {
		g.fails("timeout 60 wget -qO- http://"+name+"/", "bad address")
	}
	for _, address := range []string{"10.0.0.1", "192.168.1.1", "169.254.169.254", "172.17.0.1", "100.64.0.1", "198.18.0.1", "240.0.0.1"} {
		g.fails("timeout 60 wget -qO- http://"+address+"/", "refused")
	}
	if got := g.outer.dials(); !slices.Equal(slices.Compact(got), []string{"tcp 198.51.101.7:80"}) {
		t.Errorf("dialled %q", got)
	}
	e := g.events.find(t, "the denial of 169.254.169.254", func(e egress.Event) bool {
		return strings.HasPrefix(fmt.Sprint(e.Destination), "169.254.169.254")
	})
	if e.Reason == "" || e.Message == "" {
		t.Errorf("the denial says too little: %+v", e)
	}
}

// TestAllowPrivate reaches a private network that a rule names, by address and by name, and no other.
func TestAllowPrivate(t *testing.T) {
	web := serveHTTP(t, files)
	g := boot(t, vm.Network{Policy: egress.Policy{AllowPrivate: rules(t, "10.1.0.0/16:80")}})
	for _, server := range []string{"10.1.0.7:80", "10.1.0.7:81", "10.2.0.7:80", "198.51.101.7:80"} {
		g.outer.serve("tcp", server, web.Listener.Addr().String())
	}
	g.outer.names.set("inside.example. A", "inside.example. 60 IN A 10.1.0.7")
	g.want("wget -qO- http://10.1.0.7/5000 | sha256sum", sum(data(5000))+"  -")
	g.want("wget -qO- http://inside.example/5000 | sha256sum", sum(data(5000))+"  -")
	g.want("wget -qO- http://198.51.101.7/5000 | sha256sum", sum(data(5000))+"  -")
	g.fails("timeout 60 wget -qO- http://10.1.0.7:81/", "refused")
	g.fails("timeout 60 wget -qO- http://10.2.0.7/", "refused")
	e := g.events.find(t, "the connection to 10.1.0.7", func(e egress.Event) bool { return fmt.Sprint(e.Destination) == "10.1.0.7:80" })
	if e.Reason != egress.ReasonAllowRule || !strings.Contains(e.Message, "by the allow-private rule 10.1.0.0/16:80") {
		t.Errorf("%+v", e)
	}
}

// TestAllowlist reaches what is named and nothing else, by whatever way a program tries.
func TestAllowlist(t *testing.T) {
	web := serveHTTP(t, files)
	g := boot(t, vm.Network{Policy: egress.Policy{Allow: rules(t, "good.example:80")}})
	for _, address := range []string{"198.51.101.7", "198.51.101.8"} {
		for _, p := range []string{"80", "443", "853"} {
			g.outer.serve("tcp", address+":"+p, web.Listener.Addr().String())
		}
	}
	g.outer.names.set("good.example. A", "good.example. 60 IN A 198.51.101.7")
	g.outer.names.set("evil.example. A", "evil.example. 60 IN A 198.51.101.8")
	g.fails("timeout 60 wget -qO- http://198.51.101.7/5", "refused") // not looked up yet: a bare address
	g.want("wget -qO- http://good.example/5000 | sha256sum", sum(data(5000))+"  -")
	g.fails("timeout 60 wget -qO- http://good.example:443/5", "refused")
	g.fails("timeout 60 wget -qO- http://evil.example/5", "bad address")
	g.fails("timeout 60 wget -qO- http://198.51.101.8/5", "refused")
	g.fails("timeout 60 nc 198.51.101.8 853 </dev/null; [ $? = 0 ] || { echo refused >&2; false; }", "refused") // DNS over TLS
	if asked := g.outer.names.queries(); asked == 0 {
		t.Error("the name server was never asked")
	}
	g.outer.names.mu.Lock()
	for _, q := range g.outer.names.asked {
		if strings.Contains(q, "evil") {
			t.Errorf("a name outside the allowlist was asked for: %s", q)
		}
	}
	g.outer.names.mu.Unlock()
	g.want("for i in $(seq 100); do grep -q evil.example /run/agentvm/denials && echo yes && break; sleep 0.1; done", "yes")
	g.want("for i in $(seq 100); do wget -qO- http://agentvm.internal/denials | grep -q 198.51.101.8 && echo yes && break; sleep 0.1; done", "yes")
}

// TestRebinding uses a name server that answers with a public address first and with a private one afterwards.
func TestRebinding(t *testing.T) {
	web := serveHTTP(t, files)
	g := boot(t, vm.Network{})
	g.outer.serve("tcp", "198.51.101.7:80", web.Listener.Addr().String())
	g.outer.names.set("flip.example. A", "flip.example. 0 IN A 198.51.101.7", "flip.example. 0 IN A 127.0.0.1")
	g.outer.names.set("flip.example. AAAA", "flip.example. 0 IN AAAA ::1")
	g.want("wget -qO- http://flip.example/5 | wc -c", "5")
	g.fails("timeout 60 wget -qO- http://flip.example/5", "bad address")
	if got := g.outer.dials(); !slices.Equal(got, []string{"tcp 198.51.101.7:80"}) {
		t.Errorf("dialled %q", got)
	}
}

// TestNone: a guest without a network is cut off, none of its packets reaches a socket of the host.
func TestNone(t *testing.T) {
	g := boot(t, vm.Network{Policy: egress.Policy{Mode: "none"}})
	g.fails("timeout 60 wget -qO- http://198.51.101.7/", "refused")
	g.fails("timeout 60 wget -qO- http://www.example/", "bad address")
	g.want("ping -c 1 -W 1 198.51.101.7 >/dev/null; grep -o '^IcmpMsg: InType3' /proc/net/snmp", "IcmpMsg: InType3") // BusyBox waits all the same
	g.run("echo x | timeout 2 nc -u -w 1 198.51.101.7 443; nslookup www.example 198.51.101.53; true")
	if n := g.outer.all(); n != 0 {
		t.Errorf("%d sockets were opened: %q", n, g.outer.dialled)
	}
}

// TestPolicyChangesLive cuts a download that the new policy does not allow.
func TestPolicyChangesLive(t *testing.T) {
	web := serveHTTP(t, files)
	g := boot(t, vm.Network{})
	g.outer.serve("tcp", "198.51.101.7:80", web.Listener.Addr().String())
	g.want("wget -qO- http://198.51.101.7/5 | wc -c", "5")
	p, err := g.Start(limited(t), vm.Command{Line: "wget -qO- http://198.51.101.7/500000000 | (sleep 100; cat >/dev/null)"})
	if err != nil {
		t.Fatal(err)
	}
	g.events.find(t, "the download", func(e egress.Event) bool { return e.Verdict == "allow" && e.Kind == "tcp" })
	if _, err := g.SetPolicy(t.Context(), egress.Policy{Mode: "none"}); err != nil {
		t.Fatal(err)
	}
	g.fails("timeout 60 wget -qO- http://198.51.101.7/5", "refused")
	for _, f := range must(g.Flows(limited(t))) {
		if strings.HasPrefix(f.Destination.String(), "198.51.101.7") && f.State == "ESTABLISHED" {
			t.Errorf("the flow lives on: %+v", f)
		}
	}
	_ = p.Kill(limited(t))
	if _, err := p.Wait(limited(t)); err != nil {
		t.Fatal(err)
	}
}
