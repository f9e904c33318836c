package reach

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"testing"
)

func TestLoopbackHost(t *testing.T) {
	for host, want := range map[string]string{
		"127.0.0.1": "127.0.0.1", "127.8.9.10": "127.8.9.10", "::1": "::1", "localhost": "localhost", "LocalHost": "localhost",
		"app.localhost": "localhost", "A-1.b_c.LOCALHOST": "localhost",
	} {
		if got, own := loopbackHost(host); !own || got != want {
			t.Errorf("%q: %q, %v", host, got, own)
		}
	}
	for _, host := range []string{
		"", ".", "127.1", "127.0.1", "127", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "127.0.0.01", "127.0.0.1.", "127.0.0.1%eth0", "127.0.0.256",
		"::ffff:127.0.0.1", "::ffff:7f00:1", "::127.0.0.1", "64:ff9b::127.0.0.1", "::1%lo", "::1%", "0:0:0:0:0:0:0:1", "0::1", "::01", "::", "0.0.0.0", "::2",
		"localhost.", "localhost..", ".localhost", "..localhost", "a..localhost", "-a.localhost", "a-.localhost", "localhost.localdomain", "xlocalhost", "localhost.example.com",
		"localhost\x00", "localhost ", " localhost", "localhost/", "localhost#", "localhost?", "localhost\\", "user@localhost", "a b.localhost", "a%.localhost",
		"ⓛocalhost", "localhosT\u200b", "localhost。", "loсalhost", "LOCALHOST。", "１２７.0.0.1", "127。0。0。1", "ſ.localhost", "xn--ls8h.example",
		"localhost.internal", "host.agentvm.internal", "192.168.127.3", "10.0.0.1", "example.com", "127.0.0.1.nip.io", "lvh.me", "ip6-localhost", "[::1]",
		strings.Repeat("a", 64) + ".localhost", strings.Repeat("a.", 150) + "localhost",
	} {
		if got, own := loopbackHost(host); own {
			t.Errorf("%q is the VM's own: %q", host, got)
		}
	}
}

func TestURLTarget(t *testing.T) {
	for text, want := range map[string]target{
		"http://localhost/": {"localhost", 80}, "http://localhost:3000/x?y#z": {"localhost", 3000}, "http://127.0.0.1:1": {"127.0.0.1", 1},
		"http://[::1]:65535/": {"::1", 65535}, "http://app.localhost:80": {"localhost", 80}, "HTTP://LOCALHOST:8080/": {"localhost", 8080},
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := urlTarget(u); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for text, errno := range map[string]syscall.Errno{
		"https://localhost/": syscall.EINVAL, "ws://localhost/": syscall.EINVAL, "file:///etc/passwd": syscall.EINVAL, "//localhost/": syscall.EINVAL, "/": syscall.EINVAL,
		"http:localhost": syscall.EINVAL, "http:///": syscall.EADDRNOTAVAIL, "http://:80/": syscall.EADDRNOTAVAIL, "": syscall.EINVAL,
		"http://user@localhost/": syscall.EINVAL, "http://localhost@example.com/": syscall.EINVAL, "http://127.0.0.1:80@example.com/": syscall.EINVAL,
		"http://@localhost/": syscall.EINVAL, "http://localhost:/": syscall.EINVAL, "http://localhost:0/": syscall.EINVAL, "http://localhost:65536/": syscall.EINVAL,
		"http://localhost:080/": syscall.EINVAL, "http://localhost:99999999999999999999/": syscall.EINVAL,
		"http://example.com/": syscall.EADDRNOTAVAIL, "http://127.1/": syscall.EADDRNOTAVAIL, "http://0x7f000001:80/": syscall.EADDRNOTAVAIL,
		"http://[::ffff:127.0.0.1]:80/": syscall.EADDRNOTAVAIL, "http://[::1%25lo]:80/": syscall.EADDRNOTAVAIL, "http://localhost.:80/": syscall.EADDRNOTAVAIL,
		"http://[localhost]:80/": syscall.EADDRNOTAVAIL, "http://[127.0.0.1]:80/": syscall.EADDRNOTAVAIL, "http://localhost%00:80/": 0,
		"http://ⓛocalhost:80/": syscall.EADDRNOTAVAIL, "http://localhost%E3%80%82:80/": syscall.EADDRNOTAVAIL, "http://[::]:80/": syscall.EADDRNOTAVAIL,
	} {
		u, err := url.Parse(text)
		if err != nil {
			continue // net/url refuses it: just as well
		}
		if got, err := urlTarget(u); err == nil || errno != 0 && !errors.Is(err, errno) || got != (target{}) {
			t.Errorf("%s: %+v, %v, want %v", text, got, err, errno)
		}
	}
	if got, err := urlTarget(&url.URL{Scheme: "http", Host: "::1"}); err == nil {
		t.Errorf("an address without brackets is %+v", got)
	}
}

// A Host header can only say which of the VM's own names is meant.
func TestHostHeader(t *testing.T) {
	for host, own := range map[string]bool{
		"": true, "localhost": true, "localhost:3000": true, "app.localhost": true, "127.0.0.1:80": true, "[::1]": true, "[::1]:80": true, "LOCALHOST:9": true,
		"example.com": false, "example.com:80": false, "localhost:x": false, "localhost:": false, "localhost:0": false, "::1": false, "[localhost]": false, "[localhost]:80": false,
		"[127.0.0.1]": false, "localhost.": false, "localhost,example.com": false, "user@localhost": false, "127.1": false, "[::1": false, "[::1]x": false,
		"[::ffff:127.0.0.1]:80": false, "localhost:80:80": false, "localhost\r\nX: y": false, "192.168.127.1": false,
	} {
		r, err := http.NewRequest("GET", "http://localhost:80/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		if got, err := requestTarget(r, true); err != nil || got != (target{"localhost", 80}) {
			t.Errorf("Host %q by a proxy: %+v, %v", host, got, err)
		}
		if got, err := requestTarget(r, false); (err == nil) != own || own && got != (target{"localhost", 80}) || !own && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("Host %q: %+v, %v", host, got, err)
		}
	}
	if _, err := requestTarget(&http.Request{}, false); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("no URL: %v", err)
	}
}

// Whatever it is read from, a target is a loopback address or localhost, and reads the same once more.
func FuzzTarget(f *testing.F) {
	for _, seed := range []string{
		"localhost:80", "127.0.0.1:80", "[::1]:80", "app.localhost:1", "http://localhost:80/", "http://a@localhost/", "http://[::ffff:127.0.0.1]/", "127.1:80", "[::1%lo]:80",
		"http://localhost.:80", "http://[::1]:0", "0x7f.1:80", "\xff.localhost:80", "http://%6cocalhost/", "http://ⓛocalhost:80/", ".localhost:1", "http://localhost:80\\@example.com/",
	} {
		f.Add(seed)
	}
	check := func(t *testing.T, text string, got target, err error) {
		if err != nil {
			if got != (target{}) {
				t.Fatalf("%q: %+v besides %v", text, got, err)
			}
			return
		}
		a, notAddress := netip.ParseAddr(got.host)
		if got.port == 0 || got.host != "localhost" && (notAddress != nil || !a.IsLoopback() || a.Is4In6() || a.Zone() != "") {
			t.Fatalf("%q is %+v", text, got)
		}
		if again, err := parseTarget(got.address()); err != nil || again != got {
			t.Fatalf("%q is %+v, which is %+v, %v", text, got, again, err)
		}
		if list, err := got.loopbacks("tcp"); err != nil || len(list) == 0 || !list[0].Addr().IsLoopback() {
			t.Fatalf("%q is at %v, %v", text, list, err)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseTarget(text)
		check(t, text, got, err)
		u, err := url.Parse(text)
		if err != nil {
			return
		}
		got, err = urlTarget(u)
		check(t, text, got, err)
		if err != nil {
			return
		}
		// What a URL's string says to a program that knows nothing of ours is the same place.
		bare, ok := strings.CutPrefix(strings.ToLower(u.Host), "[")
		if !ok && net.ParseIP(bare) == nil && !strings.Contains(bare, "localhost") && !strings.HasPrefix(bare, "127.") {
			t.Fatalf("%q leads to %+v", text, got)
		}
		if ownAuthority(text) && strings.ContainsAny(text, " /@\r\n\x00") {
			t.Fatalf("Host %q is accepted", text)
		}
	})
}
