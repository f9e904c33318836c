package agentvm_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestReadmeCodeIsAnExample keeps the README's Go code running: each block is found in an example of package vm.
func TestReadmeCodeIsAnExample(t *testing.T) {
	examples := undented(read(t, filepath.Join("vm", "example_test.go")))
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("README.md shows no Go code")
	}
	for _, block := range blocks {
		if !strings.Contains(examples, undented(block[1])) {
			t.Errorf("no example of package vm has this code:\n%s", block[1])
		}
	}
}

// documents lists the Markdown files that people read, except those of licences.
func documents(t *testing.T) []string {
	t.Helper()
	files := []string{"README.md", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(found), err)
		}
		files = append(files, found...)
	}
	return files
}

// TestLinks finds links between the documents that lead to no file, or to no heading of one.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
	for _, file := range documents(t) {
		for _, match := range link.FindAllStringSubmatch(read(t, file), -1) {
			target := file
			if match[1] != "" {
				target = filepath.Join(filepath.Dir(file), match[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: a link leads nowhere: %v", file, err)
			} else if match[2] != "" && filepath.Ext(target) == ".md" && !slices.Contains(anchors(read(t, target)), match[2]) {
				t.Errorf("%s: %s has no heading #%s", file, target, match[2])
			}
		}
	}
}

// anchors lists the names that GitHub gives to the headings of a Markdown text: lower case, without punctuation, with hyphens for spaces, and
// with a number where a name comes again.
func anchors(markdown string) (names []string) {
	markdown = regexp.MustCompile("(?ms)^```.*?^```").ReplaceAllString(markdown, "")
	seen := map[string]int{}
	for _, heading := range regexp.MustCompile(`(?m)^#{1,6} +(.*?) *#*$`).FindAllStringSubmatch(markdown, -1) {
		text := regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(heading[1], "$1")
		name := strings.ReplaceAll(regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(text), ""), " ", "-")
		if n := seen[name]; n > 0 {
			names = append(names, fmt.Sprintf("%s-%d", name, n))
		} else {
			names = append(names, name)
		}
		seen[name]++
	}
	return names
}

func TestAnchors(t *testing.T) {
	const text = "# What's `agentvm.toml`?\n\n```\n# a comment\n```\n## Limits\n### Limits\n## [Go](x.md): the library\n    # code\n"
	want := []string{"whats-agentvmtoml", "limits", "limits-1", "go-the-library"}
	if got := anchors(text); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestWordsOfDocs keeps docs short: 31,500 words without docs/measurements, as scripts/sizes counts those with a letter or a digit.
func TestWordsOfDocs(t *testing.T) {
	out, err := exec.Command("go", "run", "./scripts/sizes").Output()
	if err != nil {
		t.Fatalf("go run ./scripts/sizes: %v", err)
	}
	const limit = 31_500
	counted := regexp.MustCompile(`(\d+) with a letter or a digit`).FindSubmatch(out)
	if counted == nil {
		t.Fatal("scripts/sizes does not say how many words docs has")
	}
	if words, err := strconv.Atoi(string(counted[1])); err != nil || words > limit {
		t.Errorf("docs without measurements has %d words (%v), more than %d: say things once", words, err, limit)
	}
}

// TestFoldersAreDescribed finds folders with code of which docs/internals/README.md has no line.
func TestFoldersAreDescribed(t *testing.T) {
	text := read(t, "docs/internals/README.md")
	for _, parent := range []string{".", "internal", "cmd"} {
		folders, err := os.ReadDir(parent)
		if err != nil {
			t.Fatal(err)
		}
		for _, folder := range folders {
			path := filepath.ToSlash(filepath.Join(parent, folder.Name()))
			name := strings.TrimPrefix(path, "internal/")
			hidden := strings.HasPrefix(name, ".") || slices.Contains([]string{"cmd", "docs", "internal", "scratch"}, name)
			if folder.IsDir() && !hidden && !strings.Contains(text, "`"+name+"`") {
				t.Errorf("docs/internals/README.md has no line about %s", path)
			}
		}
	}
}

// TestLinksOfPaths finds paths in backquotes that begin with a folder of this repository and name no file in it.
func TestLinksOfPaths(t *testing.T) {
	folders, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, folder := range folders {
		if folder.IsDir() && !strings.HasPrefix(folder.Name(), ".") {
			names = append(names, folder.Name())
		}
	}
	quoted := regexp.MustCompile("`((?:" + strings.Join(names, "|") + `)/[\w./*-]*)` + "`")
	for _, file := range documents(t) {
		for _, match := range quoted.FindAllStringSubmatch(read(t, file), -1) {
			if found, err := filepath.Glob(match[1]); err != nil || len(found) == 0 {
				t.Errorf("%s names %s, which does not exist", file, match[1])
			}
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// undented removes the tabs at the beginning of each line.
func undented(text string) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(text, "")
}

// TestThreatModelNamesTests finds promises whose test has gone.
func TestThreatModelNamesTests(t *testing.T) {
	defined := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != "." {
			return filepath.SkipDir
		}
		if err == nil && strings.HasSuffix(path, "_test.go") {
			for _, match := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)`).FindAllStringSubmatch(read(t, path), -1) {
				defined[match[1]] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"docs/security/threat-model.md", "docs/internals/machine.md", "docs/measurements/findings.md"} {
		for _, match := range regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(read(t, file), -1) {
			if !defined[match[1]] {
				t.Errorf("%s names %s, which does not exist", file, match[1])
			}
		}
	}
}
