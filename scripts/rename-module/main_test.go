package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const newName = "git.example.com/team/sandbox"

// TestRenamedTreeBuilds gives a copy of this repository another module path, twice, and checks the types of what is then there, without a network.
func TestRenamedTreeBuilds(t *testing.T) {
	if os.Getenv("CI") != "true" {
		t.Skip("it reads every package anew: set CI=true")
	}
	root := copyOfRepository(t)
	for _, name := range []string{"example.com/first", newName} {
		changed, err := rename(root, name)
		if err != nil {
			t.Fatal(err)
		}
		if changed < 100 {
			t.Errorf("renaming to %s changed %d files", name, changed)
		}
	}
	if out := run(t, root, "go", "list", "-deps", "-test", "./..."); strings.Contains(out, "\nagentvm/") || strings.Contains(out, "\nexample.com/") {
		t.Error("a package still imports one by an old path")
	}
	// A compiler would say the same of another path, and takes ten times as long. Tests have types, too.
	run(t, root, "go", "run", "./scripts/typecheck", runtime.GOOS+"/"+runtime.GOARCH)
	run(t, root, "go", "test", "-trimpath", "-run", "^(TestImports|TestEveryPackageHasRules|TestLinks|TestReadmeCodeIsAnExample)$", ".")
}

// TestPathThatIsNone is refused before anything changes.
func TestPathThatIsNone(t *testing.T) {
	root := t.TempDir()
	const mod = "module agentvm\n\ngo 1.26\n"
	source := "package vm\n\nimport _ \"agentvm/vm\"\n"
	writeFile(t, filepath.Join(root, "go.mod"), mod)
	writeFile(t, filepath.Join(root, "vm", "vm.go"), source)
	if _, err := rename(root, "a b"); err == nil {
		t.Error("a path with a space was taken")
	}
	for name, want := range map[string]string{"go.mod": mod, "vm/vm.go": source} {
		if got, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name))); err != nil || string(got) != want {
			t.Errorf("%s is now %q, %v", name, got, err)
		}
	}
}

// TestWhatIsRenamed has import paths change, and nothing that looks like one.
func TestWhatIsRenamed(t *testing.T) {
	root := t.TempDir()
	writeFile(t, filepath.Join(root, "go.mod"), "module agentvm\n")
	writeFile(t, filepath.Join(root, "vm", "vm.go"), "package vm\n\nimport (\n\t_ \"agentvm/vm/x\"\n\t_ \"example.com/y\"\n)\n")
	writeFile(t, filepath.Join(root, "vm", "a.txt"), ""+
		"go doc agentvm/vm, \"agentvm/vm/x\" `agentvm/vm`\n"+
		"/run/agentvm/vm ~/.config/agentvm/vm my-agentvm/vm agentvm/vms agentvm/other agentvm vm\n")
	if _, err := rename(root, newName); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "vm", "a.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want := "go doc " + newName + "/vm, \"" + newName + "/vm/x\" `" + newName + "/vm`\n" +
		"/run/agentvm/vm ~/.config/agentvm/vm my-agentvm/vm agentvm/vms agentvm/other agentvm vm\n"
	if string(got) != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	source, err := os.ReadFile(filepath.Join(root, "vm", "vm.go"))
	if want := "package vm\n\nimport (\n\t_ \"example.com/y\"\n\t_ \"" + newName + "/vm/x\"\n)\n"; err != nil || string(source) != want {
		t.Errorf("imports are not sorted: %q, %v", source, err)
	}
}

// copyOfRepository copies the files that git knows of, as they are in the working tree.
func copyOfRepository(t *testing.T) string {
	t.Helper()
	from, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	for name := range strings.SplitSeq(strings.TrimRight(run(t, from, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(from, filepath.FromSlash(name)))
		if os.IsNotExist(err) {
			continue // removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(to, filepath.FromSlash(name)), string(content))
	}
	return to
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	command := exec.Command(name, args...)
	command.Dir = dir
	command.Env = append(os.Environ(), "GOPROXY=off", "GOWORK=off")
	var out, errors bytes.Buffer
	command.Stdout, command.Stderr = &out, &errors
	if err := command.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", command, err, out.Bytes(), errors.Bytes())
	}
	return out.String()
}
