// Package origin finds out, for HTTP servers on loopback, which page made a browser send a request. Every page in the world can make a
// browser send requests to 127.0.0.1; headers that browsers add and no page can change identify the page (Fetch, "Origin header" and
// "Sec-Fetch-Site"). Other programs can send any headers: this protects the browser's user and not the
// server.
package origin

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// ErrMalformed is the error for a request whose Origin no browser sends. The server must refuse it.
var ErrMalformed = errors.New("the request's Origin is none")

// Request is what a browser reports about a request. The zero value is that of a page of the own origin, of an address that the user has
// typed, and of programs that are no browsers.
type Request struct {
	Foreign   bool // made by a page of another origin, other than by following a link
	Elsewhere bool // led to by a page of another origin in any way, links among them
	Opaque    bool // made by a page whose origin the browser hides
}

// Of reads the headers of a request to a server whose origin is own, for example "http://127.0.0.1:8080".
func Of(h http.Header, own string) (Request, error) {
	site, origins := h.Get("Sec-Fetch-Site"), h.Values("Origin")
	r := Request{Elsewhere: site != "" && site != "none" && site != "same-origin"}
	switch len(origins) {
	case 0:
		r.Foreign = r.Elsewhere && h.Get("Sec-Fetch-Mode") != "navigate"
		return r, nil
	case 1:
	default:
		return Request{Foreign: true, Elsewhere: true}, ErrMalformed
	}
	if origins[0] == "null" {
		// What forms of a page with the policy no-referrer send (Fetch, "append a request Origin header"); pages cannot set Sec-Fetch-Site.
		r.Foreign, r.Opaque = site != "same-origin", true
		return r, nil
	}
	u, err := url.Parse(origins[0])
	if err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != origins[0] {
		return Request{Foreign: true, Elsewhere: true}, ErrMalformed
	}
	r.Foreign = !strings.EqualFold(origins[0], own)
	return r, nil
}
