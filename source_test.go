package agentvm_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// eachSource parses the Go files of this module, except tests and what tests read. name has slashes.
func eachSource(t *testing.T, do func(name string, files *token.FileSet, file *ast.File)) {
	t.Helper()
	files, seen := token.NewFileSet(), 0
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || entry.Name() == "scratch" || strings.HasPrefix(entry.Name(), ".") && name != "."):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		seen++
		do(filepath.ToSlash(name), files, file)
		return nil
	})
	if err != nil || seen < 100 {
		t.Fatalf("%d files read, %v", seen, err)
	}
}
