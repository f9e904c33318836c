package preview

import (
	"net"
	"strconv"
)

// Domain is under which the names of previews are: browsers resolve all of it to loopback (RFC 6761 section 6.3).
const Domain = "localhost"

// URL returns the link by name, for a server that listens on port of loopback. Each preview is an origin of its own, so
// this is the form to hand out.
func (p Preview) URL(port uint16) string {
	return "http://" + authority(p.Token+"."+Domain, port) + "/"
}

// PathURL returns the link by path, for clients that cannot resolve names below localhost. All previews share its
// origin: see docs/internals/preview.md.
func (p Preview) PathURL(port uint16) string {
	return "http://" + authority("127.0.0.1", port) + pathPrefix + p.Token + "/"
}

const pathPrefix = "/p/"

// authority leaves the port of plain HTTP out, as browsers do.
func authority(host string, port uint16) string {
	if port == 80 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
