package servertest

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// Target is a server to attack.
type Target struct {
	Address string // HOST:PORT
	Host    string // its name in requests. Default: Address
	// Good is a request that the owner may make, "GET /path", and Post one that takes a body. Default of Post: there is none, and Good gets bodies.
	Good, Post string
	// Owner is the key of the owner. "": the server has no keys.
	Owner string
	// Show puts a key into a request: it returns the path and headers to send.
	Show func(key, path string) (string, []string)
	// Audited returns how many requests the server's audit has. nil: it has none.
	Audited func() int
	// Denied is the status of a request without a key, or with a wrong one. Default: 401 or 403.
	Denied int
	// Landing says that a request without a key gets a page for everyone.
	Landing bool
	// Crowd is how many connections stay open at once. Default: 300.
	Crowd int
	// AnyHost says that the server may be called anything, and AnyOrigin that pages of any origin may use it: what is in front of it has looked.
	AnyHost, AnyOrigin bool
}

// attack is a request that must fail.
type attack struct {
	name string
	text func(t Target) string
	want []int // statuses; 0: the connection ends without an answer
	of   kind
}

type kind int

const (
	syntax kind = iota // net/http refuses it before there is a request, and nothing of it is audited
	ofKey
	ofNoKey
	ofHost
	ofOrigin
	ofBody
)

// head is a request with the owner's key.
func (t Target) head(request string, headers ...string) string {
	return t.with(t.Owner, request, headers...)
}

func (t Target) with(key, request string, headers ...string) string {
	method, path, _ := strings.Cut(request, " ")
	if t.Show != nil {
		shown := []string(nil)
		path, shown = t.Show(key, path)
		headers = append(shown, headers...)
	}
	if !slices.ContainsFunc(headers, func(h string) bool { return strings.HasPrefix(h, "Host:") }) {
		headers = append([]string{"Host: " + t.Host}, headers...)
	}
	return method + " " + path + " HTTP/1.1\r\n" + strings.Join(headers, "\r\n") + "\r\n\r\n"
}

func (t Target) post(body string, headers ...string) string {
	headers = append(headers, "Content-Type: application/json", fmt.Sprint("Content-Length: ", len(body)))
	return t.head(t.Post, headers...) + body
}

var (
	denied  = []int{401, 403}
	foreign = []int{403}
	misled  = []int{421, 400, 403}
	broken  = []int{0, 400, 403, 404, 405, 411, 413, 414, 415, 417, 421, 422, 426, 431, 501, 505}
	// refused is for requests that are well-formed: they must have an answer, and neither success nor a failure of the server.
	refused = []int{400, 401, 403, 404, 405, 406, 413, 415, 421, 422, 501}
)

func attacks() []attack {
	key := func(name string, text func(Target) string) attack { return attack{name, text, denied, ofKey} }
	keyless := func(name string, text func(Target) string) attack {
		return attack{name, func(t Target) string {
			t.Show = nil
			return text(t)
		}, denied, ofNoKey}
	}
	host := func(name, host string) attack {
		return attack{name, func(t Target) string { return t.head(t.Good, "Host: "+host) }, misled, ofHost}
	}
	page := func(name string, headers ...string) attack {
		return attack{name, func(t Target) string { return t.post("{}", headers...) }, foreign, ofOrigin}
	}
	raw := func(name string, text func(Target) string) attack { return attack{name, text, broken, syntax} }
	body := func(name string, want []int, text func(Target) string) attack {
		return attack{name, text, want, ofBody}
	}
	return []attack{
		keyless("no key", func(t Target) string {
			return t.head(t.Good)
		}),
		key("a wrong key", func(t Target) string { return t.with("another-key-of-no-user", t.Good) }),
		key("an empty key", func(t Target) string { return t.with("", t.Good) }),
		key("the beginning of the key", func(t Target) string { return t.with(t.Owner[:len(t.Owner)-1], t.Good) }),
		key("the key and more", func(t Target) string { return t.with(t.Owner+"x", t.Good) }),
		keyless("the key in the query", func(t Target) string {
			return t.head(t.Good + "?key=" + t.Owner + "&token=" + t.Owner + "&access_token=" + t.Owner)
		}),
		keyless("the key in a cookie", func(t Target) string {
			return t.head(t.Good, "Cookie: key="+t.Owner+"; token="+t.Owner)
		}),
		keyless("the key as a password", func(t Target) string {
			return t.head(t.Good, "Authorization: Basic "+t.Owner)
		}),
		keyless("a post without a key", func(t Target) string {
			return t.post("{}")
		}),

		host("a foreign Host", "evil.example"),
		host("a foreign Host with the port", "evil.example:80"),
		host("a name that begins as the loopback", "127.0.0.1.evil.example"),
		host("a name that ends as the loopback", "evil-localhost"),
		host("a name below a foreign one", "localhost.evil.example"),
		{"a foreign address in the request line", func(t Target) string {
			return strings.Replace(t.head(t.Good), " /", " http://evil.example/", 1)
		}, misled, ofHost},

		page("a foreign Origin", "Origin: http://evil.example", "Sec-Fetch-Site: cross-site"),
		page("a foreign Origin of an old browser", "Origin: http://evil.example"),
		page("a hidden Origin", "Origin: null"),
		page("two Origins", "Origin: http://evil.example", "Origin: http://localhost"),
		page("an Origin that is none", "Origin: evil.example"),
		page("a cross-site form", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"),
		page("a page of a neighbouring name", "Sec-Fetch-Site: same-site", "Origin: http://other.localhost"),
		{"a cross-site GET", func(t Target) string {
			return t.head(t.Good, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Origin: http://evil.example")
		}, foreign, ofOrigin},
		{"a WebSocket of a foreign page", func(t Target) string {
			return t.head(t.Good, "Origin: http://evil.example", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
		}, foreign, ofOrigin},

		raw("two Hosts", func(t Target) string { return t.head(t.Good, "Host: "+t.Host, "Host: evil.example") }),
		raw("no Host", func(t Target) string {
			return strings.Replace(t.head(t.Good), "Host: "+t.Host+"\r\n", "", 1)
		}),
		raw("huge headers", func(t Target) string { return t.head(t.Good, "X-Long: "+strings.Repeat("x", 3<<20)) }),
		raw("many headers", func(t Target) string {
			return t.head(t.Good, slices.Repeat([]string{"X: " + strings.Repeat("x", 30)}, 100_000)...)
		}),
		raw("a huge path", func(t Target) string { return t.with("", "GET /"+strings.Repeat("x", 3<<20)) }),
		raw("no HTTP", func(Target) string { return "\x00\x01\x02\r\n\r\n" }),
		raw("a TLS hello", func(Target) string { return "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n" }),
		raw("a control character in a header", func(t Target) string { return t.head(t.Good, "X-Y: a\x00b") }),
		raw("a negative length", func(t Target) string { return t.head(t.Post, "Content-Length: -1") }),
		raw("two lengths", func(t Target) string { return t.head(t.Post, "Content-Length: 2", "Content-Length: 3") + "{}x" }),
		raw("an unknown coding", func(t Target) string { return t.head(t.Post, "Transfer-Encoding: gzip, chunked") + "0\r\n\r\n" }),

		body("a chunk that overflows", broken, func(t Target) string {
			return t.head(t.Post, "Content-Type: application/json", "Transfer-Encoding: chunked") + "ffffffffffffffffff\r\nx"
		}),
		body("deep JSON", refused, func(t Target) string {
			return t.post(strings.Repeat(`{"a":[`, 100_000) + strings.Repeat("]}", 100_000))
		}),
		body("JSON that is none", refused, func(t Target) string { return t.post(`{"a":` + "\xff\xfe") }),
		body("a long body", append([]int{0}, refused...), func(t Target) string { return t.post(`{"a":"` + strings.Repeat("x", 32<<20) + `"}`) }),
		body("a bomb of gzip", append([]int{0}, refused...), func(t Target) string { return t.post(bomb(), "Content-Encoding: gzip") }),
		body("a method that there is not", refused, func(t Target) string {
			_, path, _ := strings.Cut(t.Good, " ")
			return t.head("BREW " + path)
		}),
	}
}

// bomb is 256 MiB of spaces, in 256 KiB.
func bomb() string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	space := bytes.Repeat([]byte{' '}, 1<<20)
	for range 256 {
		_, _ = w.Write(space)
	}
	_ = w.Close()
	return b.String()
}

// Attack makes every server go through the same: requests that must not be served, connections that are held and dropped, while the owner gets
// his answers, the audit has what was refused, and memory stays small.
func Attack(tb *testing.T, t Target) {
	tb.Helper()
	if t.Host == "" {
		t.Host = t.Address
	}
	bodiless := t.Post == ""
	if bodiless {
		t.Post = t.Good
	}
	owner := func() error {
		status, err := ask(t.Address, t.head(t.Good))
		if err == nil && (status < 200 || status > 299) {
			err = fmt.Errorf("status %d", status)
		}
		return err
	}
	if err := owner(); err != nil {
		tb.Fatalf("the owner gets: %v", err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for _, a := range attacks() {
		aboutKeys := a.of == ofKey || a.of == ofNoKey
		if aboutKeys && t.Owner == "" || a.of == ofNoKey && t.Landing || a.of == ofHost && t.AnyHost || a.of == ofOrigin && t.AnyOrigin || a.of == ofBody && bodiless {
			continue
		}
		had := 0
		if t.Audited != nil {
			had = t.Audited()
		}
		if aboutKeys && t.Denied != 0 {
			a.want = []int{t.Denied}
		}
		status, err := ask(t.Address, a.text(t))
		if err != nil || !slices.Contains(a.want, status) {
			tb.Errorf("%s: status %d, %v, want one of %v", a.name, status, err, a.want)
		}
		if t.Audited != nil && a.of != syntax && a.of != ofBody && !eventually(func() bool { return t.Audited() > had }) {
			tb.Errorf("%s: the audit has nothing of it", a.name)
		}
		if err := owner(); err != nil {
			tb.Errorf("after %s the owner gets: %v", a.name, err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 64<<20 {
		tb.Errorf("%d MiB are left of the attacks", grown>>20)
	}
	wrong := t.with("another-key-of-no-user", t.Good)
	crowds := map[string]string{"idle sockets": "", "half headers": "GET / HTTP/1.1\r\nHo", "half TLS hellos": "\x16\x03\x01\x02\x00"}
	if t.Owner != "" { // else they are as good as any
		crowds["wrong keys"] = wrong
		crowds["half bodies"] = t.with("", t.Post, "Content-Type: application/json", "Content-Length: 100") + "{"
	}
	Crowd(tb, t.Address, cmp.Or(t.Crowd, 300), crowds, owner)
	count := 10_000
	if testing.Short() {
		count = 1000
	}
	ctx, cancel := context.WithTimeoutCause(tb.Context(), 5*time.Minute, errors.New("five minutes"))
	defer cancel()
	OpenAndDrop(ctx, tb, t.Address, count, []string{"", "GET", "GET / HTTP/1.1\r\nHost: x\r\n", wrong, t.head(t.Good)})
	var err error
	if !eventually(func() bool { err = owner(); return err == nil }) { // requests that were dropped may still have places
		tb.Errorf("after %d connections the owner gets: %v", count, err)
	}
}

func eventually(ok func() bool) bool {
	for range 200 {
		if ok() {
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

// ask returns the status of the answer to a request, 0 when the connection ends without one.
func ask(address, request string) (status int, err error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	go io.WriteString(c, request) // which the server may not read to its end
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, fmt.Errorf("no answer in a minute: %w", err)
	}
	if err != nil {
		return 0, nil
	}
	return r.StatusCode, r.Body.Close()
}
