package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const testToken = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// message makes a message of the handshake.
func message(text string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
}

func TestAdmit(t *testing.T) {
	right := `{"version":2,"token":"` + testToken + `","channel":"control"}`
	for _, test := range []struct {
		name, answer, reason string
		sent                 []byte
	}{
		{name: "right", sent: message(right), answer: `{"version":2}`},
		{name: "bulk", sent: message(strings.Replace(right, "control", "bulk", 1)), answer: `{"version":2}`},
		{name: "more than is known", sent: message(`{"new":1,` + right[1:]), answer: `{"version":2}`},
		{name: "wrong token", sent: message(strings.Replace(right, "0123", "0124", 1)), reason: "wrong token"},
		{name: "upper case", sent: message(strings.Replace(right, testToken, strings.ToUpper(testToken), 1)), reason: "wrong token"},
		{name: "short token", sent: message(strings.Replace(right, "ef\"", "\"", 1)), reason: "wrong token"},
		{name: "long token", sent: message(strings.Replace(right, "ef\"", "ef0\"", 1)), reason: "wrong token"},
		{name: "empty token", sent: message(`{"version":2,"token":"","channel":"control"}`), reason: "wrong token"},
		{name: "no token", sent: message(`{"version":2,"channel":"control"}`), reason: "wrong token"},
		{name: "null", sent: message(`null`), reason: "wrong token"},
		{name: "token of another type", sent: message(`{"version":2,"token":7}`), reason: "handshake: json"},
		{name: "wrong token and version", sent: message(`{"version":0,"token":"x"}`), reason: "wrong token"},
		{name: "old version", sent: message(strings.Replace(right, `"version":2`, `"version":0`, 1)),
			answer: "speaks protocol 2 and this program protocol 0", reason: "protocol 2"},
		{name: "new version", sent: message(strings.Replace(right, `"version":2`, `"version":9`, 1)),
			answer: "speaks protocol 2 and this program protocol 9", reason: "protocol 9"},
		{name: "unknown channel", sent: message(strings.Replace(right, "control", "side", 1)), answer: `unknown channel`, reason: "unknown channel"},
		{name: "nothing", reason: "EOF"},
		{name: "half a length", sent: []byte{0, 0}, reason: "EOF"},
		{name: "half a message", sent: message(right)[:40], reason: "EOF"},
		{name: "empty message", sent: []byte{0, 0, 0, 0}, reason: "which is no length"},
		{name: "long message", sent: binary.BigEndian.AppendUint32(nil, 4097), reason: "which is no length"},
		{name: "HTTP", sent: []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), reason: `handshake begins with "GET "`},
		{name: "TLS", sent: []byte{0x16, 3, 1, 2, 0, 1, 0}, reason: "which is no length"},
		{name: "no JSON", sent: message("hello"), reason: "handshake: invalid"},
	} {
		t.Run(test.name, func(t *testing.T) {
			here, there := net.Pipe()
			answered := make(chan []byte)
			go func() {
				_, _ = here.Write(test.sent)
				if test.answer == "" {
					_ = here.Close()
				}
				var length [4]byte
				_, _ = io.ReadFull(here, length[:])
				b := make([]byte, binary.BigEndian.Uint32(length[:]))
				_, _ = io.ReadFull(here, b)
				answered <- b
			}()
			_, err := admit(there, testToken)
			_ = there.Close()
			answer := string(<-answered)
			if !strings.Contains(answer, test.answer) || test.answer == "" && answer != "" {
				t.Errorf("answer %q", answer)
			}
			if test.reason == "" && err != nil || test.reason != "" && (err == nil || !strings.Contains(err.Error(), test.reason)) {
				t.Errorf("error %v, want %q", err, test.reason)
			}
		})
	}
}

// TestAdmitLate: a handshake that is not complete after two seconds is given up.
func TestAdmitLate(t *testing.T) {
	for _, sent := range []string{"", "\x00", string(message("{}")[:5])} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			go func() { _, _ = io.WriteString(here, sent) }()
			began := time.Now()
			_, err := admit(there, testToken)
			if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took != handshakeTime {
				t.Errorf("%q: %v after %v", sent, err, took)
			}
			_ = errors.Join(here.Close(), there.Close())
		})
	}
}

// TestGreet: a client refuses a server that is not a daemon of its version.
func TestGreet(t *testing.T) {
	for _, test := range []struct{ name, answer, want string }{
		{"right", string(message(`{"version":2}`)), ""},
		{"hangs up", "", "no daemon, or has another token"},
		{"old daemon", string(message(`{"version":0}`)), "daemon speaks protocol 0 and this program protocol 2"},
		{"new daemon", string(message(`{"version":3,"error":"x"}`)), "daemon speaks protocol 3 and this program protocol 2"},
		{"refuses", string(message(`{"version":2,"error":"a\u001bb"}`)), `"a\x1bb"`},
		{"HTTP", "HTTP/1.1 400 Bad Request\r\n\r\n", `begins with "HTTP"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			here, there := net.Pipe()
			go func() {
				_, _ = there.Read(make([]byte, maxHandshake))
				_, _ = io.WriteString(there, test.answer)
				_ = there.Close()
			}()
			err := handshake(here, testToken, Control)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v", err)
			}
			_ = here.Close()
		})
	}
}

func FuzzAdmit(f *testing.F) {
	f.Add(message(`{"version":2,"token":"` + testToken[:63] + `","channel":"control"}`))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{0, 0, 16, 0})
	f.Fuzz(func(t *testing.T, sent []byte) {
		if bytes.Contains(sent, []byte(testToken)) {
			t.Skip("knows the token")
		}
		conn := &memoryConn{in: bytes.NewReader(sent)}
		if _, err := admit(conn, testToken); err == nil {
			t.Error("admitted")
		}
		if conn.out.Len() > 0 {
			t.Errorf("answered %q", conn.out.Bytes())
		}
	})
}

// memoryConn is a connection whose bytes have all arrived.
type memoryConn struct {
	net.Conn
	in  io.Reader
	out bytes.Buffer
}

func (c *memoryConn) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *memoryConn) Write(b []byte) (int, error) { return c.out.Write(b) }
func (c *memoryConn) SetDeadline(time.Time) error { return nil }

// TestHostilePort sends a daemon what a browser, a port scanner and a stranger would. It answers none of them, and still serves clients.
func TestHostilePort(t *testing.T) {
	t.Setenv("AGENTVM_DEBUG", "tcp")
	d := startInside(t, Config{}, timing{}, nil)
	st, err := d.paths().readState("dev")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(st.Address, "127.0.0.1:") {
		t.Errorf("listens on %s", st.Address)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	if r, err := client.Get("http://" + st.Address + "/"); err == nil {
		t.Errorf("HTTP got %s", r.Status)
	}
	for range 100 { // a port scan
		conn, err := net.Dial("tcp", st.Address)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	conn, err := net.Dial("tcp", st.Address)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write(message(`{"version":2,"token":"` + testToken + `","channel":"control"}`))
	if b, err := io.ReadAll(conn); err != nil && !isReset(err) || len(b) > 0 {
		t.Errorf("a wrong token got %q, %v", b, err)
	}
	_ = conn.Close()
	if _, err := d.connect(t).Info(t.Context()); err != nil {
		t.Error(err)
	}
	d.stop() // refusals after the first one are logged together
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
	log, err := os.ReadFile(d.paths().log())
	if err != nil || !bytes.Contains(log, []byte(`\"GET \"`)) || !bytes.Contains(log, []byte("wrong token")) {
		t.Errorf("the log (%v):\n%s", err, log)
	}
	if bytes.Contains(log, []byte(st.Token)) {
		t.Error("the token is in the log")
	}
}

func isReset(err error) bool { return strings.Contains(err.Error(), "reset") }

// TestStrangers fills the daemon's places for connections without a token, which are closed after two seconds.
func TestStrangers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes two seconds")
	}
	onBothDoors(t, func(t *testing.T) {
		d := startInside(t, Config{}, timing{}, nil)
		for range maxStrangers {
			conn, err := d.dialStranger()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
		}
		await(t, "a place", func() bool {
			c, err := d.store.Connect(context.Background(), "dev")
			if err != nil {
				return false
			}
			return c.Close() == nil
		})
	})
}
