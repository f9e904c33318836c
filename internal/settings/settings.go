package settings

import (
	"cmp"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"time"

	"agentvm/vm"
)

// Setting is one setting of a VM: a flag, a key of the project file that means the same, and a field of the HTTP API. A flag that is given
// wins over the file.
type Setting struct {
	Key  string // image, or network.mode for mode in the table network
	Flag string // "": no flag; what has the key's value reads it from the File
	JSON string // the field of a new VM in the HTTP API; "": clients of it cannot have the setting
	Kind Kind
	Part Part

	FlagOnly bool // a project file cannot have it
	// Fresh is true of what only a VM that boots can have: one that continues from a snapshot has that of the saved one.
	Fresh bool
	// Portable is true of what a snapshot's file says about its VM's network: it has nothing of the host.
	Portable bool

	// Range is the least and the most that a Number can be. Default: any.
	Range [2]int

	// Usage is the flag's help, Short its letter, and Default its value. Flags without a Usage belong to the commands that have them.
	Usage, Short, Default string

	name string           // in errors; default: the flag
	in   func(Config) any // a pointer to the setting's place
	set  func(s Setting, c Config, texts []string) error

	// beyond says what the setting gives that it did not before its file was changed. Default: any change may give more. It does not ask that
	// of a setting that is harmless: no value of it gives a VM more of the host or of the network than another.
	beyond   beyond
	harmless bool
	// more is what a project file gives with a value beyond the default, which it cannot do by itself. Default: it can.
	more string
}

// NeedsTrust returns what the file gives by this setting that it cannot give without the user's agreement, "" for nothing.
func (s Setting) NeedsTrust(f *File) string {
	if s.more == "" || len(s.beyond(change{key: s.Key, now: f.Values})) == 0 {
		return ""
	}
	return s.more
}

// Part is what a setting is about.
type Part int

// Parts.
const (
	OfVM      Part = iota
	OfNetwork      // without a network card it has no meaning
	OfAccess       // to ports of the VM
	OfDaemon       // of a VM with a name
)

// Config is where settings are set: a VM's configuration, and what its daemon has besides. A nil pointer is what the VM does not have.
type Config struct {
	*vm.Config
	CAFile, CaptureFile, NetworkLog, Metrics, Restart *string
	DiskSize                                          *int64 // as client.Config.DiskSize
	IdleTimeout, HibernateAfter, MaxLifetime          *time.Duration
	Labels                                            *map[string]string
}

// Sets reports whether Set works: the setting's texts are all that it needs.
func (s Setting) Sets() bool { return s.in != nil || s.set != nil }

// Switch is the place of a setting of kind Switch.
func (s Setting) Switch(c *vm.Config) *bool { return s.in(Config{Config: c}).(*bool) }

// Copy sets the setting in one configuration to what it is in another.
func (s Setting) Copy(to, from Config) {
	reflect.ValueOf(s.in(to)).Elem().Set(reflect.ValueOf(s.in(from)).Elem())
}

// Set sets the setting's place in c to what its flag was given: any number of texts for a list, else one. Errors name the flag.
func (s Setting) Set(c Config, texts []string) error {
	if s.set != nil {
		return s.set(s, c, texts)
	}
	v, err := s.parse(texts)
	if err != nil || v == nil {
		return err
	}
	return s.Put(c, v)
}

// Put sets the setting's place to a value: bytes, a time.Duration, a bool, an int, a text, or texts, which a map gives as KEY=VALUE. Errors name the
// field of the HTTP API, or the key.
func (s Setting) Put(c Config, v any) error {
	if s.in != nil {
		place := reflect.ValueOf(s.in(c))
		if place.IsNil() {
			return nil
		}
		place = place.Elem()
		if pairs, ok := v.(map[string]string); ok && place.Kind() == reflect.Slice {
			v = list(pairs)
		}
		if value := reflect.ValueOf(v); value.CanConvert(place.Type()) {
			if value = value.Convert(place.Type()); s.Kind == Number && !s.inRange(value.Int()) {
				return fmt.Errorf("%s %d: want %s", s.JSON, value.Int(), s.number())
			}
			place.Set(value)
			return nil
		}
	}
	texts, ok := v.([]string)
	if text, one := v.(string); one {
		texts, ok = []string{text}, true
	}
	if !ok || s.set == nil {
		return fmt.Errorf("%s: %T is not what it is set to", s.Key, v)
	}
	s.name = cmp.Or(s.JSON, s.Key)
	return s.set(s, c, texts)
}

// inRange says whether a Number can be n.
func (s Setting) inRange(n int64) bool {
	return s.Range == [2]int{} || int64(s.Range[0]) <= n && n <= int64(s.Range[1])
}

// number says what a Number is.
func (s Setting) number() string {
	if s.Range == [2]int{} {
		return "a number"
	}
	return fmt.Sprintf("a number from %d to %d", s.Range[0], s.Range[1])
}

// list returns pairs as KEY=VALUE.
func list(pairs map[string]string) (texts []string) {
	for key, value := range pairs {
		texts = append(texts, key+"="+value)
	}
	slices.Sort(texts)
	return texts
}

// parse reads what a flag was given. It returns nil where that leaves the setting as it is.
func (s Setting) parse(texts []string) (any, error) {
	if s.Kind.IsList() {
		return s.parseList(texts)
	}
	text := texts[0]
	switch s.Kind {
	case Switch:
		return text == "true", nil
	case Size:
		if text == "" && s.Default == "" {
			return nil, nil
		}
		n, err := ParseSize(text, 20)
		if err != nil || n == 0 || n > maxInt64 {
			return nil, s.errorf(" %q: want a size such as 768M or 2G", text)
		}
		return n, nil
	case Rate:
		n, err := parseRate(text)
		if err != nil {
			return nil, s.errorf(" %q: want bytes a second as 500K or 10M", text)
		}
		return n, nil
	case Number:
		n, err := strconv.Atoi(text)
		if err != nil || !s.inRange(int64(n)) {
			return nil, s.errorf(" %q: want %s", text, s.number())
		}
		return n, nil
	case Duration:
		d, err := ParseDuration(text)
		if err != nil {
			return nil, s.errorf(" %q: %w", text, err)
		}
		return d, nil
	case Path:
		if text == "" {
			return text, nil
		}
		path, err := filepath.Abs(text) // a daemon has another working directory
		if err != nil {
			return nil, s.errorf(": %w", err)
		}
		return path, nil
	}
	return text, nil
}

func (s Setting) parseList(texts []string) (any, error) {
	if s.Kind != Ports {
		return append([]string(nil), texts...), nil
	}
	var ports []uint16
	for _, text := range texts {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return nil, s.errorf(" %q: want a port from 1 to 65535", text)
		}
		ports = append(ports, uint16(port))
	}
	return ports, nil
}

// errorf is an error about what the flag was given, with the name before it.
func (s Setting) errorf(format string, args ...any) error {
	return fmt.Errorf(cmp.Or(s.name, "--"+s.Flag)+format, args...)
}

// Named returns the setting of a key, which must exist.
func Named(key string) Setting {
	list := All()
	return list[slices.IndexFunc(list, func(s Setting) bool { return s.Key == key })]
}

// Switches returns the settings that are true or false and that a VM keeps when it continues from a snapshot.
func Switches() []Setting {
	return slices.DeleteFunc(slices.Clone(All()), func(s Setting) bool { return s.Kind != Switch || s.Fresh || s.Part != OfVM })
}
