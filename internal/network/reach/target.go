package reach

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
)

// target is where a request goes inside of the VM.
type target struct {
	host string // an address of 127.0.0.0/8, "::1", or "localhost": whichever of both loopback addresses answers
	port uint16
}

func (t target) address() string { return net.JoinHostPort(t.host, strconv.Itoa(int(t.port))) }

// loopbackHost reads a host that is the VM's own: an address of its loopback as netip writes it, localhost, or a name below it
// (RFC 6761 section 6.3). Nothing is looked up. What other programs take for an address, such as 127.1, 0x7f000001, an IPv4-mapped one or
// one with a zone, is refused, and so are names with letters beyond ASCII or with a dot at the end.
func loopbackHost(host string) (string, bool) {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.String(), a.IsLoopback() && !a.Is4In6() && a.Zone() == "" && a.String() == host
	}
	below, found := strings.CutSuffix(strings.ToLower(host), "localhost")
	if !found || len(host) > 253 {
		return "", false
	}
	return "localhost", below == "" || below[len(below)-1] == '.' && validLabels(below[:len(below)-1])
}

// validLabels reports whether a name has only labels of host names (RFC 1123 section 2.1), or underscores; all in lower case.
func validLabels(name string) bool {
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		if strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// parseTarget reads HOST:PORT.
func parseTarget(address string) (t target, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return t, fmt.Errorf("%q is not HOST:PORT: %w", shorten(address), syscall.EINVAL)
	}
	return newTarget(host, port)
}

func newTarget(host, port string) (t target, err error) {
	own := false
	if t.host, own = loopbackHost(host); !own {
		return target{}, fmt.Errorf("%q is not the VM's loopback; use localhost, 127.0.0.1 or [::1]: %w", shorten(host), syscall.EADDRNOTAVAIL)
	}
	if t.port, own = parsePort(port); !own {
		return target{}, fmt.Errorf("port %q: want a number from 1 to 65535: %w", shorten(port), syscall.EINVAL)
	}
	return t, nil
}

// shorten bounds what a message quotes of a request.
func shorten(text string) string {
	if len(text) > 80 {
		return text[:80] + "..."
	}
	return text
}

// requestTarget reads where a request goes. It refuses a request whose URL, or unless a proxy sends it whose Host header, names another place
// than the VM.
func requestTarget(r *http.Request, proxy bool) (t target, err error) {
	if r.URL == nil {
		return t, fmt.Errorf("a request without a URL: %w", syscall.EINVAL)
	}
	if t, err = urlTarget(r.URL); err != nil {
		return t, err
	}
	if !proxy && !ownAuthority(r.Host) {
		return target{}, fmt.Errorf("the Host header names %q, which is not the VM's loopback: %w", shorten(r.Host), syscall.EADDRNOTAVAIL)
	}
	return t, nil
}

func urlTarget(u *url.URL) (t target, err error) {
	port := u.Port()
	if port == "" && !strings.HasSuffix(u.Host, ":") {
		port = "80"
	}
	switch {
	case u.Scheme != "http" || u.Opaque != "":
		return t, fmt.Errorf("%q: only http:// URLs lead into a VM: %w", shorten(u.Redacted()), syscall.EINVAL)
	case u.User != nil:
		return t, fmt.Errorf("a URL with a user's name: put it into the Authorization header: %w", syscall.EINVAL)
	}
	host := u.Hostname()
	// Hostname removes brackets around anything; only IPv6 addresses may have them.
	if strings.HasPrefix(u.Host, "[") != strings.Contains(host, ":") {
		return t, fmt.Errorf("%q is not the VM's loopback; use localhost, 127.0.0.1 or [::1]: %w", shorten(u.Host), syscall.EADDRNOTAVAIL)
	}
	return newTarget(host, port)
}

// ownAuthority reports whether a Host header, HOST or HOST:PORT or nothing, names the VM's loopback. The guest may check the port.
func ownAuthority(authority string) bool {
	if authority == "" {
		return true
	}
	host := authority
	if h, port, err := net.SplitHostPort(authority); err == nil {
		if _, ok := parsePort(port); !ok {
			return false
		}
		host = h
	} else if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	_, own := loopbackHost(host)
	return own && strings.HasPrefix(authority, "[") == strings.Contains(host, ":")
}
