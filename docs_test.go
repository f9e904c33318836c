package agentvm_test

import (
	"os"
	"path/filepath"
	"regexp"
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

// TestLinks finds links between the documents that lead nowhere.
func TestLinks(t *testing.T) {
	files, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	deeper, err := filepath.Glob("docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, deeper...)
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, file := range append(files, "README.md", "AGENTS.md", "CONTRIBUTING.md") {
		for _, match := range link.FindAllStringSubmatch(read(t, file), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), match[1])); err != nil {
				t.Errorf("%s: a link leads nowhere: %v", file, err)
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
	err := filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
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
	for _, file := range []string{"docs/security/threat-model.md", "docs/internals/machine.md", "docs/security/findings.md"} {
		for _, match := range regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(read(t, file), -1) {
			if !defined[match[1]] {
				t.Errorf("%s names %s, which does not exist", file, match[1])
			}
		}
	}
}
