package network

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// data returns n bytes that are the same each time and do not repeat.
func data(n int) []byte {
	b := make([]byte, n)
	_, _ = mathrand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// files answers GET /N with data(N).
var files = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(n))
	_, _ = w.Write(data(n))
})

func port(t *testing.T, address net.Addr) uint16 {
	t.Helper()
	at, err := netip.ParseAddrPort(address.String())
	if err != nil {
		t.Fatal(err)
	}
	return at.Port()
}

// serveHTTP starts an HTTP server on loopback.
func serveHTTP(t *testing.T, h http.Handler) *httptest.Server {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// serveHTTPS starts a server for host.agentvm.internal and returns it with its authority in PEM.
func serveHTTPS(t *testing.T, h http.Handler) (*httptest.Server, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "agentvm test"}, IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"host.agentvm.internal"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// serveTCP calls handle for each connection, and waits for the handlers at the test's end.
func serveTCP(t *testing.T, handle func(*net.TCPConn)) net.Addr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				handle(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr()
}

// serveSums answers whatever is sent to it, up to the end of the stream, with its length and sum.
func serveSums(t *testing.T) net.Addr {
	return serveTCP(t, func(c *net.TCPConn) {
		h := sha256.New()
		n, err := io.Copy(h, c)
		if err != nil {
			return
		}
		fmt.Fprintf(c, "%d %x\n", n, h.Sum(nil))
	})
}

// serveUDPEcho sends datagrams back in upper case.
func serveUDPEcho(t *testing.T) net.Addr {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			answer := bytes.ToUpper(b[:n])
			if name, ok := bytes.CutPrefix(answer, []byte{0, 1}); ok { // TFTP's request for a file: here is its only block
				name, _, _ = bytes.Cut(name, []byte{0})
				answer = append([]byte{0, 3, 0, 1}, append(name, '\n')...)
			}
			_, _ = c.WriteTo(answer, from)
		}
	})
	t.Cleanup(func() { c.Close(); done.Wait() })
	return c.LocalAddr()
}

// nameServer is the resolver that the VM is given: a real server over UDP and TCP.
type nameServer struct {
	at netip.AddrPort

	mu      sync.Mutex
	records map[string][]string // "name. TYPE" to answers in zone-file form; each query takes the next, the last stays
	asked   []string
}

func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	s := &nameServer{records: make(map[string][]string)}
	packets, streams := listenBoth(t)
	s.at = netip.MustParseAddrPort(packets.LocalAddr().String())
	for _, server := range []*dns.Server{{PacketConn: packets, Handler: s}, {Listener: streams, Handler: s}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		var done sync.WaitGroup
		done.Go(func() { _ = server.ActivateAndServe() })
		<-started
		t.Cleanup(func() { _ = server.Shutdown(); done.Wait() })
	}
	return s
}

// listenBoth takes a port that is free for UDP and for TCP.
func listenBoth(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 100 {
		streams, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		packets, err := net.ListenPacket("udp", streams.Addr().String())
		if err == nil {
			return packets, streams
		}
		streams.Close()
	}
	t.Fatal("no port is free for UDP and for TCP")
	return nil, nil
}

// set gives the answers for a name and type, one a query; several records of one answer are separated by newlines.
func (s *nameServer) set(question string, answers ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[question] = answers
}

func (s *nameServer) queries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

func (s *nameServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	question := strings.ToLower(q.Question[0].Name) + " " + dns.TypeToString[q.Question[0].Qtype]
	s.mu.Lock()
	s.asked = append(s.asked, question)
	answers, known := s.records[question]
	if len(answers) > 1 {
		s.records[question] = answers[1:]
	}
	s.mu.Unlock()
	if !known {
		_ = w.WriteMsg(m)
		return
	}
	for line := range strings.SplitSeq(answers[0], "\n") {
		if record, err := dns.NewRR(line); err == nil && record != nil {
			m.Answer = append(m.Answer, record)
		}
	}
	if w.RemoteAddr().Network() == "udp" && m.Len() > dns.MinMsgSize {
		m.Truncate(dns.MinMsgSize)
	}
	_ = w.WriteMsg(m)
}
