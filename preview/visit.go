package preview

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// A visit is a request, as far as it concerns whose it is and how it came.
type visit struct {
	preview Preview
	token   string
	byPath  bool            // http://127.0.0.1:PORT/p/TOKEN/, not http://TOKEN.localhost:PORT/
	host    string          // host:port as in the visitor's URLs, in lower case
	foreign bool            // made by a page of another origin: nothing that the visitor's browser keeps for this one goes with it
	over    <-chan struct{} // closed when the request has ended, or is cut
}

// What is refused before any token is looked at.
var (
	errHost    = errors.New("the request is for another host")
	errForm    = errors.New("the request is not for a server but for a proxy")
	errOrigin  = errors.New("the request's Origin is none")
	errNoToken = errors.New("the request has no token")
)

// visitOf reads whose preview a request is for. The name in Host is checked first and to the letter: a page of another name that was
// made to resolve to loopback (DNS rebinding) gets nothing, not even whether a token is good.
func (s *Server) visitOf(r *http.Request) (v visit, err error) {
	if r.Method == http.MethodConnect || r.URL.Host != "" || !strings.HasPrefix(r.RequestURI, "/") {
		return v, errForm
	}
	host, err := s.hostOf(r.Host)
	if err != nil {
		return v, err
	}
	v.host = strings.TrimSuffix(strings.ToLower(r.Host), ":80") // as browsers write it in Origin
	if v.foreign, err = isForeign(r.Header, "http://"+v.host); err != nil {
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

// isForeign says whether a page of another origin than own made the request, as far as the browser tells. A link that somebody
// follows is not foreign.
func isForeign(h http.Header, own string) (bool, error) {
	site, origins := h.Get("Sec-Fetch-Site"), h.Values("Origin")
	switch len(origins) {
	case 0:
		elsewhere := site == "cross-site" || site == "same-site"
		return elsewhere && h.Get("Sec-Fetch-Mode") != "navigate", nil
	case 1:
	default:
		return true, errOrigin
	}
	if origins[0] == "null" {
		// What forms of a page with the policy no-referrer send (Fetch, "append a request Origin header"); pages cannot set Sec-Fetch-Site.
		return site != "same-origin", nil
	}
	u, err := url.Parse(origins[0])
	if err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != origins[0] {
		return true, errOrigin
	}
	return !strings.EqualFold(origins[0], own), nil
}

// origin is what the visitor's browser calls this place.
func (v *visit) origin() string { return "http://" + v.host }

// prefix is what all paths of the preview begin with, without a slash at its end.
func (v *visit) prefix() string {
	if !v.byPath {
		return ""
	}
	return pathPrefix + v.token
}

// guest is what the program in the VM is told that its own host is.
func (v *visit) guest() string { return authority(Domain, v.preview.Port) }

// cookiePrefix keeps, where previews share an origin, their cookies apart, and from those of everything else on 127.0.0.1.
func (v *visit) cookiePrefix() string {
	if !v.byPath {
		return ""
	}
	return "agentvm-" + v.preview.ID + "-"
}
