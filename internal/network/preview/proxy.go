package preview

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"
)

// referrerPolicy keeps tokens out of the Referer of other sites, whatever the program in the VM says.
const referrerPolicy = "no-referrer"

// copyBytes is the size of the pieces in which bodies are copied: large enough that the system calls do not matter.
const copyBytes = 64 << 10

// newTransport returns the client's side. Its only way to anywhere is the Dialer.
func (s *Server) newTransport() *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext:            s.dial,
		DialTLSContext:         func(context.Context, string, string) (net.Conn, error) { return nil, errors.ErrUnsupported },
		Protocols:              &protocols,
		DisableCompression:     true, // what the guest sends is passed on as it is
		MaxIdleConnsPerHost:    32,
		MaxIdleConns:           64,
		IdleConnTimeout:        30 * time.Second,
		ResponseHeaderTimeout:  s.limits.ResponseTimeout,
		ExpectContinueTimeout:  5 * time.Second,
		MaxResponseHeaderBytes: int64(s.limits.HeaderBytes),
		WriteBufferSize:        copyBytes,
		ReadBufferSize:         copyBytes,
	}
}

func (s *Server) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:      s.transport,
		Rewrite:        rewriteRequest,
		ModifyResponse: rewriteResponse,
		ErrorHandler:   s.serveProxyError,
		FlushInterval:  -1, // events must not wait in a buffer
		BufferPool:     &buffers{},
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// buffers is an httputil.BufferPool.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[copyBytes]byte); ok {
		return p[:]
	}
	return make([]byte, copyBytes)
}

func (b *buffers) Put(p []byte) { b.pool.Put((*[copyBytes]byte)(p)) }

// poolHost names a VM to the transport, which keeps connections of equal names. The name is never looked up.
func poolHost(p Preview) string {
	return net.JoinHostPort(hex.EncodeToString([]byte(p.VM))+"-"+hex.EncodeToString([]byte(p.VMID)), strconv.Itoa(int(p.Port)))
}

// dial connects to an address that poolHost made. ctx is the transport's, which outlives the request. A dial that has not begun ends
// with the request; one that has begun continues, for another request.
func (s *Server) dial(ctx context.Context, _, address string) (net.Conn, error) {
	if !s.begin() {
		return nil, ErrClosed
	}
	defer s.work.Done()
	vm, port, err := parsePoolHost(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	var over <-chan struct{}
	if v := requestIn(ctx); v != nil {
		over = v.over
	}
	done, err := s.dials.take(ctx, address, over, s.limits.DialTimeout)
	if err != nil {
		return nil, err
	}
	limited, stop := context.WithTimeout(ctx, s.limits.DialTimeout)
	defer stop()
	conn, err := s.cfg.Dialer.DialPreview(limited, vm, port)
	done(err)
	return conn, err
}

func parsePoolHost(address string) (vm string, port uint16, err error) {
	host, digits, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	name, _, _ := strings.Cut(host, "-")
	text, err := hex.DecodeString(name)
	if err != nil {
		return "", 0, fmt.Errorf("%q names no VM: %w", address, err)
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	return string(text), uint16(n), err
}

// rewriteRequest makes of a visitor's request one to http://localhost:PORT. Hop-by-hop fields are gone already.
func rewriteRequest(pr *httputil.ProxyRequest) {
	v := requestIn(pr.In.Context())
	out := pr.Out
	out.URL.Scheme, out.URL.Host = "http", poolHost(v.preview)
	out.URL.Path = strings.TrimPrefix(out.URL.Path, v.prefix())
	out.URL.RawPath = strings.TrimPrefix(out.URL.RawPath, v.prefix())
	out.URL.RawQuery = pr.In.URL.RawQuery // as it is; ReverseProxy would drop what it does not understand
	out.Host = v.guest()
	for name := range out.Header {
		if isAboutVisitor(name) {
			delete(out.Header, name)
		}
	}
	pr.SetXForwarded()
	out.Header.Set("X-Forwarded-Host", v.guest()) // the visitor's has the token in it; what leads here is led back
	if v.byPath {
		out.Header.Set("X-Forwarded-Prefix", v.prefix())
	}
	if !strings.EqualFold(out.Header.Get("Upgrade"), "websocket") {
		out.Header.Del("Upgrade") // a protocol whose requests the proxy could not check
		out.Header.Del("Connection")
	}
	v.rewriteOrigin(out.Header)
	v.rewriteCookies(out.Header)
}

// isAboutVisitor says whether a field is one by which proxies say who the visitor is and where he has come from. Only this proxy
// does. Many servers take an underscore for a hyphen (CGI, WSGI).
func isAboutVisitor(name string) bool {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	switch name {
	case "forwarded", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "x-original-host", "x-original-url", "x-rewrite-url",
		"true-client-ip", "cf-connecting-ip", "fastly-client-ip", "x-originating-ip", "x-remote-ip", "x-remote-addr":
		return true
	}
	return strings.HasPrefix(name, "x-forwarded-") || name == "x-forwarded" || strings.HasPrefix(name, "x-original-forwarded-")
}

// rewriteResponse makes of an answer of http://localhost:PORT one of the preview's place. What the guest says of other origins does not count.
func rewriteResponse(res *http.Response) error {
	v := requestIn(res.Request.Context())
	h := res.Header
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			delete(h, name)
		}
	}
	setCommon(h)
	h.Del("Alt-Svc") // would lead past this proxy
	if v.byPath {
		h.Del("Service-Worker-Allowed") // a worker beyond the prefix would see the requests of other previews
		h.Del("Clear-Site-Data")        // the site is all of 127.0.0.1
	}
	v.rewriteSetCookies(h)
	for _, name := range []string{"Location", "Content-Location"} {
		if to := h.Get(name); to != "" {
			h.Set(name, v.public(to))
		}
	}
	if to := h.Get("Refresh"); to != "" {
		h.Set("Refresh", v.publicRefresh(to))
	}
	return nil
}

// serveProxyError says why the guest has not answered.
func (s *Server) serveProxyError(w http.ResponseWriter, r *http.Request, err error) {
	if why := context.Cause(r.Context()); why != nil {
		err = why // revoked, or the visitor has gone
	} else if v := requestIn(r.Context()); v != nil && v.body.malformed() {
		err = errBody
	}
	s.serveError(w, r, err)
}
