package spec

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentvm/vm"
)

// Setting is one setting of a VM: a key of the project file, and the flag that means the same. A flag that is given wins over the file.
type Setting struct {
	Key  string // image, or network.mode for mode in the table network
	Flag string // "": no flag; what has the key's value reads it from the File
	Kind Kind

	// Of a Switch: the flag's help, and the place in a VM's configuration.
	Usage string
	In    func(*vm.Config) *bool
}

// Kind is what the value of a setting looks like in a project file.
type Kind int

// Kinds.
const (
	Text     Kind = iota
	Texts         // a list
	Path          // a file of the host, made absolute
	Paths         // a list of texts that begin with a path of the host, made absolute
	Size          // bytes, as 1G
	Duration      // as time.ParseDuration reads it
	Ports         // a list of numbers from 1 to 65535
	Seconds       // a number from 1 to a day
	Switch        // true or false
)

// Settings returns all settings except the sidecars, in the order in which they are shown.
func Settings() []Setting {
	return []Setting{
		{Key: "image", Flag: "image"},
		{Key: "memory", Flag: "memory", Kind: Size},
		{Key: "host-memory", Flag: "host-memory", Kind: Size},
		{Key: "mounts", Flag: "mount", Kind: Paths}, // host[:guest][:ro]
		{Key: "masks", Kind: Texts},                 // paths below the file's directory, hidden in every mount
		{Key: "env", Flag: "env", Kind: Texts},      // KEY=VALUE, or KEY
		{Key: "ports", Flag: "publish", Kind: Texts},
		{Key: "ca-cert", Flag: "ca-cert", Kind: Path},
		{
			Key: "no-new-privileges", Flag: "no-new-privileges", Kind: Switch, In: func(c *vm.Config) *bool { return &c.NoNewPrivileges },
			Usage: "have set-user-ID programs give nothing in the guest: who is not root there does not become it",
		},
		{
			Key: "read-only-root", Flag: "read-only-root", Kind: Switch, In: func(c *vm.Config) *bool { return &c.ReadOnlyRoot },
			Usage: "let no program change the VM's own files; mounts, /tmp, /run and /dev/shm stay writable",
		},
		{Key: "sockets", Flag: "socket", Kind: Paths}, // host[:guest][:mode]
		{Key: "idle-timeout", Flag: "idle-timeout", Kind: Duration},
		{Key: "max-lifetime", Flag: "max-lifetime", Kind: Duration},
		{Key: "disk-size", Flag: "disk-size", Kind: Size},

		{Key: "network.mode", Flag: "net"}, // public, allowlist, none or open
		{Key: "network.allow", Flag: "allow", Kind: Texts},
		{Key: "network.deny", Flag: "deny", Kind: Texts},
		{Key: "network.host-ports", Flag: "host-port", Kind: Ports},

		{Key: "access.listen-allow", Flag: "listen-allow", Kind: Texts}, // ranges, as 8080 or 3000-3999
		{Key: "access.listen-deny", Flag: "listen-deny", Kind: Texts},
		{Key: "access.connect-allow", Flag: "connect-allow", Kind: Texts},
		{Key: "access.connect-deny", Flag: "connect-deny", Kind: Texts},
		{Key: "access.loopback-exempt-ports", Flag: "loopback-exempt", Kind: Ports},

		{Key: "preview.max-expires-in-seconds", Kind: Seconds}, // the longest lifetime of a link to a server in the VM
	}
}

// Switches returns the settings that are true or false.
func Switches() []Setting {
	return slices.DeleteFunc(Settings(), func(s Setting) bool { return s.Kind != Switch })
}

// maxSeconds is the most that a setting of kind Seconds can be: a day.
const maxSeconds = 24 * 60 * 60

// sizes matches a number of bytes with a unit, which are powers of 1024.
var sizes = sync.OnceValue(func() *regexp.Regexp { // not at each start of agentvm
	return regexp.MustCompile(`^[0-9]{1,15}([KkMmGg]([Ii]?[Bb])?)?$`)
})

// isList reports whether the value is written in brackets.
func (k Kind) isList() bool { return k == Texts || k == Paths || k == Ports }

// values returns what a file has for the setting as the texts that its flag takes.
func (s Setting) values(f *File, v any) (list []string, err error) {
	if !s.Kind.isList() {
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
			text, ok = number(item, 65535)
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
	case Seconds:
		text, ok := number(v, maxSeconds)
		if !ok {
			return "", f.Errorf(s.Key, -1, "%s is a number from 1 to %d", s.Key, maxSeconds)
		}
		return text, nil
	}
	text, ok := plainText(v)
	if !ok {
		return "", f.Errorf(s.Key, -1, "%s is a text, in quotes", s.Key)
	}
	switch s.Kind {
	case Size:
		if !sizes().MatchString(text) {
			return "", f.Errorf(s.Key, -1, "%s %q: want a size as 768M or 2G", s.Key, text)
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

func number(v any, most int64) (string, bool) {
	n, ok := v.(int64)
	return fmt.Sprint(n), ok && n >= 1 && n <= most
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
	case Seconds:
		return numbers[0]
	case Ports:
		return numbers
	case Texts, Paths:
		return list
	}
	return list[0]
}
