package spec

import (
	"errors"
	"strings"
	"time"
)

// Access is who may reach what listens in machines of the project, and which ports their programs may connect to.
type Access struct {
	ListenAllow         []string `toml:"listen-allow,omitempty" json:"listenAllow,omitempty"` // ranges, as 8080 or 3000-3999
	ListenDeny          []string `toml:"listen-deny,omitempty" json:"listenDeny,omitempty"`
	ConnectAllow        []string `toml:"connect-allow,omitempty" json:"connectAllow,omitempty"`
	ConnectDeny         []string `toml:"connect-deny,omitempty" json:"connectDeny,omitempty"`
	LoopbackExemptPorts []int    `toml:"loopback-exempt-ports,omitempty" json:"loopbackExemptPorts,omitempty"`
}

// Preview is about links to servers in VMs that live on.
type Preview struct {
	// MaxExpiresInSeconds is the longest lifetime of a link. Default, and the most: a day.
	MaxExpiresInSeconds int `toml:"max-expires-in-seconds,omitempty" json:"maxExpiresInSeconds,omitempty"`
}

// maxExpires is the most that Preview.MaxExpiresInSeconds can be.
const maxExpires = 24 * 60 * 60

// MaxLifetime is the longest lifetime of a link; 0: the default.
func (p Preview) MaxLifetime() time.Duration {
	return time.Duration(p.MaxExpiresInSeconds) * time.Second
}

// access reads [access] and [preview].
func (f *File) access(tree map[string]any) error {
	access, err := f.table(tree, "access")
	if err != nil {
		return err
	}
	preview, err := f.table(tree, "preview")
	if err != nil {
		return err
	}
	a := &f.Access
	if err := errors.Join(
		f.list(access, "access.listen-allow", &a.ListenAllow), f.list(access, "access.listen-deny", &a.ListenDeny),
		f.list(access, "access.connect-allow", &a.ConnectAllow), f.list(access, "access.connect-deny", &a.ConnectDeny),
		f.ports(access, "access.loopback-exempt-ports", &a.LoopbackExemptPorts),
	); err != nil {
		return err
	}
	const key = "preview.max-expires-in-seconds"
	v, ok := value(preview, key)
	if !ok {
		return nil
	}
	seconds, ok := v.(int64)
	if !ok || seconds < 1 || seconds > maxExpires {
		return f.Errorf(key, -1, "%s is a number from 1 to %d", key, maxExpires)
	}
	f.Preview.MaxExpiresInSeconds = int(seconds)
	return nil
}

// table is nil when there is none of that name.
func (f *File) table(tree map[string]any, name string) (map[string]any, error) {
	t, ok := tree[name].(map[string]any)
	if !ok && tree[name] != nil {
		return nil, f.Errorf(name, -1, "%s is a table, as in [%s]", name, name)
	}
	return t, nil
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

// value finds a key in the table that it belongs to.
func value(table map[string]any, key string) (any, bool) {
	name := key[strings.LastIndexByte(key, '.')+1:]
	v, ok := table[name]
	if !ok {
		v, ok = table[strings.ReplaceAll(name, "-", "_")]
	}
	return v, ok
}
