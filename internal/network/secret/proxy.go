package secret

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	helloTime  = 15 * time.Second // from a connection's begin until the guest's ClientHello is there
	headerTime = time.Minute      // from a request's begin until its header is there
	maxStreams = 100              // of one connection at once
	maxConns   = 512              // of one VM at once; what exceeds it is reset
	maxHello   = 64 << 10         // bytes; TLS's records have 16 KiB, and a ClientHello seldom more than 2
	maxHeader  = 1 << 20          // bytes of an answer's header, which is searched; as net/http's of a request's
)

// ProxyConfig configures a Proxy.
type ProxyConfig struct {
	Secrets   []Secret // with values, see Read
	Authority *Authority
	// Roots are the authorities that the hosts' certificates must come from. nil: this system's.
	Roots  *x509.CertPool
	Logger *slog.Logger
}

// Proxy carries the guest's connections to the hosts that get secrets:
//
//	guest ◄─ TLS, certificate of the VM's authority ─► Proxy ◄─ TLS, verified for the same name ─► host
//
// It opens only connections whose ClientHello names one of the hosts (server_name, RFC 6066 section 3); others it carries as they are. It
// passes no request on that is for another host than that: a front end that serves several must not be sent a secret for another.
type Proxy struct {
	config  ProxyConfig
	hosts   map[host]replacements
	slots   chan struct{}
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// NewProxy makes a proxy.
func NewProxy(c ProxyConfig) (*Proxy, error) {
	p := &Proxy{config: c, hosts: map[host]replacements{}, slots: make(chan struct{}, maxConns)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	for _, s := range c.Secrets {
		for _, text := range s.Hosts {
			h, err := parseHost(text)
			if err != nil {
				return nil, err
			}
			p.hosts[h] = replacementsOf(c.Secrets, h)
		}
	}
	return p, nil
}

// Close ends all connections and waits for them. A nil Proxy has none.
func (p *Proxy) Close() error {
	if p != nil {
		p.cancel()
		p.running.Wait()
	}
	return nil
}

// Wants reports whether a connection to an address with these names, in lower case, may be one to a host that gets secrets.
func (p *Proxy) Wants(names []string, port uint16) bool {
	return p != nil && slices.ContainsFunc(names, func(name string) bool { _, found := p.hosts[host{name, port}]; return found })
}

// errBusy is the error of Through when a VM has too many of these connections.
var errBusy = fmt.Errorf("a VM can have %d connections at once to hosts that get secrets: %w", maxConns, syscall.EMFILE)

// Through returns a connection that leads to upstream by way of the proxy, for the guest's end; closing it closes upstream. dial makes more
// connections to the same address.
func (p *Proxy) Through(upstream net.Conn, port uint16, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	select {
	case p.slots <- struct{}{}:
	default:
		p.config.Logger.Warn("a connection was refused", "error", errBusy)
		return nil, errors.Join(errBusy, upstream.Close())
	}
	near, far := newPipe(upstream)
	p.running.Go(func() {
		defer func() { <-p.slots }()
		p.serve(far, &noting{Conn: upstream, of: near}, port, dial)
		_, _ = far.Close(), upstream.Close()
	})
	return near, nil
}

// serve carries a connection until it has ended.
func (p *Proxy) serve(guest, upstream net.Conn, port uint16, dial func(context.Context) (net.Conn, error)) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _, _ = guest.Close(), upstream.Close() })()
	name, hello := peekName(guest)
	again := &replayed{Conn: guest, first: hello}
	if r, found := p.hosts[host{name, port}]; found {
		p.open(ctx, again, upstream, host{name, port}, r, dial)
		return
	}
	carry(again, upstream)
}

// peekName reads the guest's ClientHello and returns the server's name in it, if it has one, and what was read.
func peekName(guest net.Conn) (name string, read []byte) {
	var seen bytes.Buffer
	_ = guest.SetReadDeadline(time.Now().Add(helloTime))
	errSeen := errors.New("seen")
	_ = tls.Server(listening{guest, io.TeeReader(io.LimitReader(guest, maxHello), &seen)}, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name = strings.TrimSuffix(strings.ToLower(hello.ServerName), ".")
			return nil, errSeen
		},
	}).Handshake()
	_ = guest.SetReadDeadline(time.Time{})
	return name, seen.Bytes()
}

// listening is a connection of which something else is read, and to which nothing is written.
type listening struct {
	net.Conn
	io.Reader
}

func (l listening) Read(p []byte) (int, error)      { return l.Reader.Read(p) }
func (l listening) Write(p []byte) (int, error)     { return len(p), nil }
func (l listening) Close() error                    { return nil }
func (l listening) SetDeadline(time.Time) error     { return nil }
func (l listening) SetReadDeadline(time.Time) error { return nil }

// replayed is a connection of which the first bytes were read already.
type replayed struct {
	net.Conn
	first []byte
}

func (r *replayed) CloseWrite() error { return closeWrite(r.Conn) }

func (r *replayed) Read(p []byte) (int, error) {
	if len(r.first) > 0 {
		n := copy(p, r.first)
		r.first = r.first[n:]
		return n, nil
	}
	return r.Conn.Read(p)
}

// carry moves bytes both ways until both sides have ended, or one has failed.
func carry(guest *replayed, upstream net.Conn) {
	var both sync.WaitGroup
	move := func(to, from net.Conn) {
		if _, err := io.Copy(to, from); err != nil || closeWrite(to) != nil {
			_, _ = guest.Close(), upstream.Close()
		}
	}
	both.Go(func() { move(upstream, guest) })
	move(guest, upstream)
	both.Wait()
}

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// open serves the guest's requests to a host. first is a connection to it, and dial makes others: HTTP/1.1 needs them, for WebSockets.
func (p *Proxy) open(ctx context.Context, guest, first net.Conn, to host, r replacements, dial func(context.Context) (net.Conn, error)) {
	unused := make(chan net.Conn, 1)
	unused <- first
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			select {
			case c := <-unused:
				return c, nil
			default:
				return dial(ctx)
			}
		},
		TLSClientConfig:   &tls.Config{RootCAs: p.config.Roots, ServerName: to.name, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true, DisableCompression: true, TLSHandshakeTimeout: 30 * time.Second, MaxConnsPerHost: maxStreams,
		MaxResponseHeaderBytes: maxHeader,
	}
	defer transport.CloseIdleConnections()
	conns := newSingle(guest)
	server := &http.Server{
		Handler: p.handler(transport, to, r), TLSConfig: &tls.Config{
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.config.Authority.leaf(to.name) },
		},
		BaseContext:       func(net.Listener) context.Context { return ctx },
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ReadHeaderTimeout: headerTime, ErrorLog: r.errorLog(p.config.Logger),
	}
	_ = server.ServeTLS(conns, "", "") // until conns has ended
	_ = server.Close()
}

// upgrades are the protocols to which a connection may change, in lower case. HTTP/2 (h2c) is not among them: it would bring headers that are
// not searched.
var upgrades = []string{"websocket", "spdy/3.1", "tcp"}

// handler passes requests on, with secrets.
func (p *Proxy) handler(transport http.RoundTripper, to host, r replacements) http.Handler {
	address := net.JoinHostPort(to.name, strconv.Itoa(int(to.port)))
	logger := p.config.Logger.With("host", address)
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: r.errorLog(logger),
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Scheme, pr.Out.URL.Host = "https", address
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // as it is; ReverseProxy would drop what it does not understand
			for _, field := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if values, found := pr.In.Header[field]; found {
					pr.Out.Header[field] = slices.Clone(values)
				}
			}
			if !slices.Contains(upgrades, strings.ToLower(pr.Out.Header.Get("Upgrade"))) {
				pr.Out.Header.Del("Upgrade") // which a server may pass over as well (RFC 9110 section 7.8)
				pr.Out.Header.Del("Connection")
			}
			r.apply(pr.Out)
		},
		ModifyResponse: func(answer *http.Response) error {
			if answer.StatusCode == http.StatusSwitchingProtocols { // which goes past hidingWriter
				r.hide(answer.Header)
				answer.Status = "" // the standard's words in place of the server's
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			reason := r.hideText(err.Error()) // it quotes answers that are not HTTP
			logger.Warn("a request to a host that gets secrets failed", "error", reason)
			http.Error(w, fmt.Sprintf("agentvm: %s gets secrets of this VM, and could not be asked: %s", address, reason), http.StatusBadGateway)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if asked, err := parseHost(request.Host); err != nil || asked.name != to.name {
			http.Error(w, fmt.Sprintf("agentvm: this connection leads to %s, which gets secrets of this VM; it takes requests for no other host", address),
				http.StatusMisdirectedRequest)
			return
		}
		if strings.EqualFold(request.Method, http.MethodTrace) || strings.EqualFold(request.Method, http.MethodConnect) {
			// The answer to TRACE is the request, with the secret, and what CONNECT opens is not searched (RFC 9110 section 9.3).
			w.Header().Set("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
			http.Error(w, fmt.Sprintf("agentvm: %s gets secrets of this VM, and is not sent %.16q, which would tell them", address, request.Method),
				http.StatusMethodNotAllowed)
			return
		}
		// Else net/http reads the rest of the body itself when the answer begins, which the transport takes for a failure if it has not seen the end.
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(hidingWriter{w, r}, request)
		r.hide(w.Header()) // the trailers
	})
}

// single is a listener of one connection, which ends with it.
type single struct {
	conn  net.Conn
	given chan net.Conn
	ended chan struct{}
	once  sync.Once
}

func newSingle(conn net.Conn) *single {
	s := &single{conn: conn, given: make(chan net.Conn, 1), ended: make(chan struct{})}
	s.given <- &counted{Conn: conn, closed: func() { s.once.Do(func() { close(s.ended) }) }}
	return s
}

func (s *single) Accept() (net.Conn, error) {
	select {
	case c := <-s.given:
		return c, nil
	case <-s.ended:
		return nil, net.ErrClosed
	}
}

func (s *single) Close() error   { return nil }
func (s *single) Addr() net.Addr { return s.conn.LocalAddr() }

// counted tells that it was closed.
type counted struct {
	net.Conn
	closed func()
}

func (c *counted) Close() error {
	defer c.closed()
	return c.Conn.Close()
}
