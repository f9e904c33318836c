package router

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agentvm/egress"
	"agentvm/internal/network/reach"
	"agentvm/nat"
)

// pageNetwork is a network with something of everything.
func pageNetwork(t testing.TB, change func(*Config)) *Router {
	t.Helper()
	rule, err := egress.ParseRule("example.com:443")
	if err != nil {
		t.Fatal(err)
	}
	c := testConfig(Network{
		Policy: egress.Policy{Allow: []egress.Rule{rule}}, Resolvers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")},
		Forwards: []nat.Forward{{GuestPort: 3000}}, ReceiveLimit: 1000,
	})
	c.Mounts = 1
	c.Ports = reach.NewPorts(reach.Access{
		Listen: reach.PortPolicy{Allow: []reach.PortRange{{First: 3000, Last: 3999}}}, Connect: reach.PortPolicy{Deny: []reach.PortRange{{First: 25, Last: 25}}},
		LoopbackExemptPorts: []uint16{3001},
	}, c.Network.Forwards)
	if change != nil {
		change(&c)
	}
	n, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func get(n *Router, method, path, accept string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, "http://agentvm.internal"+path, nil)
	request.Header.Set("Accept", accept)
	answer := httptest.NewRecorder()
	n.status.ServeHTTP(answer, request)
	return answer
}

func TestPage(t *testing.T) {
	n := pageNetwork(t, nil)
	if a := get(n, "GET", "/denials", ""); a.Body.String() != "Nothing was denied.\n" {
		t.Errorf("no denials: %q", a.Body)
	}
	if a := get(n, "GET", "/denials.json", ""); strings.TrimSpace(a.Body.String()) != "[]" {
		t.Errorf("no denials: %q", a.Body)
	}
	n.recorder.record(denial("203.0.112.1:443", "example.com"))
	n.recorder.record(denial("192.168.127.254:22"))
	const asJSON = "text/html, application/json"
	tests := []struct {
		method, path, accept string
		code                 int
		want                 string
	}{
		{"GET", "/", "", 200, "http://agentvm.internal/limits"},
		{"GET", "/", asJSON, 200, `{"pages":[{"path":"/","what":"this list"},{"path":"/policy",`},
		{"GET", "/denials", "*/*", 200, "destination=203.0.112.1:443 names=example.com reason=because"},
		{"GET", "/denials", "*/*", 200, "destination=192.168.127.254:22 names=host.agentvm.internal reason=because"},
		{"GET", "/denials", asJSON, 200, `"destination":"203.0.112.1:443"`},
		{"GET", "/denials?format=json", "", 200, `"reason":"because"`},
		{"GET", "/denials?format=text", asJSON, 200, "verdict=deny"},
		{"GET", "/denials.json", "", 200, `"names":["host.agentvm.internal"]`},
		{
			"GET", "/policy", "", 200,
			"mode allowlist\nallow example.com:443\nnetwork.listen allow 3000-3999\nnetwork.connect deny 25\nexempt 3000\nexempt 3001\n",
		},
		{
			"GET", "/policy?format=json", "", 200, `{"allow":["example.com:443"],"allowPrivate":[],"allowSNI":[],"connect":{"allow":[],"deny":["25"]},"deny":[],` +
				`"listen":{"allow":["3000-3999"],"deny":[]},"loopbackExemptPorts":[3000,3001],"mode":"allowlist"}`,
		},
		{"GET", "/limits", "", 200, "\nforwards 1 64 listeners 0\n"},
		{"GET", "/limits.json", "", 200, `{"name":"local connections","unit":"connections","maximum":256,"used":0,"refused":0}`},
		{"GET", "/limits.json", "", 200, `{"name":"denials kept","unit":"denials","maximum":256,"used":2}`},
		{"GET", "/limits.json", "", 200, `{"name":"memory","unit":"bytes","maximum":268435456}`},
		{"POST", "/denials", "", 405, "405: pages are only read"},
		{"DELETE", "/limits.json", "", 405, `{"status":405,"error":"pages are only read`},
		{"GET", "/etc/passwd", "", 404, "404: there is no such page"},
		{"GET", "/etc/passwd", asJSON, 404, `{"status":404,"error":"there is no such page`},
		{"GET", "/../denials/", "", 404, "404"},
		{"GET", "/.json", "", 200, `{"pages":`},
	}
	for _, test := range tests {
		t.Run(test.method+" "+test.path+" "+test.accept, func(t *testing.T) {
			a := get(n, test.method, test.path, test.accept)
			body := a.Body.String()
			if test.path == "/limits" {
				body = regexp.MustCompile(" +").ReplaceAllString(body, " ") // columns
			}
			if a.Code != test.code || !strings.Contains(body, test.want) {
				t.Errorf("code %d, body %q; want %d, %q", a.Code, body, test.code, test.want)
			}
			wantForm(t, a)
			head := get(n, http.MethodHead, test.path, test.accept)
			if test.method == "GET" && (head.Code != a.Code || head.Body.Len() > 0 || head.Header().Get("Content-Type") != a.Header().Get("Content-Type")) {
				t.Errorf("HEAD: code %d, header %v, body %q", head.Code, head.Header(), head.Body)
			}
		})
	}
}

// wantForm checks that an answer is what its type says.
func wantForm(t *testing.T, a *httptest.ResponseRecorder) {
	t.Helper()
	switch kind := a.Header().Get("Content-Type"); kind {
	case "application/json":
		if !json.Valid(a.Body.Bytes()) {
			t.Errorf("%q is not JSON", a.Body)
		}
	case "text/plain; charset=utf-8":
	default:
		t.Errorf("type %q", kind)
	}
}

// TestPageLimitsAreDocumented compares names and units with docs/measurements/specification.md.
func TestPageLimitsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/measurements/specification.md")
	if err != nil {
		t.Fatal(err)
	}
	n := pageNetwork(t, func(c *Config) { c.Network.SendLimit = 1000 })
	_, table, found := strings.Cut(string(text), "### What a guest can read of them\n")
	if !found {
		t.Fatal("docs/measurements/specification.md has no section of that name")
	}
	for _, l := range n.status.limitList() {
		if l.Unit == "" || !strings.Contains(table, "\n| `"+l.Name+"` | "+l.Unit+" |") {
			t.Errorf("docs/measurements/specification.md does not have %q in %q", l.Name, l.Unit)
		}
	}
}

// TestPageTellsNothingOfTheHost looks on every page, and in the guest's file, for what this host has configured, is called and
// has for addresses, and for what another VM was denied. Names and paths of the VM are not in a Config.
func TestPageTellsNothingOfTheHost(t *testing.T) {
	resolver := netip.MustParseAddrPort("127.0.0.53:5399")
	n := pageNetwork(t, func(c *Config) {
		c.Network.Resolvers, c.Network.HostPorts = []netip.AddrPort{resolver}, []uint16{54399}
	})
	other := pageNetwork(t, nil)
	other.recorder.record(denial("203.0.112.99:443", "of-another-vm.example"))
	n.recorder.record(denial("203.0.112.1:443", "example.com"))
	outsider := netip.MustParseAddrPort("198.51.101.77:45678")
	for _, kind := range []nat.EventKind{nat.FlowDenied, nat.FlowFailed} { // of an outsider at a port forward
		e := inwardEvent(nat.FlowEvent{
			Kind: kind, Flow: nat.Flow{Direction: nat.In, Protocol: "tcp", Source: outsider, Destination: netip.MustParseAddrPort("192.168.127.3:3000")},
			Err: errors.New("of an outsider"),
		})
		n.recorder.send(e)
	}
	secrets := []string{
		resolver.String(), "54399", "of-another-vm", "203.0.112.99", outsider.Addr().String(), "of an outsider",
		n.forwards[0].String(), os.TempDir(),
	}
	if name, err := os.Hostname(); err == nil && len(name) > 3 {
		secrets = append(secrets, name)
	}
	if list, err := net.InterfaceAddrs(); err == nil {
		for _, a := range list {
			secrets = append(secrets, strings.SplitN(a.String(), "/", 2)[0]+":")
		}
	}
	var shown bytes.Buffer
	for _, path := range []string{"/", "/policy", "/limits", "/denials", "/nothing"} {
		for _, form := range []string{"", ".json"} {
			shown.Write(get(n, "GET", path+form, "").Body.Bytes())
		}
	}
	shown.WriteString(strings.Join(n.recorder.batch(t.Context()), "\n"))
	if !strings.Contains(shown.String(), "203.0.112.1:443") {
		t.Error("not even the own denial is shown")
	}
	for _, secret := range secrets {
		if secret != "::1:" && strings.Contains(shown.String(), secret) {
			t.Errorf("%q is shown in %s", secret, &shown)
		}
	}
}

// FuzzPage: any request gets an answer of one of the two forms with a code that fits, and a body of the length that is said.
func FuzzPage(f *testing.F) {
	for _, seed := range []string{
		"GET / HTTP/1.1\r\nHost: agentvm.internal\r\n\r\n", "HEAD /limits.json HTTP/1.0\r\n\r\n", "GET /policy?format=json&format=text HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /denials HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", "GET //../%2e%2e/denials.json HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n",
		"GET http://other/policy HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\nAccept: application/json\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", "GET /?format=%zz HTTP/1.1\r\nHost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	n := pageNetwork(f, nil)
	n.recorder.remember(denial("203.0.112.1:443", "example.com"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(data)))
		if err != nil {
			return
		}
		a := httptest.NewRecorder()
		n.status.ServeHTTP(a, r)
		if !slices.Contains([]int{200, 404, 405}, a.Code) {
			t.Fatalf("%q: code %d", data, a.Code)
		}
		if r.Method != http.MethodHead {
			wantForm(t, a)
		} else if a.Body.Len() > 0 {
			t.Fatalf("%q: HEAD with a body", data)
		}
	})
}
