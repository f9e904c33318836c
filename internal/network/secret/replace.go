package secret

import (
	"bytes"
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// replacement is what the requests to one host have replaced.
type replacement struct {
	placeholder, value string
	headers            []string // canonical; none: all
	query, body        bool
	spellings          []spelling // of value, in answers
}

// replacements is in the order of their placeholders' lengths, longest first, because one may begin with another.
type replacements []replacement

func replacementsOf(list []Secret, to host) (r replacements) {
	for _, s := range list {
		if slices.ContainsFunc(s.Hosts, func(text string) bool { h, err := parseHost(text); return err == nil && h == to }) {
			r = append(r, replacement{s.placeholder(), s.Value, canonical(s.Headers), s.Query, s.Body, spellingsOf(s.Value)})
		}
	}
	slices.SortStableFunc(r, func(a, b replacement) int { return len(b.placeholder) - len(a.placeholder) })
	return r
}

// apply puts the secrets into a request.
func (r replacements) apply(out *http.Request) {
	for field, values := range out.Header {
		for i := range values {
			values[i] = r.header(field, values[i])
		}
	}
	for _, one := range r {
		if one.query {
			out.URL.RawQuery = strings.ReplaceAll(out.URL.RawQuery, one.placeholder, url.QueryEscape(one.value))
		}
		if one.body && out.Body != nil && out.Body != http.NoBody && out.Header.Get("Content-Encoding") == "" {
			out.Body = &bodyReader{inner: out.Body, old: []byte(one.placeholder), new: []byte(one.value)}
			if len(one.placeholder) != len(one.value) {
				out.ContentLength = -1 // by chunks, or by HTTP/2's frames
				out.Header.Del("Content-Length")
			}
		}
	}
}

// header returns a field's value with the secrets in it. What it cannot decode stays as it is.
func (r replacements) header(field, value string) string {
	scheme, credentials, found := strings.Cut(value, " ")
	if found && strings.EqualFold(scheme, "Basic") { // RFC 7617 section 2
		if plain, err := base64.StdEncoding.DecodeString(credentials); err == nil {
			if with := r.text(field, string(plain)); with != string(plain) {
				return scheme + " " + base64.StdEncoding.EncodeToString([]byte(with))
			}
			return value
		}
	}
	return r.text(field, value)
}

func (r replacements) text(field, value string) string {
	for _, one := range r {
		if len(one.headers) == 0 || slices.Contains(one.headers, field) {
			value = strings.ReplaceAll(value, one.placeholder, one.value)
		}
	}
	return value
}

// bodyReader replaces old by new in what it reads.
type bodyReader struct {
	inner    io.ReadCloser
	old, new []byte

	buffer []byte // what raw is a part of
	raw    []byte // read and not yet searched; shorter than old between reads
	ready  []byte // searched
	err    error  // of inner, once ready has been read
}

// bodyPiece is how many bytes of a body are read at once.
const bodyPiece = 32 << 10

func (b *bodyReader) Read(p []byte) (int, error) {
	for len(b.ready) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		b.fill()
	}
	n := copy(p, b.ready)
	b.ready = b.ready[n:]
	return n, nil
}

// fill reads a piece and searches it. What may be the beginning of old at its end is kept for the next.
func (b *bodyReader) fill() {
	if b.buffer == nil {
		b.buffer = make([]byte, len(b.old)+bodyPiece)
	}
	have := copy(b.buffer, b.raw)
	n, err := b.inner.Read(b.buffer[have:])
	b.raw, b.err = b.buffer[:have+n], err
	b.ready = b.ready[:0]
	for {
		i := bytes.Index(b.raw, b.old)
		if i < 0 {
			break
		}
		b.ready = append(append(b.ready, b.raw[:i]...), b.new...)
		b.raw = b.raw[i+len(b.old):]
	}
	keep := 0
	if err == nil {
		keep = overlap(b.raw, b.old)
	}
	b.ready = append(b.ready, b.raw[:len(b.raw)-keep]...)
	b.raw = b.raw[len(b.raw)-keep:]
}

// overlap returns how many bytes at the end of text are a beginning of old, which is not in text.
func overlap(text, old []byte) int {
	for n := min(len(text), len(old)-1); n > 0; n-- {
		if bytes.HasSuffix(text, old[:n]) {
			return n
		}
	}
	return 0
}

func (b *bodyReader) Close() error { return b.inner.Close() }
