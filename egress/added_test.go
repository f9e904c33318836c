package egress

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParseHost(t *testing.T) {
	for _, c := range []struct{ in, out, problem string }{
		{in: "db:192.0.2.7", out: "db:192.0.2.7"},
		{in: "DB.Test.=192.0.2.7", out: "db.test:192.0.2.7"},
		{in: "bücher.test:[2001:db8::1]", out: "xn--bcher-kva.test:2001:db8::1"},
		{in: "db:2001:db8::1", out: "db:2001:db8::1"},
		{in: "db:::ffff:192.0.2.7", out: "db:192.0.2.7"},
		{in: "host.docker.internal:host-gateway", out: "host.docker.internal:host-gateway"},
		{in: "", problem: "want NAME:ADDRESS"},
		{in: "db", problem: "want NAME:ADDRESS"},
		{in: ":192.0.2.7", problem: "want NAME:ADDRESS"},
		{in: "db:", problem: `"" is no IP address`},
		{in: "db:192.0.2", problem: "is no IP address"},
		{in: "192.0.2.7:db", problem: "the name comes first"},
		{in: "a b:192.0.2.7", problem: "not a name"},
		{in: "*.test:192.0.2.7", problem: "not a name"},
		{in: strings.Repeat("a.", 200) + "b:192.0.2.7", problem: "not a name"},
		{in: "localhost:192.0.2.7", problem: "the guest itself"},
		{in: "x.localhost:192.0.2.7", problem: "the guest itself"},
		{in: "host.agentvm.internal:192.0.2.7", problem: "the VM's own"},
		{in: "db:fe80::1%eth0", problem: "zone"},
		{in: "db:0.0.0.0", problem: "no address of a host"},
		{in: "db:224.0.0.1", problem: "no address of a host"},
	} {
		h, err := ParseHost(c.in)
		if c.problem != "" {
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%q: %v, want %q", c.in, err, c.problem)
			}
			continue
		}
		if err != nil || h.String() != c.out {
			t.Errorf("%q: %v, %v", c.in, h, err)
			continue
		}
		if again, err := ParseHost(h.String()); err != nil || again != h {
			t.Errorf("%q read again: %v, %v", h, again, err)
		}
	}
}

// TestAddedHost: a rule for an added name holds for its address without a look-up, and nothing else is opened by it.
func TestAddedHost(t *testing.T) {
	public, private := netip.MustParseAddr("203.0.112.1"), netip.MustParseAddr("10.0.0.5")
	w := newWorld(t, Config{
		Policy: Policy{Allow: rules(t, "api.test:443", "db.test:5432")},
		Hosts:  map[string][]netip.Addr{"api.test": {public}, "db.test": {private}},
	})
	echo := w.listen("203.0.112.1:443")
	go func() {
		if c, err := echo.Accept(); err == nil {
			c.Close()
		}
	}()
	c, err := w.dialTCP("203.0.112.1:443")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	_, err = w.dialTCP("203.0.112.1:80")
	denied(t, err, ReasonNotAllowed)
	_, err = w.dialTCP("10.0.0.5:5432")
	denied(t, err, ReasonRestricted)
	if d := w.gate.Explain("api.test", 443, TCP); !d.Allowed {
		t.Errorf("%+v", d)
	}
	if d := w.gate.Explain("db.test", 5432, TCP); d.Allowed || d.Reason != ReasonRestricted {
		t.Errorf("%+v", d)
	}
}
