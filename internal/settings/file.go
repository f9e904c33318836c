package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// File is a project file.
type File struct {
	Path string // as given to Parse

	// Values are what the file sets, by the keys of All, as the texts that flags take: a list has any number, the others have one.
	Values   map[string][]string
	Sidecars []Sidecar // for VMs that live on

	text   []byte // nil: not parsed
	places map[string]place
}

// Value returns the value of a key that is no list; "" when the file does not set it.
func (f *File) Value(key string) string {
	if list := f.Values[key]; len(list) > 0 {
		return list[0]
	}
	return ""
}

// entry is a setting of a file, as it is written.
type entry struct {
	table, name string // table is "" for the keys before the first
	value       any
}

// entries returns what the file sets in the order of All, without empty lists, and false for switches.
func (f *File) entries() (list []entry) {
	for _, s := range All() {
		values := f.Values[s.Key]
		if s.FlagOnly || len(values) == 0 || values[0] == "" || s.Kind == Switch && values[0] == "false" {
			continue
		}
		table, name, found := strings.Cut(s.Key, ".")
		if !found {
			table, name = "", s.Key
		}
		list = append(list, entry{table, name, s.typed(values)})
	}
	return list
}

// Encode writes the settings as a project file.
func (f *File) Encode(w io.Writer) error {
	var text strings.Builder
	encoder := toml.NewEncoder(&text)
	table := ""
	for _, e := range f.entries() {
		if e.table != table {
			table = e.table
			text.WriteString("\n[" + table + "]\n")
		}
		if err := encoder.Encode(map[string]any{e.name: e.value}); err != nil {
			return fmt.Errorf("write a project file: %w", err)
		}
	}
	if len(f.Sidecars) > 0 {
		text.WriteString("\n")
		if err := encoder.Encode(map[string]any{"sidecar": f.Sidecars}); err != nil {
			return fmt.Errorf("write a project file: %w", err)
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// MarshalJSON returns an object with the settings; keys are written as network.hostPorts.
func (f *File) MarshalJSON() ([]byte, error) {
	object := make(map[string]any)
	for _, e := range f.entries() {
		in := object
		if e.table != "" {
			if object[e.table] == nil {
				object[e.table] = make(map[string]any)
			}
			in = object[e.table].(map[string]any)
		}
		in[camel(e.name)] = e.value
	}
	if f.Path != "" {
		object["path"] = f.Path
	}
	if len(f.Sidecars) > 0 {
		object["sidecars"] = f.Sidecars
	}
	return json.Marshal(object)
}

// camel writes host-ports as hostPorts.
func camel(key string) string {
	words := strings.Split(key, "-")
	for i, word := range words[1:] {
		words[i+1] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.Join(words, "")
}

// keys returns all keys that a file may have, with the names of tables.
func keys() (list []string) {
	sidecars := []string{"sidecar", "sidecar.name", "sidecar.command", "sidecar.env", "sidecar.user", "sidecar.restart", "sidecar.backoff"}
	for _, s := range All() {
		if s.FlagOnly {
			continue
		}
		table, _, found := strings.Cut(s.Key, ".")
		if found && sidecars != nil {
			list, sidecars = append(list, sidecars...), nil
		}
		if found && !slices.Contains(list, table) {
			list = append(list, table)
		}
		list = append(list, s.Key)
	}
	return list
}

// Parse reads a file. Errors begin with path:line:column, columns in characters from 1. Paths of the host that are relative
// are made relative to the directory of path.
func Parse(path string, text []byte) (*File, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s: a project file has at most %d bytes", path, maxFile)
	}
	f := &File{Path: path, Values: make(map[string][]string), text: text}
	var tree map[string]any
	meta, err := toml.Decode(string(text), &tree)
	if err != nil {
		return nil, f.syntaxError(err)
	}
	f.places = scan(string(text))
	var written []string
	for _, key := range meta.Keys() {
		if known := keys(); !slices.Contains(known, dashed(key.String())) {
			return nil, f.Errorf(dashed(key.String()), -1, "unknown key %q: there are %s", key.String(), strings.Join(known, ", "))
		}
		written = append(written, key.String())
	}
	if err := f.spellings(written); err != nil {
		return nil, err
	}
	if err := f.read(tree); err != nil {
		return nil, err
	}
	return f, f.checkSidecars()
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
	var errs []error
	for _, s := range All() {
		table, name, found := strings.Cut(s.Key, ".")
		in := tree
		if s.FlagOnly {
			continue
		} else if !found {
			name = s.Key
		} else if tree[table] == nil {
			continue
		} else if in, found = tree[table].(map[string]any); !found {
			return f.Errorf(table, -1, "%s is a table, as in [%s]", table, table)
		}
		v, ok := in[name]
		if !ok {
			v, ok = in[strings.ReplaceAll(name, "-", "_")]
		}
		if !ok {
			continue
		}
		list, err := s.values(f, v)
		if errs = append(errs, err); err == nil && len(list) > 0 {
			f.Values[s.Key] = list
		}
	}
	return errors.Join(append(errs, f.sidecars(tree))...)
}

// dashed is a key as it is written here; in a file underscores do as well.
func dashed(key string) string { return strings.ReplaceAll(key, "_", "-") }

// spellings refuses a key that is there in two spellings, of which one would not count.
func (f *File) spellings(keys []string) error {
	seen := make(map[string]string)
	for _, key := range keys {
		other, known := seen[dashed(key)]
		if known && other != key {
			return f.Errorf(dashed(key), -1, "%q is %q in another spelling: leave one out", key, other)
		}
		seen[dashed(key)] = key
	}
	return nil
}

// absolutePath is a path of the host, seen from the file's directory.
func (f *File) absolutePath(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(f.Path), path)
}

// absolute is a mount or a socket with the host's path seen from the file's directory. A relative path ends at the first colon.
func (f *File) absolute(text string) string {
	if filepath.IsAbs(text) {
		return text
	}
	host, rest, found := strings.Cut(text, ":")
	if host == "" {
		return text // whoever parses it says what is wrong
	}
	if text = f.absolutePath(host); found {
		text += ":" + rest
	}
	return text
}
