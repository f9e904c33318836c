package vm_test

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Programs of other modules cannot import internal/. What they need of it has a name in this package, with a comment of its own: an alias.
// No exported signature, field or method that they can reach has another internal type, except for numbers and strings.
func TestInternalTypesInTheAPI(t *testing.T) {
	list, err := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", ".").Output()
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("go list: %v", err)
		}
		t.Skipf("go list: %v", err)
	}
	exports := make(map[string]string)
	for line := range strings.Lines(string(list)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	p, err := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }).Import("agentvm/vm")
	if err != nil {
		t.Fatal(err)
	}
	walk := &apiWalk{t: t, named: make(map[*types.TypeName]bool), seen: make(map[types.Type]bool)}
	for _, name := range documentedTypes(t) {
		if o, ok := p.Scope().Lookup(name).(*types.TypeName); ok && o.Exported() {
			if n, ok := types.Unalias(o.Type()).(*types.Named); ok {
				walk.named[n.Obj()] = true
			}
		}
	}
	for _, name := range p.Scope().Names() {
		if o := p.Scope().Lookup(name); o.Exported() {
			walk.visit(o.Type(), name)
		}
	}
}

// documentedTypes returns the types that this package declares with a comment of their own.
func documentedTypes(t *testing.T) (names []string) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, s := range g.Specs {
				s := s.(*ast.TypeSpec)
				if doc := s.Doc.Text() + g.Doc.Text(); strings.HasPrefix(doc, s.Name.Name+" ") {
					names = append(names, s.Name.Name)
				}
			}
		}
	}
	return names
}

type apiWalk struct {
	t     *testing.T
	named map[*types.TypeName]bool // types that this package declares, or has an alias for
	seen  map[types.Type]bool
}

// visit reports internal types without a name in this package that can be reached from typ, which is at the place at.
func (w *apiWalk) visit(typ types.Type, at string) {
	typ = types.Unalias(typ)
	if w.seen[typ] {
		return
	}
	w.seen[typ] = true
	switch typ := typ.(type) {
	case *types.Named:
		o := typ.Obj()
		if o.Pkg() == nil || !strings.HasPrefix(o.Pkg().Path(), "agentvm/") || !slices.Contains([]string{"internal", "vm"}, strings.Split(o.Pkg().Path(), "/")[1]) {
			return // of the standard library, or of a package that has its own API
		}
		if _, basic := typ.Underlying().(*types.Basic); basic {
			return // constants are converted to it
		}
		if !w.named[o] {
			w.t.Errorf("%s: %s.%s has no documented name in package vm", at, o.Pkg().Path(), o.Name())
			return
		}
		for i := range typ.NumMethods() {
			if m := typ.Method(i); m.Exported() {
				w.visit(m.Type(), fmt.Sprintf("%s.%s", o.Name(), m.Name()))
			}
		}
		w.visit(typ.Underlying(), o.Name())
	case *types.Struct:
		for f := range typ.Fields() {
			if f.Exported() {
				w.visit(f.Type(), at+"."+f.Name())
			}
		}
	case *types.Interface:
		for m := range typ.Methods() {
			w.visit(m.Type(), at+"."+m.Name())
		}
	case *types.Signature:
		for _, list := range []*types.Tuple{typ.Params(), typ.Results()} {
			for v := range list.Variables() {
				w.visit(v.Type(), at)
			}
		}
	case *types.Map:
		w.visit(typ.Key(), at)
		w.visit(typ.Elem(), at)
	case interface{ Elem() types.Type }:
		w.visit(typ.Elem(), at)
	}
}
