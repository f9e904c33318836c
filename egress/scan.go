package egress

import "strings"

// tomlPlace is where a key is, its value, and if that is an array, its elements. All are byte offsets.
type tomlPlace struct {
	key, value int
	items      []int
}

// item is where an element is; where the value is, if there is no such element.
func (p tomlPlace) item(i int) int {
	if i < len(p.items) {
		return p.items[i]
	}
	return p.value
}

// scanTOML finds where things are in a document that is known to be valid TOML. It reads nothing but the shape: keys, strings, brackets,
// comments. In a document that is not valid it finds something or nothing, and ends.
func scanTOML(text []byte) map[string]tomlPlace {
	s := tomlScanner{text: string(text), found: map[string]tomlPlace{}}
	for s.space(); s.at < len(s.text); s.space() {
		before := s.at
		s.statement()
		if s.at == before {
			s.at++ // not valid: skip a byte
		}
	}
	return s.found
}

type tomlScanner struct {
	text  string
	at    int
	table string // the header's key and a dot
	found map[string]tomlPlace
}

// space goes over white space, newlines and comments.
func (s *tomlScanner) space() {
	for s.at < len(s.text) {
		switch {
		case strings.IndexByte(" \t\r\n", s.text[s.at]) >= 0:
			s.at++
		case s.text[s.at] == '#':
			s.past("\n")
		case s.at == 0 && strings.HasPrefix(s.text, "\ufeff"):
			s.at = len("\ufeff")
		default:
			return
		}
	}
}

// past goes behind the next end, or to the end of the text.
func (s *tomlScanner) past(end string) {
	if i := strings.Index(s.text[s.at:], end); i >= 0 {
		s.at += i + len(end)
		return
	}
	s.at = len(s.text)
}

func (s *tomlScanner) peek() byte {
	if s.at < len(s.text) {
		return s.text[s.at]
	}
	return 0
}

// statement is a header, [table] or [[table]], or a key with its value.
func (s *tomlScanner) statement() {
	if s.peek() == '[' {
		for s.peek() == '[' {
			s.at++
		}
		key, at := s.key()
		s.note(key, tomlPlace{key: at, value: at})
		s.table = key + "."
		for s.peek() == ']' {
			s.at++
		}
		return
	}
	key, at := s.key()
	if s.peek() == '=' {
		s.at++
	}
	s.space()
	place := tomlPlace{key: at, value: s.at}
	if s.peek() == '[' {
		place.items = s.array()
	} else {
		s.value()
	}
	s.note(s.table+key, place)
}

// note keeps the first place of a key.
func (s *tomlScanner) note(key string, p tomlPlace) {
	if _, seen := s.found[key]; !seen {
		s.found[key] = p
	}
}

// key reads a.b."c" as the library writes it.
func (s *tomlScanner) key() (key string, at int) {
	s.space()
	at = s.at
	for s.at < len(s.text) {
		switch b := s.peek(); {
		case b == '"' || b == '\'':
			from := s.at
			s.str()
			key += plainKey(s.text[from:s.at])
		case b == ' ' || b == '\t':
			s.at++
		case b == '=' || b == ']' || b == '\n' || b == '#':
			return key, at
		default:
			key += string(b)
			s.at++
		}
	}
	return key, at
}

// plainKey takes the quotes off a key that does not need them.
func plainKey(quoted string) string {
	if len(quoted) < 2 {
		return quoted
	}
	inside := quoted[1 : len(quoted)-1]
	bare := inside != "" && strings.Trim(inside, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
	if bare {
		return inside
	}
	return `"` + inside + `"`
}

// str goes over a string of any of the four kinds.
func (s *tomlScanner) str() {
	quote := s.text[s.at : s.at+1]
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(s.text[s.at:], triple) {
		quote = triple
	}
	for s.at += len(quote); s.at < len(s.text); s.at++ {
		switch {
		case s.text[s.at] == '\\' && quote[0] == '"':
			s.at++
		case strings.HasPrefix(s.text[s.at:], quote):
			s.at += len(quote)
			for len(quote) == 3 && s.peek() == quote[0] { // """" ends with a quote inside
				s.at++
			}
			return
		}
	}
	s.at = min(s.at, len(s.text))
}

// array goes over an array and returns where its elements begin.
func (s *tomlScanner) array() (items []int) {
	s.at++
	for s.space(); s.at < len(s.text); s.space() {
		switch s.peek() {
		case ']':
			s.at++
			return items
		case ',':
			s.at++
		default:
			items = append(items, s.at)
			before := s.at
			if s.value(); s.at == before {
				s.at++ // not valid
			}
		}
	}
	return items
}

// value goes over one value: to the comma, bracket, comment or line end behind it.
func (s *tomlScanner) value() {
	for depth := 0; s.at < len(s.text); {
		switch b := s.peek(); {
		case b == '"' || b == '\'':
			s.str()
			continue
		case b == '[' || b == '{':
			depth++
		case depth > 0 && (b == ']' || b == '}'):
			depth--
		case depth > 0 && b == '#':
			s.past("\n")
			continue
		case depth == 0 && strings.IndexByte(",]}#\n", b) >= 0:
			return
		}
		s.at++
	}
}
