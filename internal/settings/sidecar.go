package settings

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"agentvm/internal/host/tomlfile"
)

// Sidecar is a program that a VM which lives on keeps running.
type Sidecar struct {
	Name    string   `json:"name"`              // unique; default: its number, from 1
	Command []string `json:"command"`           // a program and its arguments; a text is for /bin/sh -c
	Env     []string `json:"env,omitempty"`     // KEY=VALUE
	User    string   `json:"user,omitempty"`    // default: root
	Restart string   `json:"restart,omitempty"` // always (the default), on-failure or never
	Backoff string   `json:"backoff,omitempty"` // the first pause before a restart, as 1s
}

// MaxSidecars is how many a file may have.
const MaxSidecars = 16

// sidecars reads the tables.
func (f *File) sidecars(tree map[string]any) error {
	v, ok := tree["sidecar"]
	if !ok {
		return nil
	}
	tables, ok := v.([]any)
	if !ok || slices.ContainsFunc(tables, func(v any) bool { _, is := v.(map[string]any); return !is }) {
		return f.Errorf("sidecar", -1, "sidecar is an array of tables, as in [[sidecar]]")
	}
	if len(tables) > MaxSidecars {
		return f.sidecarErrorf(MaxSidecars, "", -1, "a file has at most %d sidecars", MaxSidecars)
	}
	for i, table := range tables {
		s, err := f.sidecar(i, table.(map[string]any))
		if err != nil {
			return err
		}
		f.Sidecars = append(f.Sidecars, s)
	}
	return nil
}

// toml writes the sidecar's keys.
func (s Sidecar) toml() string {
	text := "  name = " + tomlfile.Value(s.Name) + "\n  command = " + tomlfile.Value(s.Command) + "\n"
	if len(s.Env) > 0 {
		text += "  env = " + tomlfile.Value(s.Env) + "\n"
	}
	for _, one := range [][2]string{{"user", s.User}, {"restart", s.Restart}, {"backoff", s.Backoff}} {
		if one[1] != "" {
			text += "  " + one[0] + " = " + tomlfile.Value(one[1]) + "\n"
		}
	}
	return text
}

func (f *File) sidecar(i int, table map[string]any) (s Sidecar, err error) {
	s.Name = fmt.Sprint(i + 1)
	text, isText := table["command"].(string)
	if isText && text != "" && !strings.ContainsRune(text, 0) {
		s.Command = []string{"/bin/sh", "-c", text}
	} else if s.Command, err = f.sidecarList(i, table, "command"); err != nil {
		return s, err
	}
	if len(s.Command) == 0 {
		return s, f.sidecarErrorf(i, "command", -1, "a sidecar has a command: a text for the shell, or a list of a program and its arguments")
	}
	if s.Env, err = f.sidecarList(i, table, "env"); err != nil {
		return s, err
	}
	for _, text := range []struct {
		key string
		to  *string
	}{{"name", &s.Name}, {"user", &s.User}, {"restart", &s.Restart}, {"backoff", &s.Backoff}} {
		v, ok := table[text.key]
		if !ok {
			continue
		}
		if *text.to, ok = v.(string); !ok || *text.to == "" || strings.ContainsRune(*text.to, 0) {
			return s, f.sidecarErrorf(i, text.key, -1, "%s is a text, in quotes", text.key)
		}
	}
	return s, nil
}

func (f *File) sidecarList(i int, table map[string]any, key string) (list []string, err error) {
	v, ok := table[key]
	if !ok {
		return nil, nil
	}
	items, ok := v.([]any)
	if !ok {
		return nil, f.sidecarErrorf(i, key, -1, "%s is a list of texts, in brackets", key)
	}
	for n, item := range items {
		text, ok := item.(string)
		if !ok || text == "" && n == 0 || strings.ContainsRune(text, 0) {
			return nil, f.sidecarErrorf(i, key, n, "each of %s is a text, in quotes", key)
		}
		list = append(list, text)
	}
	return list, nil
}

// sidecarErrorf is Errorf about a key of a sidecar's, or all of it.
func (f *File) sidecarErrorf(i int, key string, item int, format string, args ...any) error {
	table := fmt.Sprintf("sidecar[%d]", i)
	if _, known := f.places[table+"."+key]; known {
		return f.Errorf(table+"."+key, item, format, args...)
	}
	if _, known := f.places[table]; known {
		return f.Errorf(table, -1, format, args...)
	}
	return f.Errorf("sidecar", i, format, args...)
}

func (f *File) checkSidecars() error {
	names := map[string]bool{}
	for i, s := range f.Sidecars {
		if names[s.Name] {
			return f.sidecarErrorf(i, "name", -1, "there are two sidecars named %q", s.Name)
		}
		names[s.Name] = true
		if !slices.Contains([]string{"", "always", "on-failure", "never"}, s.Restart) {
			return f.sidecarErrorf(i, "restart", -1, "restart %q: want always, on-failure or never", s.Restart)
		}
		if d, err := time.ParseDuration(s.Backoff); s.Backoff != "" && (err != nil || d <= 0) {
			return f.sidecarErrorf(i, "backoff", -1, "backoff %q: want a time as 500ms or 5s", s.Backoff)
		}
		for n, kv := range s.Env {
			if key, _, found := strings.Cut(kv, "="); key == "" || !found {
				return f.sidecarErrorf(i, "env", n, "env %q: want KEY=VALUE", kv)
			}
		}
	}
	return nil
}
