package images

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestConnectErrors(t *testing.T) {
	wrap := func(err error) error { return &url.Error{Op: "Get", URL: "https://mirror", Err: err} }
	tests := []struct {
		name               string
		err                error
		unreachable, again bool
	}{
		{"no such host", wrap(&net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}), true, false},
		{"refused", wrap(&net.OpError{Op: "dial", Err: errors.New("connection refused")}), true, false},
		{"proxy refused", wrap(&net.OpError{Op: "proxyconnect", Err: errors.New("connection refused")}), true, false},
		{"reset", wrap(&net.OpError{Op: "read", Err: errors.New("connection reset")}), true, true},
		{"certificate", wrap(&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}), false, false},
		{"redirect", wrap(fmt.Errorf("%w: more than 5", errRedirect)), false, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := connectError(test.err)
			if errors.Is(err, ErrUnreachable) != test.unreachable || errors.As(err, new(*brokenError)) != test.again {
				t.Errorf("error %#v", err)
			}
		})
	}
}

// TestNoWayBackToPlainHTTP follows a redirect from https to http: it must not.
func TestNoWayBackToPlainHTTP(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Error("asked over plain http") }))
	defer plain.Close()
	secure := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	defer secure.Close()
	s, err := Config{Dir: t.TempDir(), AlpineMirror: secure.URL, Transport: secure.Client().Transport}.Open()
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Pull(t.Context(), "alpine", nil)
	if err == nil || !strings.Contains(err.Error(), "from https to http") || errors.Is(err, ErrUnreachable) {
		t.Errorf("error %v", err)
	}
}
