package servername

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// FuzzTLS: what passes as a ClientHello names the same server to crypto/tls.
func FuzzTLS(f *testing.F) {
	good := clientHello(f, "good.test")
	f.Add(good, 1)
	f.Add(fragmented(good, 50), 7)
	f.Add(extended(good, extensionName, nameExtension("evil.test")), 300)
	f.Add(append(bytes.Clone(good), clientHello(f, "evil.test")...), 9)
	f.Fuzz(func(t *testing.T, text []byte, piece int) {
		if len(text) == 0 || text[0] != recordHandshake || piece < 1 {
			return
		}
		passed, names, _ := send(text, piece)
		if len(passed) == 0 {
			return
		}
		if name, seen := serverSees(passed); seen && !strings.EqualFold(strings.TrimSuffix(name, "."), names[0]) {
			t.Errorf("the server sees %q, the checker %q", name, names)
		}
	})
}

// serverSees returns the name that a server of crypto/tls finds.
func serverSees(text []byte) (name string, seen bool) {
	stop := errors.New("stop")
	_ = tls.Server(script{nil, bytes.NewReader(text)}, &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		name, seen = hello.ServerName, true
		return nil, stop
	}}).HandshakeContext(context.Background())
	return name, seen
}

// script is a connection on which a text comes and to which anything can be written.
type script struct {
	net.Conn
	io.Reader
}

func (s script) Read(p []byte) (int, error)  { return s.Reader.Read(p) }
func (s script) Write(p []byte) (int, error) { return len(p), nil }
func (s script) Close() error                { return nil }

// FuzzHTTP: in what passes net/http finds only requests for names that were allowed.
func FuzzHTTP(f *testing.F) {
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: good.test\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"POST http://good.test/ HTTP/1.1\r\nHost: good.test:80\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\nA: b\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
	} {
		f.Add([]byte(text), 1)
	}
	f.Fuzz(func(t *testing.T, text []byte, piece int) {
		if len(text) == 0 || text[0] == recordHandshake || piece < 1 {
			return
		}
		passed, names, _ := send(text, piece)
		for r := bufio.NewReader(bytes.NewReader(passed)); ; {
			request, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			host, _, _ := strings.Cut(strings.ToLower(request.Host), ":")
			if !strings.HasSuffix(strings.TrimSuffix(host, "."), "good.test") {
				t.Fatalf("a request for %q passed in %q (names %v)", request.Host, passed, names)
			}
			if _, err := io.Copy(io.Discard, request.Body); err != nil {
				return
			}
		}
	})
}
