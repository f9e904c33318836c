package network

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentvm/egress"
	"agentvm/vm"
)

// learnable is a command that uses the network in every way that rules know, and fails when any of it is denied.
const learnable = heard + `set -e
wget -qO- http://www.example/5 >/dev/null
wget -qO- http://www.example:8080/5 >/dev/null
wget -qO- http://alias.example/5 >/dev/null # the same address
wget -qO- http://a.cdn.example/5 >/dev/null
wget -qO- http://b.cdn.example/5 >/dev/null
wget -qO- http://198.51.101.9/5 >/dev/null
nslookup mail.example | grep -q 198.51.101.10
wget -qO- http://host.agentvm.internal:%d/5 >/dev/null
heard 198.51.101.11 7 >/dev/null
`

// learnableWorld makes that work.
func learnableWorld(t *testing.T, g *guest) {
	web := serveHTTP(t, files).Listener.Addr().String()
	for _, at := range []string{"198.51.101.7:80", "198.51.101.7:8080", "198.51.101.8:80", "198.51.101.9:80"} {
		g.outer.serve("tcp", at, web)
	}
	g.outer.serve("udp", "198.51.101.11:7", serveUDPEcho(t).String())
	for name, at := range map[string]string{
		"www.example.": "198.51.101.7", "alias.example.": "198.51.101.7", "a.cdn.example.": "198.51.101.8", "b.cdn.example.": "198.51.101.8",
		"mail.example.": "198.51.101.10",
	} {
		g.outer.names.set(name+" A", name+" 60 IN A "+at)
	}
}

// TestLearn learns a policy from a command in one VM and proves it in another: with it the same command passes, and without any one of
// its rules something is denied.
func TestLearn(t *testing.T) {
	hostPort := port(t, serveHTTP(t, files).Listener.Addr())
	command := fmt.Sprintf(learnable, hostPort)
	permissive := boot(t, vm.Network{HostPorts: []uint16{hostPort}})
	permissive.alpineOnly()
	learnableWorld(t, permissive)
	permissive.want(command, "")
	if err := permissive.Close(); err != nil { // all events have come
		t.Fatal(err)
	}
	var learner egress.Learner
	for _, e := range permissive.events.list {
		learner.Add(e)
	}
	learned := learner.Learned(egress.LearnOptions{})
	const want = "mode allowlist; allow 198.51.101.11:7/udp, 198.51.101.9:80/tcp, a.cdn.example:80/tcp, alias.example:80/tcp, " +
		"b.cdn.example:80/tcp, mail.example:*/icmp, www.example:80,8080/tcp"
	if got := learned.Policy.String(); got != want || !slices.Equal(learned.HostPorts, []uint16{hostPort}) || learned.Lost+uint64(learned.Missed) > 0 {
		t.Errorf("learned %s and %v; want %s and %d", got, learned.HostPorts, want, hostPort)
	}
	g := boot(t, vm.Network{HostPorts: learned.HostPorts, Policy: learned.Policy})
	learnableWorld(t, g)
	g.want(command, "")
	if list := must(g.Denials(t.Context())); len(list) > 0 {
		t.Errorf("denied by what was learned: %+v", list)
	}
	for i, rule := range learned.Policy.Allow {
		less := learned.Policy
		less.Allow = slices.Delete(slices.Clone(less.Allow), i, i+1)
		denied := len(must(g.Denials(t.Context())))
		if _, err := g.SetPolicy(t.Context(), less); err != nil {
			t.Fatal(err)
		}
		if r := g.run(command); r.ExitCode == 0 {
			t.Errorf("the command passes without %s", rule)
		}
		g.events.find(t, "a denial without "+rule.String(), func(egress.Event) bool { return len(must(g.Denials(t.Context()))) > denied })
	}
	if _, err := g.SetPolicy(t.Context(), learner.Learned(egress.LearnOptions{Wildcards: true}).Policy); err != nil {
		t.Fatal(err)
	}
	if p := must(g.Policy(t.Context())).String(); !strings.Contains(p, "allow *.cdn.example:80/tcp") || strings.Contains(p, "a.cdn") {
		t.Errorf("with wildcards: %s", p)
	}
	g.want(command, "")
}

// correlate connects from a port of its own choosing, and looks for that very connection among the denials: by its port, its
// destination and its process, in the file and in the JSON. A busy host may miss the process's name, so it may try again.
const correlate = `cd /tmp
for port in 40123 40124 40125 40126 40127 40128 40129 40130; do
	nc -p $port 198.51.101.8 853 </dev/null & pid=$!
	wait $pid && exit 1 # it is to be denied
	for i in $(seq 50); do
		line=$(grep " source=192.168.127.3:$port destination=198.51.101.8:853 " /run/agentvm/denials) && break
		sleep 0.1
	done
	echo "$line" | grep -q "^time=20[0-9T:.-]*Z verdict=deny kind=tcp source=.* process=[a-z]*\[$pid\] flow=[0-9]* reason=not-in-allowlist message=\".*\"$" || continue
	wget -qO- http://agentvm.internal/denials.json | grep -q "\"source\":\"192.168.127.3:$port\",\"destination\":\"198.51.101.8:853\"" || continue
	wget -qO- http://agentvm.internal/denials | grep -qF "$line" && echo found && exit 0
done
cat /run/agentvm/denials >&2
exit 2`

// TestDenialIsFoundByItsConnection is a tool in the guest that ties a denial to its own connection.
func TestDenialIsFoundByItsConnection(t *testing.T) {
	g := boot(t, vm.Network{Policy: egress.Policy{Allow: rules(t, "good.example:80")}})
	g.alpineOnly()
	g.want(correlate, "found")
	g.want("wget -qO- http://agentvm.internal/limits | grep -c '^tcp flows  *[0-9]* *1024  *connections'", "1")
	g.want("wget -qO- http://agentvm.internal/limits.json | grep -c '\"name\":\"local connections\",\"unit\":\"connections\",\"maximum\":256'", "1")
	g.want("wget -qSO- http://agentvm.internal/nothing 2>&1 | grep -q '404 Not Found' && echo yes", "yes")
}
