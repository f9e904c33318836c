// Command sizes reports how long the files and functions of each Go package are, how much of it is comment, and how much
// test there is beside it, and how many words docs has without docs/measurements. Generated files and testdata are left out.
//
//	go run ./scripts/sizes [DIR]
//
// Lengths are in lines: of a file all of them, of a function from `func` to its closing brace. A ratio of comments is lines
// that hold only comment to lines that hold code; a ratio of tests is lines of test files to lines of the others. Words are what wc -w counts,
// and those of them that have a letter or a digit, which the bars of tables have not.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"
)

func main() {
	flag.Parse()
	root := "."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	packages, err := measure(os.DirFS(root))
	if err == nil {
		err = report(os.Stdout, packages)
	}
	if err == nil {
		var all, real int
		all, real, err = words(os.DirFS(root))
		fmt.Printf("\ndocs without measurements: %d words by wc -w, %d with a letter or a digit\n", all, real)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sizes:", err)
		os.Exit(1)
	}
}

// figures are those of one package or of all together.
type figures struct {
	files, functions []int // lines of each, without tests
	code, comment    int   // lines, without tests
	tests            int   // lines of test files
}

func (f *figures) add(other *figures) {
	f.files = append(f.files, other.files...)
	f.functions = append(f.functions, other.functions...)
	f.code += other.code
	f.comment += other.comment
	f.tests += other.tests
}

// measure reads every package below root, by its directory.
func measure(root fs.FS) (map[string]*figures, error) {
	packages := make(map[string]*figures)
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		source, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		directory := filepath.ToSlash(filepath.Dir(name))
		if packages[directory] == nil {
			packages[directory] = new(figures)
		}
		return packages[directory].file(name, source)
	})
	return packages, err
}

func (f *figures) file(name string, source []byte) error {
	positions := token.NewFileSet()
	parsed, err := parser.ParseFile(positions, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	lines := bytes.Count(source, []byte("\n"))
	switch {
	case ast.IsGenerated(parsed):
		return nil
	case strings.HasSuffix(name, "_test.go"):
		f.tests += lines
		return nil
	}
	f.files = append(f.files, lines)
	for _, declaration := range parsed.Decls {
		if function, ok := declaration.(*ast.FuncDecl); ok {
			from, to := positions.Position(function.Pos()).Line, positions.Position(function.End()).Line
			f.functions = append(f.functions, to-from+1)
		}
	}
	code, comment := countLines(source)
	f.code += code
	f.comment += comment
	return nil
}

// words counts the words of docs, except for docs/measurements: all that spaces separate, and those with a letter or a digit.
func words(root fs.FS) (all, real int, err error) {
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		names, err := fs.Glob(root, pattern)
		if err != nil {
			return 0, 0, err
		}
		for _, name := range names {
			if path.Dir(name) == "docs/measurements" {
				continue
			}
			text, err := fs.ReadFile(root, name)
			if err != nil {
				return 0, 0, err
			}
			for word := range strings.FieldsSeq(string(text)) {
				all++
				if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
					real++
				}
			}
		}
	}
	return all, real, nil
}

// countLines counts the lines that hold code, and those that hold nothing but comment.
func countLines(source []byte) (code, comment int) {
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	isCode, isComment := make(map[int]bool), make(map[int]bool)
	for {
		at, kind, text := s.Scan()
		if kind == token.EOF {
			break
		}
		if kind == token.SEMICOLON && text == "\n" {
			continue // inserted at the end of a line
		}
		first := file.Line(at)
		for line := first; line <= first+strings.Count(text, "\n"); line++ {
			if kind == token.COMMENT {
				isComment[line] = true
			} else {
				isCode[line] = true
			}
		}
	}
	for line := range isComment {
		if !isCode[line] {
			comment++
		}
	}
	return len(isCode), comment
}

func report(to io.Writer, packages map[string]*figures) error {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "package\tlines\tfiles\tmedian\t90th\tmax\tfunctions\tmedian\t90th\t99th\tmax\tcomment\ttests\t")
	names := make([]string, 0, len(packages))
	all := new(figures)
	for name, f := range packages {
		names = append(names, name)
		all.add(f)
	}
	slices.Sort(names)
	for _, name := range names {
		packages[name].row(table, name)
	}
	all.row(table, "all")
	return table.Flush()
}

func (f *figures) row(to io.Writer, name string) {
	slices.Sort(f.files)
	slices.Sort(f.functions)
	total := 0
	for _, lines := range f.files {
		total += lines
	}
	fmt.Fprintf(to, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t\n", name, total,
		len(f.files), quantile(f.files, 50), quantile(f.files, 90), quantile(f.files, 100),
		len(f.functions), quantile(f.functions, 50), quantile(f.functions, 90), quantile(f.functions, 99), quantile(f.functions, 100),
		ratio(f.comment, f.code), ratio(f.tests, total))
}

// quantile is the smallest of the sorted values that at least percent of them do not exceed, or 0 of none.
func quantile(sorted []int, percent int) int {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, (len(sorted)*percent+99)/100-1)]
}

func ratio(part, whole int) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(part)/float64(whole))
}
