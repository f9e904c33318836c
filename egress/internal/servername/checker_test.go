package servername

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// clientHello is what Go's client sends first, for a name.
func clientHello(t testing.TB, name string) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		_ = tls.Client(far, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
		far.Close()
	}()
	_ = near.SetReadDeadline(time.Now().Add(10 * time.Second))
	header := make([]byte, headerSize)
	if _, err := io.ReadFull(near, header); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(header[3:]))
	if _, err := io.ReadFull(near, body); err != nil {
		t.Fatal(err)
	}
	return append(header, body...)
}

func record(kind byte, content []byte) []byte {
	return append([]byte{kind, 3, 3, byte(len(content) >> 8), byte(len(content))}, content...)
}

// fragmented has a hello in records of at most n bytes.
func fragmented(hello []byte, n int) (out []byte) {
	for part := range slices.Chunk(hello[headerSize:], n) {
		out = append(out, record(recordHandshake, part)...)
	}
	return out
}

// extended adds an extension to a hello.
func extended(hello []byte, kind uint16, content []byte) []byte {
	message := bytes.Clone(hello[headerSize:])
	at := messageHeader + 2 + 32
	at += 1 + int(message[at])
	at += 2 + int(binary.BigEndian.Uint16(message[at:]))
	at += 1 + int(message[at])
	add := binary.BigEndian.AppendUint16(nil, kind)
	add = binary.BigEndian.AppendUint16(add, uint16(len(content)))
	add = append(add, content...)
	binary.BigEndian.PutUint16(message[at:], binary.BigEndian.Uint16(message[at:])+uint16(len(add)))
	message = append(message, add...)
	n := len(message) - messageHeader
	message[1], message[2], message[3] = byte(n>>16), byte(n>>8), byte(n)
	return record(recordHandshake, message)
}

func nameExtension(names ...string) (list []byte) {
	for _, n := range names {
		list = append(list, 0, byte(len(n)>>8), byte(len(n)))
		list = append(list, n...)
	}
	return append([]byte{byte(len(list) >> 8), byte(len(list))}, list...)
}

// send gives a Checker text in pieces and returns what passed and which names were seen.
func send(text []byte, piece int) (passed []byte, names []string, err error) {
	c := New(func(_, name string) error {
		names = append(names, name)
		if !strings.HasSuffix(name, "good.test") {
			return errors.New("not allowed: " + name)
		}
		return nil
	})
	for part := range slices.Chunk(text, piece) {
		out, err := c.Next(part)
		if err != nil {
			return passed, names, err
		}
		passed = append(passed, out...)
	}
	return passed, names, c.End()
}

func TestChecker(t *testing.T) {
	good, evil, none := clientHello(t, "good.test"), clientHello(t, "evil.test"), clientHello(t, "192.0.2.1")
	data := record(recordData, bytes.Repeat([]byte{1, 22, 3}, 5000))
	keys := record(recordHandshake, []byte{16, 0, 0, 1, 0})
	change := record(recordChange, []byte{1})
	join := func(parts ...[]byte) string { return string(bytes.Join(parts, nil)) }
	get := "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"
	const head = "POST /a HTTP/1.1\r\nHost: good.test\r\n"
	for _, c := range []struct {
		name, text string
		err        string // "": all of it passes
		passes     int    // with err: how many bytes pass at most
	}{
		{"hello", join(good), "", 0},
		{"upper case", join(extended(none, extensionName, nameExtension("Good.TEST."))), "", 0},
		{"fragments of a byte", join(fragmented(good, 1)), "", 0},
		{"fragments of 100 bytes, and data", join(fragmented(good, 100), change, data, data), "", 0},
		{"TLS 1.2", join(good, keys, change, record(recordHandshake, []byte{1, 2, 3, 4}), data), "", 0},
		{"another name", join(evil), "not allowed: evil.test", 0},
		{"another name in fragments", join(fragmented(evil, 7)), "not allowed: evil.test", 0},
		{"a second hello", join(good, change, good, change, data), "", 0},
		{"a second hello with another name", join(good, change, evil), `a second ClientHello names "evil.test"`, len(good) + len(change)},
		{"the same behind early data", join(good, change, data, clientHello(t, "also.good.test")), "a second ClientHello names", len(good) + len(change) + len(data)},
		{"no name", join(none), "names no server", 0},
		{"encrypted", join(extended(good, extensionECH, []byte{0, 0, 1})), "encrypted (ECH)", 0},
		{"two names", join(extended(none, extensionName, nameExtension("good.test", "evil.test"))), "malformed", 0},
		{"two lists of names", join(extended(good, extensionName, nameExtension("evil.test"))), "malformed", 0},
		{"a name of another kind", join(extended(none, extensionName, append([]byte{0, 12, 9, 0, 9}, "good.test"...))), "malformed", 0},
		{"a name with NUL", join(extended(none, extensionName, nameExtension("evil.test\x00.good.test"))), "not the name of a server", 0},
		{"an empty name", join(extended(none, extensionName, nameExtension(""))), "not the name", 0},
		{"an interrupted hello", join(fragmented(good, 50)[:55], data), "interrupted", 0},
		{"an empty fragment", join(fragmented(good, 50)[:55], []byte{22, 3, 3, 0, 0}), "interrupted", 0},
		{"more in the record", join(record(recordHandshake, append(bytes.Clone(good[headerSize:]), 1, 2))), "something behind", 0},
		{"data first", join(data), "neither", 0},
		{"an alert first", join(record(recordAlert, []byte{2, 0})), "neither", 0},
		{"another message first", join(keys), "does not begin with a ClientHello", 0},
		{"an oversized record", "\x16\x03\x01\xff\xff", "not TLS", 0},
		{"an oversized hello", join(extended(good, 21, make([]byte, 20<<10))[:headerSize]), "not TLS", 0},
		{"an oversized hello in fragments", join(fragmented(append([]byte{22, 3, 1, 0, 0, 1, 1, 0, 0}, make([]byte, 64<<10)...), 16<<10)), "first 32768 bytes", 0},
		{"half a hello", join(good[:100]), "in the middle", 0},

		{"request", get, "", 0},
		{"requests", get + "HEAD /x HTTP/1.0\r\nhost:\tgood.test:80\t\r\nCookie: a=b\r\n\r\n" + get, "", 0},
		{"absolute", "GET http://good.test:80/x?y HTTP/1.1\r\nHost: good.test:80\r\n\r\n", "", 0},
		{"OPTIONS", "OPTIONS * HTTP/1.1\r\nHost: good.test\r\n\r\n", "", 0},
		{"body", head + "Content-Length: 26\r\n\r\nGET / HTTP/1.1\r\nHost: evil" + get, "", 0},
		{"chunks", head + "Transfer-Encoding: Chunked\r\n\r\n1a;x=y\r\nGET / HTTP/1.1\r\nHost: evil\r\n003\r\n0\r\n\r\n0\r\nX: y\r\n\r\n" + get, "", 0},
		{"another Host", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "not allowed: evil.test", 0},
		{"another Host later", get + "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "not allowed: evil.test", len(get)},
		{"two Hosts", "GET / HTTP/1.1\r\nHost: good.test\r\nhost: evil.test\r\n\r\n", "field host twice", 0},
		{"the same Host twice", "GET / HTTP/1.1\r\nHost: good.test\r\nhost: good.test\r\n\r\n", "field host twice", 0},
		{"no Host", "GET / HTTP/1.0\r\n\r\n", "no Host", 0},
		{"absolute for another", "GET http://evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n", `target names "evil.test"`, 0},
		{"absolute with a user", "GET http://good.test@evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n", "target names", 0},
		{"absolute for TLS", "GET https://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n", "neither a path nor", 0},
		{"tunnel", "CONNECT good.test:443 HTTP/1.1\r\nHost: good.test\r\n\r\n", "CONNECT", 0},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2", 0},
		{"upgrade", "GET / HTTP/1.1\r\nHost: good.test\r\nUpgrade: h2c\r\n\r\n", "Upgrade", 0},
		{"folded", "GET / HTTP/1.1\r\nHost: good.test\r\nX: a\r\n Host: evil.test\r\n\r\n", "malformed", 0},
		{"space before the colon", "GET / HTTP/1.1\r\nHost: good.test\r\nHost : evil.test\r\n\r\n", "malformed", 0},
		{"a line without CR", "GET / HTTP/1.1\r\nHost: good.test\r\nX: y\nHost: evil.test\r\n\r\n", "malformed", 0},
		{"a head without CR", "GET / HTTP/1.1\nHost: good.test\n\n", "", -1},
		{"both lengths", head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "where a request's body ends", 0},
		{"two lengths", head + "Content-Length: 5\r\nContent-Length: 50\r\n\r\n", "field content-length twice", 0},
		{"a signed length", head + "Content-Length: +5\r\n\r\n", "malformed", 0},
		{"other codings", head + "Transfer-Encoding: gzip, chunked\r\n\r\n", "where a request's body ends", 0},
		{"chunks in HTTP/1.0", "POST / HTTP/1.0\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n", "where a request's body ends", 0},
		{"a malformed chunk", head + "Transfer-Encoding: chunked\r\n\r\n0x5\r\n", "malformed", 1000},
		{"a chunk without CR", head + "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n", "CR and LF", 1000},
		{"behind a chunk", head + "Transfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n", "", -1},
		{"a long chunk line", head + "Transfer-Encoding: chunked\r\n\r\n1;" + strings.Repeat("x", 500), "too long", 1000},
		{"an oversized head", "GET / HTTP/1.1\r\nHost: good.test\r\nX: " + strings.Repeat("y", 64<<10), "first 32768 bytes", 0},
		{"an address", "GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n", "not the name", 0},
		{"ssh", "SSH-2.0-OpenSSH_9.9\r\n", "neither TLS nor HTTP/1", 0},
		{"binary", "\x00\x01\x02", "neither TLS nor HTTP/1", 0},
		{"SSL 2", "\x80\x2e\x01\x03\x01", "neither TLS nor HTTP/1", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, piece := range []int{len(c.text), 1, 3, 97} {
				passed, names, err := send([]byte(c.text), piece)
				switch {
				case c.passes < 0: // what it does is not laid down, except that it fails
					if err == nil {
						t.Errorf("in pieces of %d: %q passed", piece, passed)
					}
				case c.err == "":
					if err != nil || string(passed) != c.text || len(names) == 0 {
						t.Errorf("in pieces of %d: %v, %d of %d bytes passed, names %v", piece, err, len(passed), len(c.text), names)
					}
				case err == nil || !strings.Contains(err.Error(), c.err):
					t.Errorf("in pieces of %d: %v, want %q", piece, err, c.err)
				case len(passed) > c.passes:
					t.Errorf("in pieces of %d: %d bytes passed", piece, len(passed))
				}
			}
		})
	}
}

// TestRelease: what was held back, and the rest, in order.
func TestRelease(t *testing.T) {
	refused := errors.New("refused")
	c := New(func(string, string) error { return refused })
	text := "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\nmore"
	if out, err := c.Next([]byte(text[:20])); err != nil || len(out) > 0 {
		t.Fatalf("%q, %v", out, err)
	}
	if _, err := c.Next([]byte(text[20:])); !errors.Is(err, refused) || c.Named() {
		t.Fatal(err)
	}
	if got := string(c.Release()); got != text {
		t.Errorf("%q", got)
	}
}
