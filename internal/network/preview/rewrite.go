package preview

import (
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Headers that a preview changes. To the guest:
//
//	Host                  localhost:PORT
//	Origin, Referer       of the preview's own pages: http://localhost:PORT
//	X-Forwarded-*         ours; the visitor's are removed, with Forwarded, X-Real-IP and similar ones
//	Cookie                not with foreign requests; by path, only those that this preview has set
//	Upgrade               only websocket
//
// To the visitor:
//
//	Location, Content-Location, Refresh   lead to the preview when they led to the guest
//	Set-Cookie                            without Domain; by path, the name begins with agentvm-ID- and Path with /p/TOKEN
//	Access-Control-*                      ours: Allow-Origin: *, Expose-Headers: *, never Allow-Credentials
//	Referrer-Policy                       no-referrer
//	Alt-Svc                               removed; by path also Service-Worker-Allowed and Clear-Site-Data
//
// Because of no-referrer, browsers send "Origin: null" with forms of the preview's own pages; "Sec-Fetch-Site: same-origin" identifies them.

// rewriteOrigin replaces the preview's origin with the one that the guest's program knows as its own: many programs refuse any other.
// Neither this preview's URL nor another's is left in Origin and Referer.
func (v *request) rewriteOrigin(h http.Header) {
	guest := "http://" + v.guest()
	if h.Get("Origin") != "" && !v.foreign {
		h.Set("Origin", guest)
	}
	referer := h.Get("Referer")
	if referer == "" {
		return
	}
	if rest, own := strings.CutPrefix(referer, v.origin()+v.prefix()); own && (rest == "" || rest[0] == '/') {
		h.Set("Referer", guest+rest)
		return
	}
	if u, err := url.Parse(referer); err != nil || isLoopbackName(u.Hostname()) {
		h.Del("Referer") // may be another preview's
	}
}

func isLoopbackName(host string) bool {
	host = strings.ToLower(host)
	return host == Domain || strings.HasSuffix(host, "."+Domain) || host == "127.0.0.1" || host == "::1"
}

// rewriteCookies leaves the guest the cookies that are its own. By path, the browser sends all that anything on 127.0.0.1 has set.
func (v *request) rewriteCookies(h http.Header) {
	if v.foreign {
		h.Del("Cookie")
		return
	}
	if !v.byPath {
		return
	}
	var own []string
	for _, line := range h.Values("Cookie") {
		for pair := range strings.SplitSeq(line, ";") {
			if pair, ok := strings.CutPrefix(strings.Trim(pair, " \t"), v.cookiePrefix()); ok {
				own = append(own, pair)
			}
		}
	}
	h.Del("Cookie")
	if own != nil {
		h.Set("Cookie", strings.Join(own, "; "))
	}
}

// rewriteSetCookies makes cookies such that the browser takes them and sends them to this preview and to no other.
func (v *request) rewriteSetCookies(h http.Header) {
	lines := h.Values("Set-Cookie")
	if len(lines) == 0 {
		return
	}
	var kept []string
	for _, line := range lines {
		if line, ok := v.publicCookie(line); ok {
			kept = append(kept, line)
		}
	}
	h.Del("Set-Cookie")
	for _, line := range kept {
		h.Add("Set-Cookie", line)
	}
}

// publicCookie rewrites a Set-Cookie (RFC 6265 section 4.1). Attributes that it does not know stay.
func (v *request) publicCookie(line string) (string, bool) {
	pair, attributes, _ := strings.Cut(line, ";")
	if v.byPath && !strings.Contains(pair, "=") {
		return "", false // one without a name cannot be given another
	}
	out := strings.Builder{}
	out.WriteString(v.cookiePrefix() + strings.Trim(pair, " \t"))
	if attributes == "" {
		return out.String(), true
	}
	for attribute := range strings.SplitSeq(attributes, ";") {
		attribute = strings.Trim(attribute, " \t")
		name, value, _ := strings.Cut(attribute, "=")
		switch strings.ToLower(strings.Trim(name, " \t")) {
		case "domain": // chosen by the guest; without one the cookie is for exactly this name
			continue
		case "path":
			if value = strings.Trim(value, " \t"); strings.HasPrefix(value, "/") {
				attribute = "Path=" + v.publicPath(value)
			}
		}
		out.WriteString("; " + attribute)
	}
	return out.String(), true
}

// publicPath puts the prefix before a path from the guest, unless the program heeds X-Forwarded-Prefix and has done so.
func (v *request) publicPath(path string) string {
	prefix := v.prefix()
	if rest, has := strings.CutPrefix(path, prefix); has && (rest == "" || strings.IndexByte("/?#", rest[0]) >= 0) {
		return path
	}
	return prefix + path
}

// public turns a reference from the guest into one that means the same to the visitor. It leaves other hosts and relative ones.
func (v *request) public(to string) string {
	u, err := url.Parse(to)
	switch {
	case err != nil || u.Opaque != "" || u.Scheme != "" && u.Scheme != "http":
		return to
	case u.Host == "" && u.Scheme != "":
		return to
	case u.Host == "" && strings.HasPrefix(to, "/"):
		return v.publicPath(to)
	case u.Host == "":
		return to
	case !v.isGuests(u) && !strings.EqualFold(u.Host, v.host):
		return to
	}
	rest := to[strings.Index(to, "//")+2:]
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest = rest[i:]
	} else {
		rest = ""
	}
	if !strings.HasPrefix(rest, "/") {
		rest = "/" + rest
	}
	return v.origin() + v.publicPath(rest)
}

// isGuests says whether a URL is one by which a program in the VM knows itself.
func (v *request) isGuests(u *url.URL) bool {
	switch strings.ToLower(u.Hostname()) {
	case Domain, "127.0.0.1", "::1", "0.0.0.0", "::":
	default:
		return false
	}
	port := u.Port()
	if port == "" {
		port = "80"
	}
	return port == strconv.Itoa(int(v.preview.Port))
}

// refreshURL is what the URL comes after. (An index into strings.ToLower of a header is none into the header.)
var refreshURL = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)url=`) })

// publicRefresh rewrites the URL of "5; url=/x" (HTML, "shared declarative refresh steps").
func (v *request) publicRefresh(value string) string {
	found := refreshURL().FindStringIndex(value)
	if found == nil {
		return value
	}
	from, to := value[:found[1]], value[found[1]:]
	if len(to) > 1 && (to[0] == '"' || to[0] == '\'') {
		to = strings.Trim(to, to[:1])
	}
	return from + v.public(to)
}
