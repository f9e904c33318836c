package egress

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// sharedAddress is a world in which two names have one address, at which a server counts what it gets and echoes it.
func sharedAddress(t *testing.T, p Policy) (w *world, got *atomic.Int64) {
	t.Helper()
	w, got = newWorld(t, Config{Policy: p}), new(atomic.Int64)
	for _, port := range []string{"80", "443"} {
		l := w.listen("203.0.112.1:" + port)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.Copy(c, io.TeeReader(c, counting{got}))
				c.Close()
			}
		}()
		t.Cleanup(func() { l.Close(); <-done })
	}
	return w, got
}

type counting struct{ n *atomic.Int64 }

func (c counting) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

// hello sends a ClientHello for a name and returns the error of the handshake, which an echo server never completes.
func hello(c net.Conn, name string) error {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
}

func request(host string) []byte { return []byte("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n") }

// TestAllowSNI: a neighbour at the same address stays closed, whatever the guest calls it, and gets not one byte.
func TestAllowSNI(t *testing.T) {
	for _, c := range []struct {
		name, port string
		send       func(net.Conn) error
		message    string // "": it passes
	}{
		{"TLS", "443", func(c net.Conn) error { return hello(c, "good.test") }, ""},
		{"TLS for a neighbour", "443", func(c net.Conn) error { return hello(c, "evil.test") }, "names evil.test (TLS server name), which no allow-sni rule names; run with --allow-sni evil.test:443"},
		{"TLS for a name of another address", "443", func(c net.Conn) error { return hello(c, "a.other.test") }, "did not lead to this address"},
		{"TLS without a name", "443", func(c net.Conn) error { return hello(c, "203.0.112.1") }, "names no server (SNI)"},
		{"HTTP", "80", func(c net.Conn) error { _, err := c.Write(request("good.test")); return err }, ""},
		{"HTTP for a neighbour", "80", func(c net.Conn) error { _, err := c.Write(request("evil.test")); return err }, "names evil.test (HTTP Host)"},
		{"HTTP in pieces", "80", func(c net.Conn) error {
			for _, b := range request("evil.test") {
				if _, err := c.Write([]byte{b}); err != nil {
					return err
				}
			}
			return nil
		}, "names evil.test"},
		{"HTTP in many buffers", "80", func(c net.Conn) error {
			text := request("evil.test")
			_, err := c.(*conn).WriteBuffers(&net.Buffers{text[:10], text[10:20], text[20:]})
			return err
		}, "names evil.test"},
		{"half a request", "80", func(c net.Conn) error {
			_, _ = c.Write(request("good.test")[:20])
			return c.(*conn).CloseWrite()
		}, "in the middle"},
		{"SSH", "443", func(c net.Conn) error { _, err := c.Write([]byte("SSH-2.0-x\r\n")); return err }, "neither TLS nor HTTP/1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, got := sharedAddress(t, Policy{AllowSNI: rules(t, "good.test", "*.other.test:443")})
			w.tell("good.test", "203.0.112.1")
			w.tell("a.other.test", "203.0.112.2")
			one, err := w.dialTCP("203.0.112.1:" + c.port)
			if err != nil {
				t.Fatal(err)
			}
			err = c.send(one)
			if c.message != "" {
				denied(t, err, ReasonServerName)
				_, err = one.Read(make([]byte, 1))
				denied(t, err, ReasonServerName)
			} else if c.port == "80" {
				answer := make([]byte, len(request("good.test")))
				if _, err := io.ReadFull(one, answer); err != nil {
					t.Error(err)
				}
			}
			one.Close()
			if s := w.gate.Stats(); s.Open != 0 {
				t.Errorf("%+v", s)
			}
			events := w.seen()
			if len(events) < 2 || events[0].Verdict != VerdictAllow {
				t.Fatalf("%+v", events)
			}
			if c.message == "" {
				if got.Load() == 0 || events[1].Verdict != VerdictClose {
					t.Errorf("the server got %d bytes, events %+v", got.Load(), events)
				}
				return
			}
			if e := events[1]; got.Load() != 0 || e.Verdict != VerdictDeny || e.Reason != ReasonServerName || !strings.Contains(e.Message, c.message) {
				t.Errorf("the server got %d bytes, events %+v", got.Load(), events)
			}
		})
	}
	w, _ := sharedAddress(t, Policy{AllowSNI: rules(t, "good.test")})
	w.tell("good.test", "203.0.112.1")
	if err := w.gate.Question("evil.test", typeA); err == nil {
		t.Error("evil.test may be looked up")
	}
	_, err := w.gate.DialUDP(context.Background(), guest, mustAddrPort("203.0.112.1:443"))
	denied(t, err, ReasonNotAllowed)
}

// TestAllowSNIRequests: the second request of a connection is looked at, too.
func TestAllowSNIRequests(t *testing.T) {
	w, got := sharedAddress(t, Policy{AllowSNI: rules(t, "good.test:80")})
	w.tell("good.test", "203.0.112.1")
	c, err := w.dialTCP("203.0.112.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	first := request("good.test")
	if n, err := c.(*conn).WriteBuffers(&net.Buffers{first[:7], first[7:]}); err != nil || int(n) != len(first) {
		t.Fatal(n, err)
	}
	if _, err := io.ReadFull(c, make([]byte, len(first))); err != nil {
		t.Fatal(err)
	}
	_, err = c.Write(request("evil.test"))
	denied(t, err, ReasonServerName)
	if got.Load() != int64(len(first)) {
		t.Errorf("the server got %d bytes", got.Load())
	}
}

// TestAllowSNIChanges: new policies hold for connections that are open, named or not.
func TestAllowSNIChanges(t *testing.T) {
	byName := Policy{AllowSNI: rules(t, "good.test", "also.test")}
	for _, c := range []struct {
		name          string
		before, after Policy
		send          string // before the change
		cut           int
		then          string // after it, when it was not cut
		denied        bool
	}{
		{"its rule goes", byName, Policy{AllowSNI: rules(t, "also.test")}, string(request("good.test")), 1, "", false},
		{"another rule goes", byName, Policy{AllowSNI: rules(t, "good.test")}, string(request("good.test")), 0, string(request("good.test")), false},
		{"another rule goes, which the next request needs", byName, Policy{AllowSNI: rules(t, "good.test")}, string(request("good.test")), 0, string(request("also.test")), true},
		{"it was opened without", Policy{Allow: rules(t, "good.test")}, byName, "hello", 1, "", false},
		{"names are needed no more", byName, Policy{Mode: Public}, "", 0, "hello", false},
		{"the half of a request, then none is needed", byName, Policy{Mode: Public}, "GET", 0, "hello\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, got := sharedAddress(t, c.before)
			w.tell("good.test", "203.0.112.1")
			_ = w.gate.Answer("also.test", nil, mustAddrPort("203.0.112.1:0").Addr(), time.Minute)
			one, err := w.dialTCP("203.0.112.1:80")
			if err != nil {
				t.Fatal(err)
			}
			defer one.Close()
			if _, err := one.Write([]byte(c.send)); err != nil {
				t.Fatal(err)
			}
			cut, err := w.gate.SetPolicy(c.after)
			if cut != c.cut || err != nil {
				t.Fatalf("%d were cut, %v", cut, err)
			}
			if cut > 0 {
				_, err = one.Write([]byte("x"))
				denied(t, err, ReasonServerName)
				return
			}
			if _, err = one.Write([]byte(c.then)); c.denied {
				denied(t, err, ReasonServerName)
				return
			}
			answer := make([]byte, len(c.send)+len(c.then))
			if _, err := io.ReadFull(one, answer); err != nil || string(answer) != c.send+c.then {
				t.Errorf("%q, %v (the server got %d bytes)", answer, err, got.Load())
			}
		})
	}
}

// TestAllowSNITime: a connection that names nothing ends by itself, and one that has named its server stays.
func TestAllowSNITime(t *testing.T) {
	for _, text := range []string{"", "GET / HTTP/1.1\r\nHost", string(request("good.test"))} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			defer far.Close()
			go func() { _, _ = io.Copy(io.Discard, far) }()
			gate, err := New(Config{Policy: Policy{AllowSNI: rules(t, "good.test")}, Dial: func(context.Context, string, string) (net.Conn, error) { return near, nil }})
			if err != nil {
				t.Fatal(err)
			}
			defer gate.Close()
			if err := gate.Answer("good.test", nil, mustAddrPort("203.0.112.1:0").Addr(), time.Hour); err != nil {
				t.Fatal(err)
			}
			c, err := gate.DialTCP(t.Context(), guest, mustAddrPort("203.0.112.1:80"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(nameTime + time.Second)
			synctest.Wait()
			_, err = c.Write([]byte("GET"))
			if strings.HasSuffix(text, "\r\n\r\n") {
				if err != nil {
					t.Error(err)
				}
				return
			}
			denied(t, err, ReasonServerName)
		})
	}
}

func TestAllowSNIRules(t *testing.T) {
	for text, problem := range map[string]string{"10.0.0.1:443": "not addresses", "a.org:53/udp": "only in TCP", "a.org:*/icmp": "only in TCP"} {
		if err := (Policy{AllowSNI: rules(t, text)}).Validate(); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v", text, err)
		}
	}
	p := Policy{AllowSNI: rules(t, "*.a.org:443"), Allow: rules(t, "*.a.org")}
	if got := p.String(); p.Validate() != nil || got != "mode allowlist; allow *.a.org; allow-sni *.a.org:443" {
		t.Error(got, p.Validate())
	}
	if w := p.Warnings(); len(w) != 1 || !strings.Contains(w[0], "opens the same whatever") {
		t.Errorf("%q", w)
	}
	d := Policy{AllowSNI: rules(t, "a.org:443")}.Explain("a.org", 443, TCP)
	if !d.Allowed || !d.ByName || d.Rule != "a.org:443" {
		t.Errorf("%+v", d)
	}
	if d := (Policy{AllowSNI: rules(t, "a.org:443")}).Explain("a.org", 443, UDP); d.Allowed {
		t.Errorf("%+v", d)
	}
}
