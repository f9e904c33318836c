package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"agentvm/internal/host/tomlfile"
)

// File is a project file.
type File struct {
	Path string // as given to Parse

	// Values are what the file sets, by the keys of All, as the texts that flags take: a list has any number, the others have one.
	Values   map[string][]string
	Sidecars []Sidecar // for VMs that live on

	text   []byte // nil: not parsed
	places map[string]tomlfile.Entry
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

// entries returns what the file sets in the order of All, without empty lists, false for switches and 0, which is a default.
func (f *File) entries() (list []entry) {
	for _, s := range All() {
		values := f.Values[s.Key]
		if s.FlagOnly || len(values) == 0 || values[0] == "" || s.Kind == Switch && values[0] == "false" || s.Kind == Number && values[0] == "0" {
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
	table := ""
	for _, e := range f.entries() {
		if e.table != table {
			table = e.table
			text.WriteString("\n[" + table + "]\n")
		}
		text.WriteString(e.name + " = " + tomlfile.Value(e.value) + "\n")
	}
	for _, s := range f.Sidecars {
		text.WriteString("\n[[sidecar]]\n" + s.toml())
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
	f := &File{Path: path, Values: make(map[string][]string), text: text, places: make(map[string]tomlfile.Entry)}
	document, err := tomlfile.Parse(path, text)
	if err != nil {
		return nil, err
	}
	known, spelled := keys(), make(map[string]string)
	for _, e := range document.Entries {
		key, name := e.Key().String(), e.Name()
		if !slices.Contains(known, dashed(key)) {
			return nil, f.at(e.At, "unknown key %q: there are %s", key, strings.Join(known, ", "))
		}
		// Of a key that is there in two spellings one would not count.
		if other, is := spelled[dashed(name)]; is && other != name {
			return nil, f.at(e.At, "%q is %q in another spelling: leave one out", key, other)
		}
		spelled[dashed(name)] = name
		f.note(e, dashed(name), dashed(key))
	}
	if err := f.read(document.Tree); err != nil {
		return nil, err
	}
	return f, f.checkSidecars()
}

// note keeps the first place of an entry's names, and of the tables that their dots make.
func (f *File) note(e tomlfile.Entry, names ...string) {
	for _, name := range names {
		if _, known := f.places[name]; !known {
			f.places[name] = e
		}
		if table, _, dotted := strings.Cut(name, "."); dotted {
			if _, known := f.places[table]; !known {
				f.places[table] = tomlfile.Entry{At: e.At, Value: tomlfile.Span{At: e.At, End: e.At}}
			}
		}
	}
}

// Text is what was parsed, not to be changed; nil for a file that was not.
func (f *File) Text() []byte { return f.text }

// Errorf is an error about the value of a key, such as network.allow, or, where item is not negative, about an
// element of it.
func (f *File) Errorf(key string, item int, format string, args ...any) error {
	p := f.places[key]
	if item >= 0 && item < len(p.Items) {
		return f.at(p.Items[item].At, format, args...)
	}
	return f.at(p.Value.At, format, args...)
}

func (f *File) at(offset int, format string, args ...any) error {
	return tomlfile.Errorf(f.Path, f.text, offset, format, args...)
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
