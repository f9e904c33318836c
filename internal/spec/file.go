package spec

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// File is a project file. What it leaves out is zero.
type File struct {
	Path string `toml:"-" json:"path,omitempty"` // as given to Parse

	Image  string   `toml:"image,omitempty" json:"image,omitempty"`
	Memory string   `toml:"memory,omitempty" json:"memory,omitempty"` // a size, as 1G
	Mounts []string `toml:"mounts,omitempty" json:"mounts,omitempty"` // host[:guest][:ro], the host's path absolute
	Masks  []string `toml:"masks,omitempty" json:"masks,omitempty"`   // paths below the file's directory, hidden in every mount
	Env    []string `toml:"env,omitempty" json:"env,omitempty"`       // KEY=VALUE, or KEY
	Ports  []string `toml:"ports,omitempty" json:"ports,omitempty"`   // [address:]port:guestport[/udp]

	CACert          string   `toml:"ca-cert,omitempty" json:"caCert,omitempty"` // file, absolute
	NoNewPrivileges bool     `toml:"no-new-privileges,omitempty" json:"noNewPrivileges,omitempty"`
	Sockets         []string `toml:"sockets,omitempty" json:"sockets,omitempty"` // host[:guest][:mode], the host's path absolute

	IdleTimeout string `toml:"idle-timeout,omitempty" json:"idleTimeout,omitempty"` // as time.ParseDuration reads it
	MaxLifetime string `toml:"max-lifetime,omitempty" json:"maxLifetime,omitempty"`
	DiskSize    string `toml:"disk-size,omitempty" json:"diskSize,omitempty"` // a size, or 0

	Network Network `toml:"network,omitempty" json:"network,omitzero"`
	Access  Access  `toml:"access,omitempty" json:"access,omitzero"`
	Preview Preview `toml:"preview,omitempty" json:"preview,omitzero"`

	Sidecars []Sidecar `toml:"sidecar,omitempty" json:"sidecars,omitempty"` // for VMs that live on

	text   []byte // nil: not parsed
	places map[string]place
}

// Network is what machines of the project may reach.
type Network struct {
	Mode      string   `toml:"mode,omitempty" json:"mode,omitempty"` // public, allowlist, none or open
	Allow     []string `toml:"allow,omitempty" json:"allow,omitempty"`
	Deny      []string `toml:"deny,omitempty" json:"deny,omitempty"`
	HostPorts []int    `toml:"host-ports,omitempty" json:"hostPorts,omitempty"`
}

// Encode writes the settings as a project file.
func (f *File) Encode(w io.Writer) error {
	if err := toml.NewEncoder(w).Encode(f); err != nil {
		return fmt.Errorf("write a project file: %w", err)
	}
	return nil
}

// keys are all that a file may have.
var keys = []string{
	"image", "memory", "mounts", "masks", "env", "ports", "ca-cert", "no-new-privileges", "sockets", "idle-timeout", "max-lifetime", "disk-size",
	"sidecar", "sidecar.name", "sidecar.command", "sidecar.env", "sidecar.user", "sidecar.restart", "sidecar.backoff",
	"network", "network.mode", "network.allow", "network.deny", "network.host-ports",
	"access", "access.listen-allow", "access.listen-deny", "access.connect-allow", "access.connect-deny", "access.loopback-exempt-ports",
	"preview", "preview.max-expires-in-seconds",
}

// Parse reads a file. Errors begin with path:line:column, columns in characters from 1. Mounts whose host path is relative
// are made relative to the directory of path.
func Parse(path string, text []byte) (*File, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s: a project file has at most %d bytes", path, maxFile)
	}
	f := &File{Path: path, text: text}
	var tree map[string]any
	meta, err := toml.Decode(string(text), &tree)
	if err != nil {
		return nil, f.syntaxError(err)
	}
	f.places = scan(string(text))
	var written []string
	for _, key := range meta.Keys() {
		if !slices.Contains(keys, dashed(key.String())) {
			return nil, f.Errorf(dashed(key.String()), -1, "unknown key %q: there are %s", key.String(), strings.Join(keys, ", "))
		}
		written = append(written, key.String())
	}
	if err := f.spellings(written); err != nil {
		return nil, err
	}
	if err := f.read(tree); err != nil {
		return nil, err
	}
	return f, f.check()
}

// Text is what was parsed, not to be changed; nil for a file that was not.
func (f *File) Text() []byte { return f.text }

func (f *File) syntaxError(err error) error {
	syntax := toml.ParseError{}
	if !errors.As(err, &syntax) {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	return f.at(syntax.Position.Start, "%s", syntax.Message)
}

// Errorf is an error about the value of a key, such as network.allow, or, where item is not negative, about an
// element of it.
func (f *File) Errorf(key string, item int, format string, args ...any) error {
	p := f.places[key]
	switch {
	case item >= 0 && item < len(p.items):
		return f.at(p.items[item], format, args...)
	case item >= 0 || p.value > 0:
		return f.at(p.value, format, args...)
	}
	return f.at(p.key, format, args...)
}

func (f *File) at(offset int, format string, args ...any) error {
	before := f.text[:min(max(offset, 0), len(f.text))]
	line, start := 1, 0
	for i, b := range before {
		if b == '\n' {
			line, start = line+1, i+1
		}
	}
	place := []any{f.Path, line, utf8.RuneCount(before[start:]) + 1}
	return fmt.Errorf("%s:%d:%d: "+format, append(place, args...)...)
}

// read takes the values out of the tree, one by one, because each error needs its place.
func (f *File) read(tree map[string]any) error {
	network, err := f.table(tree, "network")
	if err != nil {
		return err
	}
	return errors.Join(
		f.string(tree, "image", &f.Image), f.string(tree, "memory", &f.Memory), f.list(tree, "mounts", &f.Mounts),
		f.list(tree, "masks", &f.Masks), f.list(tree, "env", &f.Env), f.list(tree, "ports", &f.Ports),
		f.string(tree, "ca-cert", &f.CACert), f.bool(tree, "no-new-privileges", &f.NoNewPrivileges), f.list(tree, "sockets", &f.Sockets),
		f.string(tree, "idle-timeout", &f.IdleTimeout), f.string(tree, "max-lifetime", &f.MaxLifetime),
		f.string(tree, "disk-size", &f.DiskSize), f.string(network, "network.mode", &f.Network.Mode),
		f.list(network, "network.allow", &f.Network.Allow), f.list(network, "network.deny", &f.Network.Deny),
		f.ports(network, "network.host-ports", &f.Network.HostPorts), f.access(tree), f.sidecars(tree),
	)
}

func (f *File) string(tree map[string]any, key string, to *string) error {
	v, ok := value(tree, key)
	if !ok {
		return nil
	}
	if *to, ok = v.(string); !ok || *to == "" || strings.ContainsRune(*to, 0) {
		return f.Errorf(key, -1, "%s is a text, in quotes", key)
	}
	return nil
}

func (f *File) bool(tree map[string]any, key string, to *bool) error {
	v, ok := value(tree, key)
	if !ok {
		return nil
	}
	if *to, ok = v.(bool); !ok {
		return f.Errorf(key, -1, "%s is true or false", key)
	}
	return nil
}

func (f *File) list(tree map[string]any, key string, to *[]string) error {
	v, ok := value(tree, key)
	if !ok {
		return nil
	}
	items, ok := v.([]any)
	if !ok {
		return f.Errorf(key, -1, "%s is a list of texts, in brackets", key)
	}
	for i, item := range items {
		text, ok := item.(string)
		if !ok || text == "" || strings.ContainsRune(text, 0) {
			return f.Errorf(key, i, "each of %s is a text, in quotes", key)
		}
		*to = append(*to, text)
	}
	return nil
}

func (f *File) ports(tree map[string]any, key string, to *[]int) error {
	v, ok := value(tree, key)
	if !ok {
		return nil
	}
	items, ok := v.([]any)
	if !ok {
		return f.Errorf(key, -1, "%s is a list of numbers, in brackets", key)
	}
	for i, item := range items {
		port, ok := item.(int64)
		if !ok || port < 1 || port > 65535 {
			return f.Errorf(key, i, "each of %s is a port from 1 to 65535", key)
		}
		*to = append(*to, int(port))
	}
	return nil
}

// size is a number of bytes with a unit, which are powers of 1024.
var size = sync.OnceValue(func() *regexp.Regexp { // not at each start of agentvm
	return regexp.MustCompile(`^[0-9]{1,15}([KkMmGg]([Ii]?[Bb])?)?$`)
})

func (f *File) check() error {
	for key, text := range map[string]string{"memory": f.Memory, "disk-size": f.DiskSize} {
		if text != "" && !size().MatchString(text) {
			return f.Errorf(key, -1, "%s %q: want a size as 768M or 2G", key, text)
		}
	}
	for key, text := range map[string]string{"idle-timeout": f.IdleTimeout, "max-lifetime": f.MaxLifetime} {
		if d, err := time.ParseDuration(text); text != "" && (err != nil || d < 0) {
			return f.Errorf(key, -1, "%s %q: want a time as 90s, 10m or 2h", key, text)
		}
	}
	if m := f.Network.Mode; m != "" && !slices.Contains([]string{"public", "allowlist", "none", "open"}, m) {
		return f.Errorf("network.mode", -1, "network.mode %q: want public, allowlist, none or open", m)
	}
	for i, kv := range f.Env {
		if kv[0] == '=' {
			return f.Errorf("env", i, "env %q: want KEY=VALUE or KEY", kv)
		}
	}
	dir := filepath.Dir(f.Path)
	for i, text := range f.Mounts {
		f.Mounts[i] = absolute(dir, text)
	}
	for i, text := range f.Sockets {
		f.Sockets[i] = absolute(dir, text)
	}
	if f.CACert != "" && !filepath.IsAbs(f.CACert) {
		f.CACert = filepath.Join(dir, f.CACert)
	}
	return f.checkSidecars()
}

// absolute is a mount or a socket with the host's path seen from dir. A relative path ends at the first colon.
func absolute(dir, text string) string {
	if filepath.IsAbs(text) {
		return text
	}
	host, rest, found := strings.Cut(text, ":")
	if host == "" {
		return text // whoever parses it says what is wrong
	}
	if text = filepath.Join(dir, host); found {
		text += ":" + rest
	}
	return text
}
