package servername

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// head is at the beginning of a request, which is held until its head is complete.
func (c *Checker) head(b []byte) (int, error) {
	if err := startsRequest(b); err != nil {
		return 0, err
	}
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		return 0, nil
	}
	r, err := parseHead(string(b[:end]))
	if err != nil {
		return 0, err
	}
	if err := c.saw(HTTP, r.host); err != nil {
		return 0, err
	}
	switch {
	case r.chunked:
		c.step = (*Checker).chunk
	case r.length > 0:
		c.skip, c.step = r.length, (*Checker).body
	}
	return end + len("\r\n\r\n"), nil
}

func (c *Checker) body(b []byte) (int, error) { return c.skipped(b, (*Checker).head) }

// maxChunkLine is far more than a size needs; what else is in the line has no use.
const maxChunkLine = 256

// chunk is at the line with the size of a chunk (RFC 9112 section 7.1).
func (c *Checker) chunk(b []byte) (int, error) {
	line, err := oneLine(b, maxChunkLine)
	if line == nil || err != nil {
		return 0, err
	}
	text, _, _ := strings.Cut(string(line), ";")
	size, err := strconv.ParseUint(text, 16, 48)
	if err != nil || strings.HasPrefix(text, "+") {
		return 0, errors.New("the size of a chunk is malformed")
	}
	c.skip, c.step = int64(size), (*Checker).chunkData //nolint:gosec // 48 bits
	if size == 0 {
		c.step = (*Checker).trailer
	}
	return len(line) + 2, nil
}

func (c *Checker) chunkData(b []byte) (int, error) { return c.skipped(b, (*Checker).chunkEnd) }

func (c *Checker) chunkEnd(b []byte) (int, error) {
	line, err := oneLine(b, 0)
	if line == nil || err != nil {
		return 0, err
	}
	c.step = (*Checker).chunk
	return 2, nil
}

// trailer is at a line behind the last chunk.
func (c *Checker) trailer(b []byte) (int, error) {
	line, err := oneLine(b, maxHeld)
	if line == nil || err != nil {
		return 0, err
	}
	if len(line) == 0 {
		c.step = (*Checker).head
	} else if _, _, err := field(string(line)); err != nil {
		return 0, err
	}
	return len(line) + 2, nil
}

// oneLine returns a line without its end, or nil when that has not come.
func oneLine(b []byte, most int) ([]byte, error) {
	end := bytes.IndexAny(b[:min(len(b), most+2)], "\r\n")
	switch {
	case end < 0 && len(b) >= most+2:
		return nil, errors.New("a line of a request's body is too long")
	case end < 0 || end+1 == len(b) && b[end] == '\r':
		return nil, nil
	case b[end] != '\r' || b[end+1] != '\n':
		return nil, errLine
	case end > most:
		return nil, errors.New("a line of a request's body is too long")
	}
	return b[:end:end], nil
}

var (
	errLine  = errors.New("a line of a request does not end with CR and LF")
	errOther = errors.New("this is neither TLS nor HTTP/1, so that no name can be seen")
)

// startsRequest finds out early what is not HTTP/1: a program of another protocol may wait for an answer.
func startsRequest(b []byte) error {
	method, _, complete := bytes.Cut(b, []byte(" "))
	if len(method) == 0 || len(method) > 32 || bytes.ContainsFunc(method, func(r rune) bool { return !isToken(r) }) {
		return errOther
	}
	if complete && string(method) == "PRI" {
		return errors.New("HTTP/2 without TLS cannot be checked")
	}
	return nil
}

// isToken is for the characters of methods and of names of fields (RFC 9110 section 5.6.2).
func isToken(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// request is what the head of a request says.
type request struct {
	host    string
	length  int64
	chunked bool
}

// parseHead reads the head of a request, without the empty line.
func parseHead(text string) (r request, err error) {
	lines := strings.Split(text, "\r\n")
	target, modern, err := requestLine(lines[0])
	if err != nil {
		return r, err
	}
	seen := make(map[string]string)
	for _, line := range lines[1:] {
		name, value, err := field(line)
		if err != nil {
			return r, err
		}
		switch name {
		case "host", "content-length", "transfer-encoding":
			if _, twice := seen[name]; twice {
				return r, fmt.Errorf("a request has the field %s twice", name)
			}
			seen[name] = value
		case "upgrade":
			return r, errors.New("a request asks for another protocol (Upgrade), in which no name can be seen")
		}
	}
	if err := r.framing(seen, modern); err != nil {
		return r, err
	}
	host, found := seen["host"]
	if !found {
		return r, errors.New("a request has no Host")
	}
	if r.host, err = authority(host); err != nil {
		return r, err
	}
	if target == "" {
		return r, nil
	}
	if whole, err := authority(target); err != nil || whole != r.host {
		return r, fmt.Errorf("a request's Host is %.80q, and its target names %.80q", r.host, target)
	}
	return r, nil
}

// requestLine returns the host in the target of a request (RFC 9112 section 3.2), "" when it has none.
func requestLine(line string) (host string, modern bool, err error) {
	parts := strings.Split(line, " ")
	if len(parts) != 3 || parts[2] != "HTTP/1.1" && parts[2] != "HTTP/1.0" || strings.ContainsFunc(line, isControl) {
		return "", false, errOther
	}
	method, target := parts[0], parts[1]
	switch scheme, rest, found := strings.Cut(target, "://"); {
	case method == "CONNECT":
		return "", false, errors.New("a request for a tunnel (CONNECT) leads to what cannot be seen")
	case strings.HasPrefix(target, "/"), target == "*" && method == "OPTIONS":
	case found && strings.EqualFold(scheme, "http"):
		if end := strings.IndexAny(rest, "/?#\\"); end >= 0 {
			rest = rest[:end]
		}
		if host = rest; host == "" {
			return "", false, errors.New("the target of a request names no host")
		}
	default:
		return "", false, errors.New("the target of a request is neither a path nor an http:// URL")
	}
	return host, parts[2] == "HTTP/1.1", nil
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// field reads a field's line. Its name is in lower case.
func field(line string) (name, value string, err error) {
	name, value, found := strings.Cut(line, ":")
	if !found || name == "" || strings.ContainsFunc(name, func(r rune) bool { return !isToken(r) }) || strings.ContainsFunc(value, isControl) {
		return "", "", errors.New("a field of a request is malformed")
	}
	return strings.ToLower(name), strings.Trim(value, " \t"), nil
}

// framing finds out how long the body is. What servers disagree on is an error (RFC 9112 section 6.3).
func (r *request) framing(seen map[string]string, modern bool) error {
	length, hasLength := seen["content-length"]
	coding, hasCoding := seen["transfer-encoding"]
	switch {
	case hasCoding && (hasLength || !modern || !strings.EqualFold(coding, "chunked")):
		return errors.New("it is not sure where a request's body ends")
	case hasCoding:
		r.chunked = true
	case hasLength:
		n, err := strconv.ParseUint(length, 10, 62)
		if err != nil || strings.HasPrefix(length, "+") {
			return errors.New("the Content-Length of a request is malformed")
		}
		r.length = int64(n) //nolint:gosec // 62 bits
	}
	return nil
}

// authority returns the name in HOST[:PORT].
func authority(text string) (string, error) {
	host, port, found := strings.Cut(text, ":")
	if _, err := strconv.ParseUint(port, 10, 16); found && port != "" && err != nil {
		return "", fmt.Errorf("%.80q is not the name of a server", text)
	}
	return hostName(host)
}
