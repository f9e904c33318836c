package dns

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseResolvConf(t *testing.T) {
	var many strings.Builder
	for i := range 20 {
		fmt.Fprintf(&many, "nameserver 192.0.2.%d\n", i)
	}
	for _, c := range []struct{ name, text, servers, search string }{
		{"empty", "", "[]", "[]"},
		{"usual", "# written by hand\nnameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch example.com corp.example.\noptions ndots:2\n",
			"[192.0.2.1:53 192.0.2.2:53]", "[example.com corp.example]"},
		{"loopback", "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n", "[127.0.0.53:53]", "[]"},
		{"IPv6", "nameserver 2001:db8::1\nnameserver fe80::1%eth0\nnameserver ::ffff:192.0.2.1", "[[2001:db8::1]:53 [fe80::1%eth0]:53 192.0.2.1:53]", "[]"},
		{"tabs and comments behind", "nameserver\t192.0.2.1 # the router\r\n", "[192.0.2.1:53]", "[]"},
		{"the last of search and domain", "search a.example b.example\ndomain c.example d.example\n", "[]", "[c.example]"},
		{"search after domain", "domain c.example\nsearch A.example b.example a.EXAMPLE\n", "[]", "[a.example b.example]"},
		{"nonsense", "nameserver\nnameserver here\nnameserver 0.0.0.0\nnameserver 224.0.0.1\nsearch a_b.example -a $(x) " + strings.Repeat("a", 64) + "\n", "[]", "[a_b.example]"},
		{"twice", "nameserver 192.0.2.1\nnameserver 192.0.2.1\n", "[192.0.2.1:53]", "[]"},
		{"many", many.String(), "[192.0.2.0:53 192.0.2.1:53 192.0.2.2:53 192.0.2.3:53 192.0.2.4:53 192.0.2.5:53 192.0.2.6:53 192.0.2.7:53]", "[]"},
	} {
		servers, search, err := parseResolvConf(strings.NewReader(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff([]string{c.servers, c.search}, []string{fmt.Sprint(servers), fmt.Sprint(search)}); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.name, diff)
		}
	}
	if _, _, err := parseResolvConf(strings.NewReader(strings.Repeat("x", 1<<20))); err == nil {
		t.Error("a line of a mebibyte is no error")
	}
}

// TestSystemResolvers: whatever this host has, there are servers or a reason that says what to do.
func TestSystemResolvers(t *testing.T) {
	servers, search, err := SystemResolvers()
	t.Log(servers, search, err)
	if (err == nil) != (len(servers) > 0) {
		t.Errorf("servers %v, error %v", servers, err)
	}
	if err != nil && !strings.Contains(err.Error(), "name ") {
		t.Errorf("%v does not say what to do", err)
	}
	for _, s := range servers {
		if !s.IsValid() || s.Port() != 53 {
			t.Errorf("server %v", s)
		}
	}
}
