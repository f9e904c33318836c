package vm_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"agentvm/egress"
	"agentvm/vm"
)

// TestServerNames has two names at one address, of which one is allowed by its name, and a third that only this VM knows.
func TestServerNames(t *testing.T) {
	w := newWorld(t)
	var requests atomic.Int64
	w.serve(publicServer, func(rw http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		fmt.Fprintf(rw, "hello from %s\n", r.Host)
	})
	v := ownVM(t, w.network(func(n *vm.Network) {
		n.Policy.AllowSNI = rules(t, "good.example.com:80", "added.test")
		n.Hosts = []egress.Host{{Name: "added.test", Addr: netip.MustParseAddr("203.0.112.10")}}
		n.Resolvers = []netip.AddrPort{w.resolver(map[string]string{"good.example.com": "203.0.112.10", "evil.example.com": "203.0.112.10"})}
	}))
	contains(t, v, "wget -qO- http://good.example.com/; wget -qO- http://added.test/", "hello from good.example.com", "hello from added.test")
	fails(t, v, "wget -qO- http://evil.example.com/", "bad address")
	if n := requests.Load(); n != 2 {
		t.Errorf("%d requests", n)
	}
	r := mustRun(t, v, vm.Command{Line: `printf 'GET / HTTP/1.0\r\nHost: evil.example.com\r\n\r\n' | nc -w 30 good.example.com 80`, Timeout: time.Minute})
	if len(r.Stdout) > 0 || requests.Load() != 2 {
		t.Errorf("a neighbour has answered: %q, %d requests", r.Stdout, requests.Load())
	}
	e := w.event(t, "a denial", func(e egress.Event) bool { return e.Reason == egress.ReasonServerName })
	if e.Verdict != egress.VerdictDeny || e.Target() != "good.example.com:80" {
		t.Errorf("%+v", e)
	}
}
