package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"html"
	"log"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Servers repeat what they were sent: in a redirect's address, in a cookie, in an error's text, each with the escapes of its place. hide finds
// a secret in all of them by what the text means, not by a list of how it may be written: escapes are undone, also those within escapes, and
// letters lose their case. What a server encodes in order to tell the secret is not found, as little as in a body.

const (
	minEncoded  = 4 // bytes; shorter encoded forms of a secret are in any text by chance
	escapeDepth = 8 // of escapes within escapes, as %2541
)

// spelling is a text that tells a secret.
type spelling struct {
	folded string
	// before and after tell that the character of base64 next to the text has bits of the secret, too.
	before, after bool
}

// spellingsOf returns the texts to look for in what unescape and fold return.
func spellingsOf(value string) []spelling {
	list := []spelling{{folded: fold([]byte(value))}}
	add := func(text string, before, after bool) {
		one := spelling{fold([]byte(text)), before, after}
		if len(text) >= minEncoded && !slices.Contains(list, one) {
			list = append(list, one)
		}
	}
	for _, quoted := range []bool{false, true} {
		add(string(unescaped(value, quoted).bytes), false, false)
	}
	add(hex.EncodeToString([]byte(value)), false, false)
	for shift := range 3 { // bytes before the value in its group of three, as "user:"
		bits := 8 * (shift + len(value))
		encoded := base64.StdEncoding.EncodeToString(append(make([]byte, shift), value...))
		first := (8*shift + 5) / 6 // the first character that has bits of the value alone
		add(encoded[min(first, bits/6):bits/6], shift > 0, bits%6 != 0)
	}
	return list
}

// fold returns text without differences that change with a secret's place: the case of letters, which names of fields and hosts lose, the
// plus that stands for a space, and the two alphabets of base64 (RFC 4648 section 5).
func fold(text []byte) string {
	folded := make([]byte, len(text))
	for i, c := range text {
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case c == '+' || c == '-':
			c = ' '
		case c == '_':
			c = '/'
		}
		folded[i] = c
	}
	return string(folded)
}

// decoded is a text whose escapes are undone.
type decoded struct {
	bytes []byte
	from  []int // where in the source the escape of each byte begins; one more for the end
}

func asItIs(text string) decoded {
	d := decoded{[]byte(text), make([]int, len(text)+1)}
	for i := range d.from {
		d.from[i] = i
	}
	return d
}

// unescaped undoes the escapes of URLs, JSON, HTML and quoted strings in text, and, if quoted is true, before them those of quoted-printable
// (RFC 2045 section 6.7), whose sign is also that between a name and a value.
func unescaped(text string, quoted bool) decoded {
	d := asItIs(text)
	signs := `%\&`
	if quoted {
		signs = "="
	}
	for range escapeDepth {
		out, from := make([]byte, 0, len(d.bytes)), make([]int, 0, len(d.from))
		for i := 0; i < len(d.bytes); {
			char, length := d.bytes[i:i+1], 1
			if strings.IndexByte(signs, d.bytes[i]) >= 0 {
				char, length = unescape(d.bytes[i:])
			}
			out = append(out, char...)
			for range char {
				from = append(from, d.from[i])
			}
			i += length
		}
		done := len(out) == len(d.bytes) && !quoted
		d = decoded{out, append(from, len(text))}
		if done {
			break
		}
		signs, quoted = `%\&`, false
	}
	return d
}

// unescape returns what the escape at the beginning of text stands for, and its length. What is none stands for itself.
func unescape(text []byte) (char []byte, length int) {
	digits := func(skip, count int) (rune, bool) {
		if len(text) < skip+count {
			return 0, false
		}
		n, err := strconv.ParseUint(string(text[skip:skip+count]), 16, 32)
		return rune(n), err == nil
	}
	switch text[0] {
	case '%', '=':
		if n, ok := digits(1, 2); ok {
			return []byte{byte(n)}, 3
		}
		if n, ok := digits(2, 4); ok && text[0] == '%' && text[1] == 'u' { // JavaScript's escape
			return utf8.AppendRune(nil, n), 6
		}
	case '&':
		if end := bytes.IndexByte(text[:min(len(text), 16)], ';'); end > 0 {
			if plain := html.UnescapeString(string(text[:end+1])); len(plain) <= end {
				return []byte(plain), end + 1
			}
		}
	case '\\':
		if len(text) == 1 {
			break
		}
		switch c := text[1]; c {
		case 'u':
			high, ok := digits(2, 4)
			if !ok {
				break
			}
			if low, ok := digits(8, 4); ok && utf16.IsSurrogate(high) && text[6] == '\\' && text[7] == 'u' {
				return utf8.AppendRune(nil, utf16.DecodeRune(high, low)), 12
			}
			return utf8.AppendRune(nil, high), 6
		case 'x':
			if n, ok := digits(2, 2); ok {
				return []byte{byte(n)}, 4
			}
		case 'U': // Python's and Go's
			if n, ok := digits(2, 8); ok {
				return utf8.AppendRune(nil, n), 10
			}
		case 't':
			return []byte{'\t'}, 2
		}
		return text[1:2], 2
	}
	return text[:1], 1
}

// found is a part of a text that tells a secret.
type found struct {
	begin, end  int
	placeholder string
}

// hideText returns text with placeholders in the places of secrets.
func (r replacements) hideText(text string) string {
	var places []found
	search := func(d decoded) {
		folded := fold(d.bytes)
		for _, one := range r {
			for _, s := range one.spellings {
				for next := 0; ; {
					i := strings.Index(folded[next:], s.folded)
					if i < 0 {
						break
					}
					begin := next + i
					end := begin + len(s.folded)
					next = end
					if s.before && begin > 0 && isBase64(folded[begin-1]) {
						begin--
					}
					if s.after && end < len(folded) && isBase64(folded[end]) {
						end++
					}
					places = append(places, found{d.from[begin], d.from[end], one.placeholder})
				}
			}
		}
	}
	search(asItIs(text)) // a secret may have what looks like an escape
	if strings.ContainsAny(text, `%\&`) {
		search(unescaped(text, false))
	}
	if strings.Contains(text, "=") {
		search(unescaped(text, true))
	}
	if len(places) == 0 {
		return text
	}
	slices.SortStableFunc(places, func(a, b found) int { return a.begin - b.begin })
	var out strings.Builder
	done := 0
	for _, place := range places {
		if place.begin >= done {
			out.WriteString(text[done:place.begin] + place.placeholder)
		}
		done = max(done, place.end)
	}
	return out.String() + text[done:]
}

// isBase64 reports whether a character that fold has changed may be one of base64.
func isBase64(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == ' ' || c == '/'
}

// hide puts the placeholders back into the names and values of an answer's header.
func (r replacements) hide(header http.Header) {
	hidden := http.Header{}
	for name, values := range header {
		if to := r.hideText(name); to != name {
			name = http.CanonicalHeaderKey(to)
		}
		for _, value := range values {
			hidden[name] = append(hidden[name], r.hideText(value))
		}
	}
	clear(header)
	maps.Copy(header, hidden)
}

// hidingWriter hides secrets in headers when they are written, those of interim answers (RFC 9110 section 15.2) too.
type hidingWriter struct {
	http.ResponseWriter
	secrets replacements
}

func (w hidingWriter) WriteHeader(status int) {
	w.secrets.hide(w.Header())
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w hidingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// errorLog is a logger for net/http, whose errors quote what servers sent.
func (r replacements) errorLog(logger *slog.Logger) *log.Logger {
	return log.New(hidingLog{r, logger}, "", 0)
}

type hidingLog struct {
	secrets replacements
	logger  *slog.Logger
}

func (l hidingLog) Write(line []byte) (int, error) {
	l.logger.Debug(strings.TrimSpace(l.secrets.hideText(string(line))))
	return len(line), nil
}
