package settings

import (
	"path/filepath"
	"slices"

	"agentvm/internal/share/mount"
)

// unmasked is for the masks of all mounts.
func unmasked(c change) (list []string) {
	before, now := c.lists()
	for _, mask := range before {
		if !slices.ContainsFunc(now, func(other string) bool { return isIn(other, mask) }) {
			list = append(list, unescapePath.Replace(mask)+" is no longer hidden")
		}
	}
	return list
}

// widerMounts finds mounts that show or let change what none of before did.
func widerMounts(c change) (list []string) {
	before, now := c.lists()
	for _, text := range now {
		m, err := mount.Parse(text)
		within := func(text string) bool {
			most, err := mount.Parse(text)
			return err == nil && mountWithin(m, most, c)
		}
		if err != nil || !slices.ContainsFunc(before, within) {
			list = append(list, unescapePath.Replace(text)+" shows more, or lets more be changed")
		}
	}
	return list
}

// mountWithin says whether a mount shows nothing that most did not, and lets nothing be changed that most kept.
func mountWithin(m, most mount.Spec, c change) bool {
	if !isIn(most.HostPath, m.HostPath) || access(m) > access(most) {
		return false
	}
	for _, mask := range c.before["masks"] { // unmasked is about those that are gone
		if isIn(mask, m.HostPath) && !isIn(mask, most.HostPath) {
			return false
		}
	}
	free := below(most, most.Unprotected)
	for _, path := range below(m, m.Unprotected) {
		if !slices.ContainsFunc(free, func(around string) bool { return isIn(around, path) }) {
			return false
		}
	}
	return keeps(m, below(most, most.Masks), slices.Concat(below(m, m.Masks), c.now["masks"])) &&
		keeps(m, below(most, most.Protected), below(m, m.Protected))
}

// keeps says whether each of some paths, as far as the mount has it, is at or below one of others.
func keeps(m mount.Spec, paths, others []string) bool {
	for _, path := range paths {
		if isIn(path, m.HostPath) {
			return false
		}
		if isIn(m.HostPath, path) && !slices.ContainsFunc(others, func(around string) bool { return isIn(around, path) }) {
			return false
		}
	}
	return true
}

// access orders mounts by what the guest can do to the host's files.
func access(m mount.Spec) int {
	switch {
	case m.ReadOnly:
		return 0
	case m.CopyOnWrite: // the user may apply what was changed
		return 1
	}
	return 2
}

// below returns names of a mount as paths of the host.
func below(m mount.Spec, names []string) (paths []string) {
	for _, name := range names {
		paths = append(paths, filepath.Join(m.HostPath, escapePath.Replace(filepath.FromSlash(name))))
	}
	return paths
}

// isIn says whether a clean path is a directory or below it.
func isIn(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}
