package tomlfile

import (
	"fmt"

	"github.com/pelletier/go-toml/v2/unstable"
)

// walker finds the entries of a text, up to where it is not valid. It keeps no names, whose length all together can be the square of the text's.
type walker struct {
	text    []byte
	tables  table // the root
	at      *scope
	entries []Entry

	problem string // beyond a bound
	place   int
}

// table is one of those that headers have made.
type table struct {
	children map[string]*table
	elements int // of an array of tables
}

// scope is where an entry is: a part of a key below another scope, or an element of an array.
type scope struct {
	parent  *scope
	part    string
	element int // -1: none
}

func (w *walker) walk() []Entry {
	var p unstable.Parser
	for p.Reset(w.text); w.problem == "" && p.NextExpression(); {
		switch e := p.Expression(); e.Kind {
		case unstable.KeyValue:
			w.assignment(e, w.at)
		case unstable.Table, unstable.ArrayTable:
			w.header(e)
		}
	}
	return w.entries
}

// header is [table] or [[table]].
func (w *walker) header(e *unstable.Node) {
	key, at, end := w.keyOf(e)
	w.at = nil
	in := &w.tables
	for i, part := range key {
		if in.children == nil {
			in.children = make(map[string]*table)
		}
		if in.children[part] == nil {
			in.children[part] = new(table)
		}
		if in = in.children[part]; i == len(key)-1 && e.Kind == unstable.ArrayTable {
			in.elements++
			in.children = nil
		}
		w.at = &scope{w.at, part, in.elements - 1}
	}
	w.entries = append(w.entries, Entry{Header: true, At: at, Value: Span{at, end}, scope: w.at})
}

// keyOf returns a key and where it is.
func (w *walker) keyOf(e *unstable.Node) (key Key, at, end int) {
	for it := e.Key(); it.Next(); {
		part := it.Node().Raw
		if key = append(key, string(it.Node().Data)); len(key) == 1 {
			at = int(part.Offset)
		}
		end = int(part.Offset + part.Length)
	}
	switch {
	case w.problem != "":
	case end-at > maxKey:
		w.problem, w.place = fmt.Sprintf("a key of %d bytes: want at most %d", end-at, maxKey), at
	case len(w.entries) == maxEntries:
		w.problem, w.place = fmt.Sprintf("there are more than %d keys", maxEntries), at
	}
	return key, at, end
}

// assignment is a key with its value. It returns where all of it is.
func (w *walker) assignment(e *unstable.Node, in *scope) Span {
	key, at, end := w.keyOf(e)
	for _, part := range key {
		in = &scope{in, part, -1}
	}
	i := len(w.entries)
	w.entries = append(w.entries, Entry{At: at, scope: in}) // before those of an inline table
	value, items := w.value(e.Value(), end, in)
	w.entries[i].Value, w.entries[i].Items = value, items
	return Span{at, value.End}
}

// value returns where the value is that follows, and its parts. Between it and from there is nothing that means anything.
func (w *walker) value(n *unstable.Node, from int, in *scope) (all Span, parts []Span) {
	if n.Kind != unstable.Array && n.Kind != unstable.InlineTable {
		return Span{int(n.Raw.Offset), int(n.Raw.Offset + n.Raw.Length)}, nil
	}
	all.At = w.skip(from)
	all.End = all.At + 1
	for it := n.Children(); it.Next(); {
		part := Span{}
		if it.Node().Kind == unstable.KeyValue {
			part = w.assignment(it.Node(), in)
		} else {
			part, _ = w.value(it.Node(), all.End, &scope{in, "", len(parts)})
		}
		parts, all.End = append(parts, part), part.End
	}
	all.End = w.skip(all.End) + 1
	return all, parts
}

// skip goes over what separates keys and values.
func (w *walker) skip(at int) int {
	for at = Blank(w.text, at); at < len(w.text) && (w.text[at] == ',' || w.text[at] == '='); {
		at = Blank(w.text, at+1)
	}
	return at
}

// Blank goes over white space, ends of lines and comments.
func Blank[T string | []byte](text T, at int) int {
	for comment := false; at < len(text); at++ {
		switch c := text[at]; {
		case comment || c == '#':
			comment = c != '\n'
		case c != ' ' && c != '\t' && c != '\r' && c != '\n':
			return at
		}
	}
	return at
}
