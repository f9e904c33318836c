package egress

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/netip"
	"net/textproto"
	"strings"
	"testing"
	"time"
)

// proxyServer is an HTTP proxy that answers CONNECT and then says where it was asked to, in one write with its answer when eager is set.
func proxyServer(t *testing.T, eager bool, wantUser string) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerConnect(conn, eager, wantUser)
		}
	}()
	return listener.Addr().String()
}

func answerConnect(conn net.Conn, eager bool, wantUser string) {
	defer conn.Close()
	text := textproto.NewReader(bufio.NewReader(conn))
	line, err := text.ReadLine()
	if err != nil {
		return
	}
	header, err := text.ReadMIMEHeader()
	words := strings.Fields(line)
	switch {
	case err != nil || len(words) != 3 || words[0] != "CONNECT" || header.Get("Host") != words[1]:
		_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
		return
	case header.Get("Proxy-Authorization") != wantUser:
		_, _ = io.WriteString(conn, "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
		return
	}
	answer := "HTTP/1.1 200 OK\r\nVia: test\r\n\r\n"
	if !eager {
		_, _ = io.WriteString(conn, answer)
		time.Sleep(20 * time.Millisecond)
		answer = ""
	}
	_, _ = io.WriteString(conn, answer+"led to "+words[1])
}

func TestProxy(t *testing.T) {
	for _, c := range []struct {
		name, user, want string
		eager            bool
	}{
		{"plain", "", "led to 203.0.113.7:443", false},
		{"server speaks with the answer", "", "led to 203.0.113.7:443", true},
		{"user", "Basic bWU6c2VjcmV0", "led to 203.0.113.7:443", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := proxyServer(t, c.eager, c.user)
			if c.user != "" {
				at = "me:secret@" + at
			}
			dial, err := proxied(new(net.Dialer).DialContext, "http://"+at, nil)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := dial(t.Context(), "tcp", "203.0.113.7:443")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if got, err := io.ReadAll(conn); string(got) != c.want || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

func TestProxyRefuses(t *testing.T) {
	at := proxyServer(t, false, "another user")
	resolver := netip.MustParseAddrPort("192.0.2.53:53")
	var dialled []string
	plain := func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled = append(dialled, network+" "+address)
		return new(net.Dialer).DialContext(ctx, "tcp", at)
	}
	dial, err := proxied(plain, "http://me:secret@"+at, []netip.AddrPort{resolver})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t.Context(), "tcp", "203.0.113.7:443"); err == nil || !strings.Contains(err.Error(), "407") || strings.Contains(err.Error(), "secret") {
		t.Errorf("wrong password: %v", err)
	}
	if _, err := dial(t.Context(), "udp", "203.0.113.7:443"); err == nil || !strings.Contains(err.Error(), "UDP does not pass") {
		t.Errorf("UDP: %v", err)
	}
	for _, direct := range []string{"udp 192.0.2.53:53", "tcp 127.0.0.1:5432"} {
		network, address, _ := strings.Cut(direct, " ")
		conn, err := dial(t.Context(), network, address)
		if err != nil || dialled[len(dialled)-1] != direct {
			t.Errorf("%s: %v, dialled %q", direct, err, dialled)
			continue
		}
		_ = conn.Close()
	}
	for _, wrong := range []string{"ftp://x:1", "http://", "x:1", "http://x/path", "http://me:secret@x:y"} {
		if _, err := parseProxy(wrong); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	dial, err = proxied(new(net.Dialer).DialContext, "http://"+silent.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := dial(ctx, "tcp", "203.0.113.7:443"); err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("a proxy that does not answer: %v after %v", err, time.Since(began))
	}
}
