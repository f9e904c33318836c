package nat

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseForward(t *testing.T) {
	tests := map[string]Forward{
		"8080:80":                        {Protocol: "tcp", Listen: netip.AddrPortFrom(netip.Addr{}, 8080), GuestPort: 80},
		"8080:80/tcp":                    {Protocol: "tcp", Listen: netip.AddrPortFrom(netip.Addr{}, 8080), GuestPort: 80},
		"5353:53/udp":                    {Protocol: "udp", Listen: netip.AddrPortFrom(netip.Addr{}, 5353), GuestPort: 53},
		"0:80":                           {Protocol: "tcp", GuestPort: 80},
		"65535:65535":                    {Protocol: "tcp", Listen: netip.AddrPortFrom(netip.Addr{}, 65535), GuestPort: 65535},
		"127.0.0.1:8080:80/udp":          {Protocol: "udp", Listen: netip.MustParseAddrPort("127.0.0.1:8080"), GuestPort: 80},
		"0.0.0.0:8080:80":                {Protocol: "tcp", Listen: netip.MustParseAddrPort("0.0.0.0:8080"), GuestPort: 80},
		"[::1]:8080:80":                  {Protocol: "tcp", Listen: netip.MustParseAddrPort("[::1]:8080"), GuestPort: 80},
		"[::]:0:80/udp":                  {Protocol: "udp", Listen: netip.MustParseAddrPort("[::]:0"), GuestPort: 80},
		"[fe80::1%eth0]:8080:80":         {Protocol: "tcp", Listen: netip.MustParseAddrPort("[fe80::1%eth0]:8080"), GuestPort: 80},
		"8080:localhost:80":              {Protocol: "tcp", Listen: netip.AddrPortFrom(netip.Addr{}, 8080), GuestPort: 80, Localhost: true},
		"[::1]:0:localhost:80/tcp":       {Protocol: "tcp", Listen: netip.MustParseAddrPort("[::1]:0"), GuestPort: 80, Localhost: true},
		"[::ffff:127.0.0.1]:8080:80/udp": {Protocol: "udp", Listen: netip.MustParseAddrPort("127.0.0.1:8080"), GuestPort: 80},
	}
	for text, want := range tests {
		t.Run(text, func(t *testing.T) {
			got, err := ParseForward(text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, compareAddresses); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

var compareAddresses = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })

func TestParseForwardErrors(t *testing.T) {
	tests := []struct {
		text    string
		column  int
		problem string // a part of it
	}{
		{"", 1, "as in 8080:80"},
		{"80", 3, "as in 80:80"},
		{"web", 4, "as in 8080:80"},
		{":80", 1, "the host's port is missing"},
		{"8080:", 6, "the guest's port is missing"},
		{"8080:0", 6, "cannot be 0"},
		{"65536:80", 1, "the host's port is 65536; the largest is 65535"},
		{"8080:99999999999999999999", 6, "the largest is 65535"},
		{"8o80:80", 1, `the host's port is "8o80"`},
		{"8080:-1", 6, `the guest's port is "-1"`},
		{"+80:80", 1, `the host's port is "+80"`},
		{"8_0:80", 1, `the host's port is "8_0"`},
		{" 8080:80", 1, `the host's port is " 8080"`},
		{"8080:80/", 9, `the protocol is ""; use tcp or udp`},
		{"8080:80/sctp", 9, `the protocol is "sctp"`},
		{"8080:80/UDP", 9, "use tcp or udp"},
		{"8080:80/tcp/udp", 6, `the guest's port is "80/tcp"`},
		{"localhost:8080:80", 1, `"localhost" is not an IP address`},
		{"8080:localhost:x", 16, `the guest's port is "x"`},
		{"8080:localhost:", 16, "the guest's port is missing"},
		{"localhost:80", 1, `the host's port is "localhost"`},
		{"x:localhost:80", 1, `the host's port is "x"`},
		{"8080:localhost:53/udp", 6, "only TCP reaches localhost"},
		{"8080:127.0.0.1:80", 6, "127.0.0.1 of the guest is written localhost; write 8080:localhost:80"},
		{"8080:10.0.0.1:80", 1, `"8080" is not an IP address`},
		{"*:8080:80", 1, "is not an IP address"},
		{"300.0.0.1:8080:80", 1, "is not an IP address"},
		{"127.0.0.1::80", 11, "the host's port is missing"},
		{"127.0.0.1:80", 1, `the host's port is "127.0.0.1"`},
		{"::1:8080:80", 1, "in brackets"},
		{"[::1:8080:80", 1, "not closed"},
		{"[127.0.0.1]:8080:80", 2, "not an IPv6 address"},
		{"[]:8080:80", 2, "not an IPv6 address"},
		{"[::1]", 6, "the ports are missing"},
		{"[::1]8080:80", 6, "the ports are missing"},
		{"[::1]:8080", 11, "the guest's port is missing"},
		{"[::1]:8080:80:90", 12, `the guest's port is "80:90"`},
	}
	for _, test := range tests {
		t.Run(test.text, func(t *testing.T) {
			_, err := ParseForward(test.text)
			var wrong *ForwardError
			if !errors.As(err, &wrong) {
				t.Fatalf("error %v, want a *ForwardError", err)
			}
			if wrong.Text != test.text || wrong.Column != test.column || !strings.Contains(wrong.Problem, test.problem) {
				t.Errorf("%v\nwant column %d and %q", err, test.column, test.problem)
			}
		})
	}
}

func TestForwardDefaults(t *testing.T) {
	f, err := Forward{GuestPort: 80}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	want := Forward{Protocol: "tcp", Listen: netip.MustParseAddrPort("127.0.0.1:0"), GuestPort: 80}
	if f != want {
		t.Errorf("%v, want %v", f, want)
	}
	for name, wrong := range map[string]Forward{
		"no guest port": {Protocol: "tcp"},
		"protocol":      {Protocol: "icmp", GuestPort: 80},
	} {
		if _, err := wrong.withDefaults(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// FuzzParseForward: any text gives a forward that its own text gives again, or an error that points into the text.
func FuzzParseForward(f *testing.F) {
	for _, seed := range []string{
		"8080:80", "127.0.0.1:8080:80/udp", "0:80", "[::1]:8080:80/tcp", "[fe80::1%a]:1:2", "80", "", "[", "]:", "a:b:c", ":::", "[::1]:", "1:2/", "/udp",
		"[::ffff:1.2.3.4]:1:2",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		forward, err := ParseForward(text)
		var wrong *ForwardError
		if err != nil {
			if !errors.As(err, &wrong) || wrong.Column < 1 || wrong.Column > len(text)+1 || wrong.Problem == "" {
				t.Fatalf("%q: %#v", text, err)
			}
			return
		}
		again, err := ParseForward(forward.String())
		if err != nil || again != forward {
			t.Fatalf("%q is %v, which is read as %v (%v)", text, forward, again, err)
		}
		if _, err := forward.withDefaults(); err != nil {
			t.Fatalf("%q is read, but cannot be used: %v", text, err)
		}
	})
}
