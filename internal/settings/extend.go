package settings

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"agentvm/internal/host/tomlfile"
)

// Extend returns the text of a project file with more in its [network]: add's mode, when it has one, takes the place of the
// file's; its rules and ports are added to those that are there, unless the same text or number is. Everything else stays as it is, byte for
// byte: comments, order, white space. An empty text is a file without settings.
//
// It fails, with the place and the cause, when it would have to change something else, and when the file is wrong. It checks the
// result by reading it again: it means what the file meant and what was added.
func Extend(path string, text []byte, add Network) ([]byte, error) {
	before, err := Parse(path, text)
	if err != nil {
		return nil, err
	}
	there := before.network()
	e := &extension{file: before, text: string(text), add: missing(add, there), line: "\n"}
	if strings.Contains(e.text, "\r\n") {
		e.line = "\r\n"
	}
	if err := e.edit(); err != nil {
		return nil, err
	}
	out := []byte(e.apply())
	after, err := Parse(path, out)
	if err != nil || !after.means(before.with(there.with(add))) {
		return nil, fmt.Errorf("%s: [network] is written in a way that cannot be extended: change it by hand", path)
	}
	return out, nil
}

// Network is the table [network] of a file.
type Network struct {
	Mode        string
	Allow, Deny []string
	HostPorts   []string
}

func (f *File) network() Network {
	return Network{f.Value("network.mode"), f.Values["network.allow"], f.Values["network.deny"], f.Values["network.host-ports"]}
}

// with returns the file with another network.
func (f *File) with(n Network) *File {
	values := maps.Clone(f.Values)
	for key, list := range map[string][]string{"network.allow": n.Allow, "network.deny": n.Deny, "network.host-ports": n.HostPorts} {
		if len(list) > 0 {
			values[key] = list
		}
	}
	if n.Mode != "" {
		values["network.mode"] = []string{n.Mode}
	}
	return &File{Path: f.Path, Values: values, Sidecars: f.Sidecars}
}

// with returns a network with more in it.
func (n Network) with(add Network) Network {
	add = missing(add, n)
	if add.Mode != "" {
		n.Mode = add.Mode
	}
	n.Allow = slices.Concat(n.Allow, add.Allow)
	n.Deny = slices.Concat(n.Deny, add.Deny)
	n.HostPorts = slices.Concat(n.HostPorts, add.HostPorts)
	return n
}

// missing returns the part of add that is not there.
func missing(add, there Network) Network {
	if add.Mode == there.Mode {
		add.Mode = ""
	}
	add.Allow = without(add.Allow, there.Allow)
	add.Deny = without(add.Deny, there.Deny)
	add.HostPorts = without(add.HostPorts, there.HostPorts)
	return add
}

func without(list, others []string) (rest []string) {
	for _, one := range list {
		if !slices.Contains(others, one) && !slices.Contains(rest, one) {
			rest = append(rest, one)
		}
	}
	return rest
}

// means reports whether two files have the same settings.
func (f *File) means(other *File) bool {
	return reflect.DeepEqual(f.Values, other.Values) && reflect.DeepEqual(f.Sidecars, other.Sidecars)
}

// extension is a file being extended by insertions, and one replacement.
type extension struct {
	file  *File
	text  string
	add   Network // what is not there yet
	line  string  // how lines end
	edits []edit
}

// edit replaces the bytes from at to end by new.
type edit struct {
	at, end int
	new     string
}

// key is one key of [network] that changes.
type key struct {
	name  string
	value string   // of a text
	items []string // to add to a list
}

func (e *extension) edit() error {
	keys := []key{
		{name: "mode", value: tomlfile.Quote(e.add.Mode)},
		{name: "allow", items: quoted(e.add.Allow)},
		{name: "deny", items: quoted(e.add.Deny)},
		{name: "host-ports", items: e.add.HostPorts},
	}
	keys = slices.DeleteFunc(keys, func(k key) bool { return len(k.items) == 0 && (k.value == "" || k.value == `""`) })
	if len(keys) == 0 {
		return nil
	}
	table, there := e.file.places["network"]
	switch {
	case !there:
		e.newTable(keys)
		return nil
	case !table.Header:
		return e.file.Errorf("network", -1, "network is not a table of its own, as in [network], so that nothing is added to it: do it by hand")
	}
	for _, k := range keys {
		e.change(k, table)
	}
	return nil
}

func quoted(list []string) (texts []string) {
	for _, one := range list {
		texts = append(texts, tomlfile.Quote(one))
	}
	return texts
}

// assignment is a new key with its value.
func (k key) assignment(line string) string {
	switch {
	case len(k.items) == 0:
		return k.name + " = " + k.value + line
	case len(k.items) == 1:
		return k.name + " = [" + k.items[0] + "]" + line
	}
	text := k.name + " = [" + line
	for _, item := range k.items {
		text += "    " + item + "," + line
	}
	return text + "]" + line
}

// newTable appends [network] to the file.
func (e *extension) newTable(keys []key) {
	text := ""
	if e.text != "" && !strings.HasSuffix(e.text, "\n") {
		text = e.line
	}
	if strings.TrimSpace(e.text) != "" {
		text += e.line
	}
	text += "[network]" + e.line
	for _, k := range keys {
		text += k.assignment(e.line)
	}
	e.insert(len(e.text), text)
}

func (e *extension) insert(at int, text string) { e.edits = append(e.edits, edit{at, at, text}) }

// change adds to a key's value, or adds the key.
func (e *extension) change(k key, table tomlfile.Entry) {
	p, there := e.file.places["network."+k.name]
	switch {
	case !there:
		e.assign(k, table)
	case len(k.items) > 0:
		e.extend(p, k.items)
	default:
		e.edits = append(e.edits, edit{p.Value.At, p.Value.End, k.value})
	}
}

// assign adds a key below the table's header.
func (e *extension) assign(k key, table tomlfile.Entry) {
	if i := strings.IndexByte(e.text[table.At:], '\n'); i >= 0 {
		e.insert(table.At+i+1, k.assignment(e.line))
		return
	}
	e.insert(len(e.text), e.line+k.assignment(e.line))
}

// extend adds elements behind the last one of an array, on lines of their own if its bracket is on one.
func (e *extension) extend(array tomlfile.Entry, items []string) {
	last, bracket := array.Value.At+1, array.Value.End-1
	separator := ""
	if n := len(array.Items); n > 0 {
		last = array.Items[n-1].End
		if comma := tomlfile.Blank(e.text, last); e.text[comma] == ',' {
			last = comma + 1
		} else {
			separator = ","
		}
	}
	if !strings.Contains(e.text[last:bracket], "\n") {
		if len(array.Items) > 0 {
			separator += " "
		}
		e.insert(last, separator+strings.Join(items, ", "))
		return
	}
	if separator != "" {
		e.insert(last, separator)
	}
	behind := last + strings.IndexByte(e.text[last:], '\n') // a comment of the last element stays with it
	behind = len(strings.TrimSuffix(e.text[:behind], "\r"))
	text := ""
	for _, item := range items {
		text += e.line + e.indent(array) + item + ","
	}
	e.insert(behind, text)
}

// indent returns the white space before the first element, if it has a line of its own.
func (e *extension) indent(array tomlfile.Entry) string {
	if len(array.Items) > 0 {
		first := array.Items[0].At
		start := strings.LastIndexByte(e.text[:first], '\n') + 1
		if space := e.text[start:first]; strings.Trim(space, " \t") == "" {
			return space
		}
	}
	return "    "
}

// apply returns the text. Insertions at the same place stay in their order.
func (e *extension) apply() string {
	slices.SortStableFunc(e.edits, func(a, b edit) int { return a.at - b.at })
	var out bytes.Buffer
	at := 0
	for _, one := range e.edits {
		if one.at < at {
			return "" // replacements overlap, which no valid file causes
		}
		out.WriteString(e.text[at:one.at] + one.new)
		at = one.end
	}
	out.WriteString(e.text[at:])
	return out.String()
}
