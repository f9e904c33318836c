package main

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// carried are the files about the compiled programs of others in agentvm: their licences, and what their sources are
// built with, as the GPL wants. NOTICE names them by these paths.
var carried = []string{
	"LICENSE", "NOTICE",
	"internal/machine/kernel/COPYING", "internal/machine/kernel/*.json", "internal/machine/kernel/*.config", "internal/machine/kernel/*.patch", "internal/machine/kernel/*.sh",
	"images/busybox/COPYING", "images/busybox/COPYING.LGPL", "images/busybox/provenance.json", "images/busybox/build.sh",
	"internal/api/ui/assets/xterm.LICENSE",
}

// licences collects the texts of what lists of modules, Go and the embedded programs are licensed under. Of a module they are the
// files in the directories of the linked packages and above those.
func (r *release) licences(ctx context.Context, lists ...[]module) (map[string]entry, error) {
	texts := map[string]entry{}
	for _, pattern := range carried {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("%s: there is no such file", pattern)
		}
		for _, f := range files {
			content, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			texts[filepath.ToSlash(f)] = entry{content, 0o644}
		}
	}
	root, err := r.goCommand(ctx, "", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	goroot := strings.TrimSpace(string(root))
	for _, m := range append(slices.Concat(lists...), module{path: "std", dir: goroot}) {
		found := false
		for _, dir := range append(m.packages, m.dir) {
			for ; ; dir = filepath.Dir(dir) {
				more, err := addLicences(texts, m, dir)
				if err != nil {
					return nil, err
				}
				found = found || more
				if dir == m.dir {
					break
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("module %s %s has no file with a licence", m.path, m.version)
		}
	}
	return texts, nil
}

// addLicences adds the texts that are in one directory of a module, and says whether there are any.
func addLicences(texts map[string]entry, m module, dir string) (found bool, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if e.IsDir() || !isLicence(e.Name()) {
			continue
		}
		file := filepath.Join(dir, e.Name())
		below, err := filepath.Rel(m.dir, file)
		if err != nil {
			return false, err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return false, err
		}
		texts[path.Join("licences", m.path, filepath.ToSlash(below))] = entry{content, 0o644}
		found = true
	}
	return found, nil
}

func isLicence(file string) bool {
	upper := strings.ToUpper(file)
	for _, start := range []string{"LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "UNLICENSE", "NOTICE", "PATENTS"} {
		if strings.HasPrefix(upper, start) {
			return !strings.HasSuffix(upper, ".GO") && !strings.HasSuffix(upper, ".SH")
		}
	}
	return false
}
