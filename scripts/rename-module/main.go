// Command rename-module gives the Go module of this repository another path, for those who host a copy of it under their own:
//
//	go run ./scripts/rename-module github.com/you/agentvm
//
// It changes go.mod and every text file that names a package of the module by its import path: Go sources, the schemas of
// Cap'n Proto, scripts and documents. The program keeps its name. The supervisor of the guest is a committed artifact that
// contains the paths of its packages: `make guest` builds it again.
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) != 2 || strings.HasPrefix(os.Args[1], "-") {
		fmt.Fprintln(os.Stderr, "usage: go run ./scripts/rename-module PATH, in the root of the repository")
		os.Exit(2)
	}
	changed, err := rename(".", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "rename-module:", err)
		os.Exit(1)
	}
	fmt.Printf("%d files now name %s. Run `make guest` to build the supervisor again, then `go test -short ./...`.\n", changed, os.Args[1])
}

var moduleLine = regexp.MustCompile(`(?m)^module (\S+)$`)

// rename gives the module in the folder root the path name, and returns how many files it has changed.
func rename(root, name string) (changed int, err error) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return 0, err
	}
	line := moduleLine.FindSubmatch(mod)
	if line == nil {
		return 0, fmt.Errorf("%s has no module line", filepath.Join(root, "go.mod"))
	}
	old := string(line[1])
	imports, err := importPattern(root, old)
	if err != nil {
		return 0, err
	}
	// The go command knows which paths are none, and refuses them before anything has changed.
	edit := exec.Command("go", "mod", "edit", "-module="+name)
	edit.Dir = root
	if out, err := edit.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("go mod edit: %w: %s", err, bytes.TrimSpace(out))
	}
	changed = 1
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && entry.Name() == ".git" {
			return filepath.SkipDir
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		did, err := renameIn(path, old, imports, name)
		if did {
			changed++
		}
		return err
	})
	return changed, err
}

// importPattern matches the module's path where a folder of the module follows it and it is no part of a longer path, as in
// /run/agentvm/denials.
func importPattern(root, module string) (*regexp.Regexp, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var folders []string
	for _, entry := range entries {
		if entry.IsDir() && !strings.HasPrefix(entry.Name(), ".") {
			folders = append(folders, regexp.QuoteMeta(entry.Name()))
		}
	}
	return regexp.Compile(`(^|[^\w./-])` + regexp.QuoteMeta(module) + `/(` + strings.Join(folders, "|") + `)\b`)
}

func renameIn(path, module string, imports *regexp.Regexp, name string) (bool, error) {
	text, err := os.ReadFile(path)
	if err != nil || bytes.IndexByte(text, 0) >= 0 || !bytes.Contains(text, []byte(module+"/")) { // a text has no zero byte
		return false, err
	}
	renamed := imports.ReplaceAll(text, []byte("${1}"+name+"/${2}"))
	if bytes.Equal(text, renamed) {
		return false, nil
	}
	if filepath.Ext(path) == ".go" {
		if renamed, err = format.Source(renamed); err != nil { // imports are sorted by path
			return false, fmt.Errorf("%s: %w", path, err)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	return true, os.WriteFile(path, renamed, info.Mode().Perm())
}
