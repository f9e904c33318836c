package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/proxy"
)

// dialFunc is Config.Dial.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// parseProxy reads Config.Proxy; nil: there is none.
func parseProxy(text string) (*url.URL, error) {
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme) || u.Path != "" && u.Path != "/" || u.RawQuery != "" {
		return nil, errors.New("the proxy's URL: want http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT, with USER:PASSWORD@ before HOST where it is needed") // without the text, which may have a password
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), map[string]string{"http": "80", "https": "443", "socks5": "1080"}[u.Scheme])
	}
	return u, nil
}

// CheckProxy returns what is wrong with a proxy's URL, as New does.
func CheckProxy(text string) error {
	_, err := parseProxy(text)
	return err
}

// proxied returns a dial function that makes TCP connections through a proxy. The gate has decided about the address before; the proxy is given
// that address, so that it cannot choose another by resolving a name. direct are addresses that are dialled without it: the VM's resolvers.
// The host's loopback, which the gate dials for opened ports only, is direct as well.
func proxied(dial dialFunc, text string, direct []netip.AddrPort) (dialFunc, error) {
	u, err := parseProxy(text)
	if u == nil || err != nil {
		return dial, err
	}
	plain := dial
	through := func(ctx context.Context, address string) (net.Conn, error) {
		return connectHTTP(ctx, plain, u, address)
	}
	if u.Scheme == "socks5" {
		dialer, err := proxy.FromURL(u, contextDialer(plain))
		if err != nil {
			return nil, fmt.Errorf("the proxy: %w", err)
		}
		through = func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.(proxy.ContextDialer).DialContext(ctx, "tcp", address)
		}
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		to, err := netip.ParseAddrPort(address)
		switch {
		case err != nil:
			return nil, err
		case to.Addr().IsLoopback(), slices.Contains(direct, to):
			return plain(ctx, network, address)
		case network != "tcp":
			return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("UDP does not pass the proxy of this VM (--proxy)")}
		}
		conn, err := through(ctx, address)
		if err != nil {
			return nil, fmt.Errorf("by the proxy %s: %w", u.Redacted(), err)
		}
		return conn, nil
	}, nil
}

// contextDialer is a dial function as package proxy wants it.
type contextDialer dialFunc

func (d contextDialer) Dial(network, address string) (net.Conn, error) {
	return d(context.Background(), network, address)
}

func (d contextDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return d(ctx, network, address)
}

// connectHTTP asks an HTTP proxy for a connection (RFC 9110 section 9.3.6).
func connectHTTP(ctx context.Context, dial dialFunc, u *url.URL, address string) (net.Conn, error) {
	conn, err := dial(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	if u.Scheme == "https" {
		conn = tls.Client(conn, &tls.Config{ServerName: u.Hostname(), NextProtos: []string{"http/1.1"}})
	}
	conn, err = askConnect(conn, u, address)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// maxAnswer bounds the answer of a proxy with what comes in the same packet, in bytes.
const maxAnswer = 64 << 10

// askConnect does the exchange. The connection that it returns begins with what the proxy sent after its answer.
func askConnect(conn net.Conn, u *url.URL, address string) (net.Conn, error) {
	request := "CONNECT " + address + " HTTP/1.1\r\nHost: " + address + "\r\n"
	if u.User != nil {
		password, _ := u.User.Password()
		request += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(conn, request+"\r\n"); err != nil {
		return conn, err
	}
	// A server that speaks first may have its first bytes in the same packet as the proxy's answer: this reader has them then.
	reader := bufio.NewReaderSize(io.LimitReader(conn, maxAnswer), 4<<10)
	text := textproto.NewReader(reader)
	status, err := text.ReadLine()
	if err != nil {
		return conn, fmt.Errorf("its answer: %w", err)
	}
	if version, rest, _ := strings.Cut(status, " "); !strings.HasPrefix(version, "HTTP/1.") || !strings.HasPrefix(rest, "200") {
		return conn, fmt.Errorf("it answers %.100q", status)
	}
	if _, err := text.ReadMIMEHeader(); err != nil {
		return conn, fmt.Errorf("its answer: %w", err)
	}
	if reader.Buffered() == 0 {
		return conn, nil
	}
	return &begun{conn, reader}, nil
}

// begun is a connection of which a part was read already.
type begun struct {
	net.Conn
	reader *bufio.Reader
}

func (c *begun) Read(p []byte) (int, error) {
	if c.reader.Buffered() > 0 {
		return c.reader.Read(p)
	}
	return c.Conn.Read(p)
}

// CloseWrite sends FIN, where the connection can.
func (c *begun) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// SetLinger is net.TCPConn's.
func (c *begun) SetLinger(seconds int) error {
	if conn, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		return conn.SetLinger(seconds)
	}
	return nil
}
