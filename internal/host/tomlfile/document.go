package tomlfile

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
)

// Document is a text that has been read.
type Document struct {
	// Tree has the values: string, int64, float64, bool, dates, []any and map[string]any.
	Tree map[string]any
	// Entries are the keys and headers in the order of the text, those of inline tables included.
	Entries []Entry

	name string
	text []byte
}

// Entry is a key with its value, or a header.
type Entry struct {
	Header bool // [name] or [[name]]; it has no value

	At    int    // where the key begins; in a header the name
	Value Span   // of a header: the name
	Items []Span // elements of an array, or keys with values of an inline table

	scope *scope
}

// Key returns the key from the root, as network and mode.
func (e Entry) Key() (key Key) {
	for s := e.scope; s != nil; s = s.parent {
		if s.part != "" || s.element < 0 {
			key = append(key, s.part)
		}
	}
	slices.Reverse(key)
	return key
}

// Name returns the key with the numbers of elements of arrays, from 0, as sidecar[0].command.
func (e Entry) Name() string {
	var parts []string
	for s := e.scope; s != nil; s = s.parent {
		if s.element >= 0 {
			parts = append(parts, fmt.Sprintf("[%d]", s.element))
		}
		if s.part != "" || s.element < 0 {
			parts = append(parts, Key{s.part}.String())
			if s.parent != nil {
				parts = append(parts, ".")
			}
		}
	}
	slices.Reverse(parts)
	return strings.Join(parts, "")
}

// Span is a part of the text, in bytes from its beginning.
type Span struct{ At, End int }

// Key is a key in parts.
type Key []string

// String writes the key with dots and, where TOML needs them, quotes.
func (k Key) String() string {
	parts := make([]string, len(k))
	for i, part := range k {
		if parts[i] = part; part == "" || strings.Trim(part, bareLetters) != "" {
			parts[i] = Quote(part)
		}
	}
	return strings.Join(parts, ".")
}

const bareLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

// Bounds of a text, beyond which the decoder would take minutes.
const (
	maxKey     = 1024   // bytes of a key, dots included
	maxEntries = 10_000 // keys and headers
)

// mark is what some editors begin a text with.
var mark = []byte("\ufeff")

// Parse reads a text, which it keeps. name is the file's for errors, which begin with name:line:column, in characters from 1.
func Parse(name string, text []byte) (*Document, error) {
	d := &Document{name: name, text: text}
	if bytes.HasPrefix(text, mark) {
		text = slices.Concat(bytes.Repeat([]byte(" "), len(mark)), text[len(mark):])
	}
	w := walker{text: text}
	if d.Entries = w.walk(); w.problem != "" { // before the decoder, which compares each key of a table with all others
		return nil, d.Errorf(w.place, "%s", w.problem)
	}
	if err := toml.Unmarshal(text, &d.Tree); err != nil {
		syntax := (*toml.DecodeError)(nil)
		if !errors.As(err, &syntax) {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		at, message := offset(text, syntax), strings.TrimPrefix(syntax.Error(), "toml: ")
		if strings.HasSuffix(message, "at start of value") && at < len(text) && strings.IndexByte(bareLetters, text[at]) >= 0 {
			message += ": a text is in quotes"
		}
		return nil, d.Errorf(at, "%s", message)
	}
	return d, nil
}

// offset is where an error is, which the library counts in lines and bytes.
func offset(text []byte, err *toml.DecodeError) int {
	line, column := err.Position()
	at := 0
	for ; line > 1; line-- {
		at += bytes.IndexByte(text[at:], '\n') + 1
	}
	return at + column - 1
}

// Errorf is an error about what is at an offset.
func (d *Document) Errorf(offset int, format string, args ...any) error {
	return Errorf(d.name, d.text, offset, format, args...)
}

// Errorf is an error about what is at an offset of a file's text.
func Errorf(name string, text []byte, offset int, format string, args ...any) error {
	before := text[:min(max(offset, 0), len(text))]
	start := bytes.LastIndexByte(before, '\n') + 1
	place := []any{name, bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[start:]) + 1}
	return fmt.Errorf("%s:%d:%d: "+format, append(place, args...)...)
}
