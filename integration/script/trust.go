package script

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"agentvm/egress"
)

// serveTLS starts an HTTPS server on loopback, for host.agentvm.internal, that answers with a text, and writes its CA's
// certificate: servetls VARIABLE FILE TEXT.
func serveTLS(ts *testscript.TestScript, _ bool, args []string) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	from, until := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: from, NotAfter: until,
	}
	ca.Subject.CommonName = "test CA"
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	ts.Check(err)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{egress.HostName}, NotBefore: from, NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), 0o600))

	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, args[2]) }))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of clients that do not trust it
	server.StartTLS()
	ts.Defer(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	ts.Check(err)
	ts.Setenv(args[0], port)
}

// serveUnix starts a server on a Unix socket that answers with what it is sent and a text: serveunix VARIABLE TEXT. The
// variable gets the path, which is short enough for one.
func serveUnix(ts *testscript.TestScript, _ bool, args []string) {
	dir, err := os.MkdirTemp("", "s")
	ts.Check(err)
	ts.Defer(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			b, _ := io.ReadAll(c)
			_, _ = fmt.Fprintf(c, "%s%s\n", b, args[1])
			_ = c.Close()
		}
	}()
	ts.Setenv(args[0], path)
}
