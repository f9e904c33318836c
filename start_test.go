package agentvm_test

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// TestNoExpressionAtStart finds regular expressions that every command would compile before it begins, most of them for nothing: sync.OnceValue
// compiles one when it is first used.
func TestNoExpressionAtStart(t *testing.T) {
	eachSource(t, func(name string, files *token.FileSet, file *ast.File) {
		if strings.HasPrefix(name, "scripts/") { // programs of their own
			return
		}
		for _, declaration := range file.Decls {
			if values, ok := declaration.(*ast.GenDecl); ok && values.Tok == token.VAR {
				ast.Inspect(values, func(n ast.Node) bool {
					call, ok := n.(*ast.CallExpr)
					if ok {
						if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "MustCompile" {
							t.Errorf("%s: compiled at each start", files.Position(call.Pos()))
						}
					}
					_, function := n.(*ast.FuncLit)
					return !function
				})
			}
		}
	})
}
