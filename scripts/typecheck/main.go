// Command typecheck checks the types of this module's packages and tests for other systems than this one, without compiling them:
// of what they import only the declarations are read. `go vet` says the same and more, and takes ten times as long, as it compiles first.
//
//	go run ./scripts/typecheck GOOS/GOARCH...
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

func main() {
	flag.Usage = func() { fmt.Fprintln(flag.CommandLine.Output(), "usage: typecheck GOOS/GOARCH...") }
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	var failed atomic.Bool
	var running sync.WaitGroup
	for _, platform := range flag.Args() {
		running.Go(func() { // each takes one processor
			if n, err := check(".", platform); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", platform, err)
				failed.Store(true)
			} else {
				fmt.Printf("%s: the types of %d packages hold\n", platform, n)
			}
		})
	}
	running.Wait()
	if failed.Load() {
		os.Exit(1)
	}
}

// listed is what `go list -deps -test` says of a package, or of a variant of one that a test makes.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string // from paths in the source to those of the list
	Module          *struct {
		Main      bool
		GoVersion string
	}
	Error *struct{ Err string }
}

// check counts the packages of the module in dir, variants for tests too, and checks them and what they import.
func check(dir, platform string) (int, error) {
	system, architecture, ok := strings.Cut(platform, "/")
	if !ok {
		return 0, errors.New("not GOOS/GOARCH")
	}
	sizes := types.SizesFor("gc", architecture)
	if sizes == nil {
		return 0, errors.New("no such architecture")
	}
	list := exec.Command("go", "list", "-e", "-deps", "-test", "-json=ImportPath,Dir,GoFiles,ImportMap,Module,Error", "./...")
	list.Dir = dir
	list.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+architecture, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return 0, fmt.Errorf("go list: %w", err)
	}
	c := checker{fset: token.NewFileSet(), sizes: sizes, done: map[string]*types.Package{"unsafe": types.Unsafe}}
	own := 0
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; { // what is imported comes first
		var p listed
		if err := decoder.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return 0, fmt.Errorf("go list: %w", err)
		}
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") { // the latter is a main function that go test writes
			continue
		}
		if p.Error != nil {
			c.errs = append(c.errs, fmt.Errorf("%s: %s", p.ImportPath, p.Error.Err))
			continue
		}
		if p.Module != nil && p.Module.Main {
			own++
		}
		c.check(p)
	}
	if own == 0 {
		c.errs = append(c.errs, errors.New("no packages"))
	}
	return own, errors.Join(c.errs...)
}

type checker struct {
	fset  *token.FileSet
	sizes types.Sizes
	done  map[string]*types.Package // by the list's path
	errs  []error
}

// check adds errors of the module's own packages only: what they import is other people's, and may rely on a compiler's leniency.
func (c *checker) check(p listed) {
	own := p.Module != nil && p.Module.Main
	report := func(err error) {
		if own && !slices.ContainsFunc(c.errs, func(e error) bool { return e.Error() == err.Error() }) { // a test's variant has the same files
			c.errs = append(c.errs, err)
		}
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(c.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			report(err)
		}
		if file != nil {
			files = append(files, file)
		}
	}
	config := types.Config{
		Importer: importerFunc(func(path string) (*types.Package, error) {
			if mapped := p.ImportMap[path]; mapped != "" {
				path = mapped
			}
			if imported := c.done[path]; imported != nil {
				return imported, nil
			}
			return nil, fmt.Errorf("%s is not listed", path)
		}),
		IgnoreFuncBodies: !own, Sizes: c.sizes, Error: report,
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		config.GoVersion = "go" + p.Module.GoVersion
	}
	path, _, _ := strings.Cut(p.ImportPath, " ") // "path [path.test]"
	c.done[p.ImportPath], _ = config.Check(path, c.fset, files, nil)
}

type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }
