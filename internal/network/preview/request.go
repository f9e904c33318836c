package preview

import (
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"

	"agentvm/internal/host/origin"
)

// A request is what the server knows about an HTTP request to a preview: which preview, by which form of link, from which origin.
type request struct {
	preview Preview
	token   string
	byPath  bool            // http://127.0.0.1:PORT/p/TOKEN/, not http://TOKEN.localhost:PORT/
	host    string          // host:port as in the visitor's URLs, in lower case
	foreign bool            // made by a page of another origin: it is forwarded without cookies
	over    <-chan struct{} // closed when the request has ended, or is cut
	body    *requestBody    // nil: not asked for
}

// What is refused before any token is looked at.
var (
	errHost    = errors.New("the request is for another host")
	errForm    = errors.New("the request is not for a server but for a proxy")
	errNoToken = errors.New("the request has no token")
)

// requestOf reads which preview a request is for. The name in Host is checked first and to the letter: a page of another name that was
// made to resolve to loopback (DNS rebinding) gets nothing, not even whether a token is good.
func (s *Server) requestOf(r *http.Request) (v request, err error) {
	if r.Method == http.MethodConnect || r.URL.Host != "" || !strings.HasPrefix(r.RequestURI, "/") {
		return v, errForm
	}
	host, err := s.hostOf(r.Host)
	if err != nil {
		return v, err
	}
	v.host = strings.TrimSuffix(strings.ToLower(r.Host), ":80") // as browsers write it in Origin
	from, err := origin.Of(r.Header, v.origin())
	v.foreign = from.Foreign
	if err != nil {
		return v, err
	}
	label, below := strings.CutSuffix(host, "."+Domain)
	switch {
	case below && strings.IndexByte(label, '.') < 0:
		v.token = label
		return v, nil
	case below:
		return v, errHost
	}
	v.byPath = true
	rest, found := strings.CutPrefix(r.URL.EscapedPath(), pathPrefix)
	if !found || s.cfg.NoPaths {
		return v, errNoToken
	}
	v.token, _, _ = strings.Cut(rest, "/")
	return v, nil
}

// pathOf is a request's path without a token.
func pathOf(r *http.Request) string {
	if rest, found := strings.CutPrefix(r.URL.Path, pathPrefix); found {
		_, path, _ := strings.Cut(rest, "/")
		return "/" + path
	}
	return r.URL.Path
}

// hostOf returns the name in Host, in lower case, if it is one that only loopback has.
func (s *Server) hostOf(authority string) (string, error) {
	host, digits := strings.ToLower(authority), "80"
	if h, d, err := net.SplitHostPort(host); err == nil {
		host, digits = h, d
	}
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || strconv.FormatUint(port, 10) != digits || !s.ports[uint16(port)] {
		return "", errHost
	}
	if host == "127.0.0.1" || host == "::1" || host == Domain || strings.HasSuffix(host, "."+Domain) && isHostName(host) {
		return host, nil
	}
	return "", errHost
}

// isHostName says whether a name, in lower case, has what names of hosts have and nothing else (RFC 952, RFC 1123 section 2.1).
func isHostName(host string) bool {
	return !strings.ContainsFunc(host, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.'
	})
}

// origin is the preview's origin in the visitor's browser.
func (v *request) origin() string { return "http://" + v.host }

// prefix is what all paths of the preview begin with, without a slash at its end.
func (v *request) prefix() string {
	if !v.byPath {
		return ""
	}
	return pathPrefix + v.token
}

// guest is the Host that the program in the VM receives.
func (v *request) guest() string { return authority(Domain, v.preview.Port) }

// cookiePrefix keeps, where previews share an origin, their cookies apart, and from those of everything else on 127.0.0.1.
func (v *request) cookiePrefix() string {
	if !v.byPath {
		return ""
	}
	return "agentvm-" + v.preview.ID + "-"
}
