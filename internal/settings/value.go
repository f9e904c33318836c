package settings

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxSeconds is the longest lifetime of a link to a server in a VM: a day.
const maxSeconds = 24 * 60 * 60

// sizes matches a number of bytes with a unit, which are powers of 1024.
var sizes = sync.OnceValue(func() *regexp.Regexp { // not at each start of agentvm
	return regexp.MustCompile(`^[0-9]{1,15}([KkMmGg]([Ii]?[Bb])?)?$`)
})

// IsList reports whether the value is written in brackets.
func (k Kind) IsList() bool { return k == Texts || k == Paths || k == Ports }

// values returns what a file has for the setting as the texts that its flag takes.
func (s Setting) values(f *File, v any) (list []string, err error) {
	if !s.Kind.IsList() {
		text, err := s.one(f, v)
		return []string{text}, err
	}
	items, ok := v.([]any)
	if !ok && s.Kind == Ports {
		return nil, f.Errorf(s.Key, -1, "%s is a list of numbers, in brackets", s.Key)
	}
	if !ok {
		return nil, f.Errorf(s.Key, -1, "%s is a list of texts, in brackets", s.Key)
	}
	for i, item := range items {
		text, ok := plainText(item)
		if s.Kind == Ports {
			text, ok = port(item)
		}
		switch {
		case !ok && s.Kind == Ports:
			return nil, f.Errorf(s.Key, i, "each of %s is a port from 1 to 65535", s.Key)
		case !ok:
			return nil, f.Errorf(s.Key, i, "each of %s is a text, in quotes", s.Key)
		case s.Key == "env" && text[0] == '=':
			return nil, f.Errorf(s.Key, i, "env %q: want KEY=VALUE or KEY", text)
		case s.Kind == Paths:
			text = f.absolute(text)
		}
		list = append(list, text)
	}
	return list, nil
}

// one reads a value that is no list.
func (s Setting) one(f *File, v any) (string, error) {
	switch s.Kind {
	case Switch:
		on, ok := v.(bool)
		if !ok {
			return "", f.Errorf(s.Key, -1, "%s is true or false", s.Key)
		}
		return strconv.FormatBool(on), nil
	case Number:
		n, ok := v.(int64)
		if !ok || !s.inRange(n) {
			return "", f.Errorf(s.Key, -1, "%s is %s", s.Key, s.number())
		}
		return fmt.Sprint(n), nil
	}
	text, ok := plainText(v)
	if !ok {
		return "", f.Errorf(s.Key, -1, "%s is a text, in quotes", s.Key)
	}
	switch s.Kind {
	case Size:
		if !sizes().MatchString(text) {
			return "", f.Errorf(s.Key, -1, "%s %q: want a size such as 768M or 2G", s.Key, text)
		}
	case Duration:
		if d, err := time.ParseDuration(text); err != nil || d < 0 {
			return "", f.Errorf(s.Key, -1, "%s %q: want a time as 90s, 10m or 2h", s.Key, text)
		}
	case Path:
		text = f.absolutePath(text)
	}
	if s.Key == "network.mode" && !slices.Contains([]string{"public", "allowlist", "none", "open"}, text) {
		return "", f.Errorf(s.Key, -1, "network.mode %q: want public, allowlist, none or open", text)
	}
	return text, nil
}

// plainText is a text that is not empty.
func plainText(v any) (string, bool) {
	text, ok := v.(string)
	return text, ok && text != "" && !strings.ContainsRune(text, 0)
}

func port(v any) (string, bool) {
	n, ok := v.(int64)
	return fmt.Sprint(n), ok && n >= 1 && n <= 65535
}

// typed returns the texts of a setting as TOML and JSON write it.
func (s Setting) typed(list []string) any {
	numbers := make([]int, len(list))
	for i, text := range list {
		numbers[i], _ = strconv.Atoi(text) // only where they are numbers
	}
	switch s.Kind {
	case Switch:
		return list[0] == "true"
	case Number:
		return numbers[0]
	case Ports:
		return numbers
	case Texts, Paths:
		return list
	}
	return list[0]
}
