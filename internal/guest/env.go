//go:build linux

package guest

import (
	"os"
	"strings"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment merges lists of KEY=VALUE; a later list wins. The first holds what a login would set.
func environment(u account, terminal bool, lists ...[]string) []string {
	env := append(make([]string, 0, 16),
		"PATH="+defaultPath, "HOME="+u.home, "USER="+u.name, "LOGNAME="+u.name, "SHELL="+u.shell, "LANG=C.UTF-8")
	if name := hostname(); name != "" {
		env = append(env, "HOSTNAME="+name)
	}
	if terminal {
		env = append(env, "TERM=xterm-256color")
	}
	for _, list := range lists {
		for _, kv := range list {
			env = set(env, kv)
		}
	}
	return env
}

// hostname returns the machine's name; empty when the kernel does not say it.
func hostname() string {
	name, _ := os.Hostname()
	return name
}

// set replaces or appends kv. Without '=' it removes the variable.
func set(env []string, kv string) []string {
	key, _, found := strings.Cut(kv, "=")
	if key == "" {
		return env
	}
	for i, old := range env {
		if strings.HasPrefix(old, key) && len(old) > len(key) && old[len(key)] == '=' {
			if !found {
				return append(env[:i], env[i+1:]...)
			}
			env[i] = kv
			return env
		}
	}
	if !found {
		return env
	}
	return append(env, kv)
}

// lookup returns a variable's value.
func lookup(env []string, key string) string {
	for _, kv := range env {
		if k, v, _ := strings.Cut(kv, "="); k == key {
			return v
		}
	}
	return ""
}
