package settings

import (
	"strconv"
	"strings"
)

// place is where a key is, its value, and the elements if that is an array, in bytes from the beginning.
type place struct {
	key, value int
	items      []int
}

// scanner finds places in a document that is known to be valid TOML; the library tells only those of syntax errors. It reads nothing
// but shapes. In other documents it finds something or nothing, and ends: each step moves on.
type scanner struct {
	text  string
	at    int
	table string // the header's name and a dot; of an array of tables with the element's number: sidecar[0].
	plain string // the same without a number
	found map[string]place

	elements map[string]int // of arrays of tables
}

func scan(text string) map[string]place {
	s := scanner{text: text, found: map[string]place{}, elements: map[string]int{}}
	for s.blank(); s.at < len(s.text); s.blank() {
		if s.text[s.at] == '[' {
			s.header()
		} else {
			s.assignment()
		}
	}
	return s.found
}

// blank goes over white space and comments.
func (s *scanner) blank() {
	for s.at < len(s.text) {
		switch c := s.text[s.at]; {
		case strings.IndexByte(" \t\r\n", c) >= 0:
			s.at++
		case c == '#':
			s.line()
		case strings.HasPrefix(s.text[s.at:], "\ufeff"):
			s.at += len("\ufeff")
		default:
			return
		}
	}
}

// line goes to the end of the line.
func (s *scanner) line() {
	if i := strings.IndexByte(s.text[s.at:], '\n'); i >= 0 {
		s.at += i
	} else {
		s.at = len(s.text)
	}
}

// header reads [name] or [[name]].
func (s *scanner) header() {
	start := s.at
	s.line()
	line := s.text[start:s.at]
	name, _, _ := strings.Cut(strings.TrimLeft(line, "["), "]")
	name = bare(name)
	s.note(name, place{key: start})
	s.table, s.plain = name+".", name+"."
	if strings.HasPrefix(line, "[[") {
		s.table = s.element(name, place{key: start}) + "."
	}
}

// element notes the next element of an array of tables.
func (s *scanner) element(name string, p place) string {
	numbered := name + "[" + strconv.Itoa(s.elements[name]) + "]"
	s.elements[name]++
	s.note(numbered, p)
	return numbered
}

func (s *scanner) note(name string, p place) {
	if _, known := s.found[name]; !known {
		s.found[name] = p
	}
}

// bare is a key without quotes and spaces, dashed; keys whose names need quotes are unknown ones anyway.
func bare(key string) string {
	return dashed(strings.Map(func(r rune) rune {
		if strings.ContainsRune(" \t\"'", r) {
			return -1
		}
		return r
	}, key))
}

// assignment reads key = value.
func (s *scanner) assignment() {
	start := s.at
	for s.at < len(s.text) && s.text[s.at] != '=' && s.text[s.at] != '\n' {
		s.step()
	}
	key := bare(s.text[start:s.at])
	name := s.table + key
	if s.at < len(s.text) {
		s.at++
	}
	s.blank()
	p := place{key: start, value: s.at}
	s.values(name, &p)
	s.note(name, p)
	s.note(s.plain+key, p)
	if table, _, dotted := strings.Cut(name, "."); dotted {
		s.note(table, place{key: start})
	}
}

// values goes over a value, noting the elements of an array and the keys of an inline table.
func (s *scanner) values(name string, p *place) {
	inline := s.at < len(s.text) && s.text[s.at] == '{'
	depth, fresh := 0, false
	for s.at < len(s.text) {
		c := s.text[s.at]
		if c == '#' {
			s.line()
			continue
		}
		if c == '\n' && depth == 0 {
			return
		}
		if fresh && strings.IndexByte(" \t\r\n]},", c) < 0 {
			p.items, fresh = append(p.items, s.at), false
			if inline {
				s.inlineKey(name)
				continue
			}
		}
		switch c {
		case '[', '{':
			depth++
			fresh = depth == 1
		case ']', '}':
			depth--
		case ',':
			fresh = depth == 1
		}
		s.step()
	}
}

// inlineKey notes one key of an inline table.
func (s *scanner) inlineKey(table string) {
	start := s.at
	for s.at < len(s.text) && s.text[s.at] != '=' {
		s.step()
	}
	s.note(table+"."+bare(s.text[start:s.at]), place{key: start, value: s.at})
}

// step goes over a character or a string.
func (s *scanner) step() {
	quote := s.text[s.at]
	if quote != '"' && quote != '\'' {
		s.at++
		return
	}
	end := string(quote)
	if long := strings.Repeat(end, 3); strings.HasPrefix(s.text[s.at:], long) {
		end = long
	}
	for s.at += len(end); s.at < len(s.text) && !strings.HasPrefix(s.text[s.at:], end); s.at++ {
		if s.text[s.at] == '\\' && quote == '"' {
			s.at++
		}
	}
	s.at = min(s.at+len(end), len(s.text))
	for len(end) == 3 && s.at < len(s.text) && s.text[s.at] == quote {
		s.at++ // quotes before the closing three
	}
}
