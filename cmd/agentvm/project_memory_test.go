package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentvm/egress"
	"agentvm/internal/settings"
)

// write replaces a project file, as a guest that has the directory mounted could.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// use has a command read the project file, and says whether it is refused because of something that has a word in it; "" is not at all.
func use(t *testing.T, want string, args ...string) {
	t.Helper()
	switch _, err := parseVMFlags(t, args...); {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--trust-project")):
		t.Errorf("got %v, want an error with %q and --trust-project", err, want)
	}
}

const strict = "mounts = [\".:/src\"]\nmasks = [\".env\"]\n[network]\nmode = \"none\"\n"

func TestLooserProjectIsRefused(t *testing.T) {
	dir := inProject(t, strict)
	use(t, "")
	write(t, settings.Name, "mounts = [\".:/src\"]\n[network]\nmode = \"none\"\n")
	use(t, ".env is no longer hidden")
	use(t, "", "--no-project")
	use(t, ".env is no longer hidden")
	t.Chdir("sub")
	use(t, ".env is no longer hidden")
	t.Chdir(dir)
	use(t, "", "--trust-project")
	use(t, "") // it was agreed to
	write(t, settings.Name, strict)
	use(t, "")
	write(t, settings.Name, "mounts = [\".:/src\"]\nmasks = [\".env\"]\n")
	use(t, "network.mode")
	if err := os.Remove(settings.Name); err != nil {
		t.Fatal(err)
	}
	use(t, "no agentvm.toml holds in "+dir)
	use(t, "", "--trust-project")
	use(t, "")
	write(t, settings.Name, "mounts = [\".:/src\"]\n")
	use(t, "mounts")
}

// TestProjectElsewhere tries what has another file hold than before: one further down, and the end of the search.
func TestProjectElsewhere(t *testing.T) {
	dir := inProject(t, strict)
	use(t, "")
	t.Chdir("sub")
	use(t, "")
	write(t, settings.Name, "masks = [\"x\"]\n")
	use(t, "network.mode")
	if err := os.Remove(settings.Name); err != nil {
		t.Fatal(err)
	}
	use(t, "")
	if err := os.Mkdir(".git", 0o755); err != nil {
		t.Fatal(err)
	}
	use(t, "no agentvm.toml holds in "+filepath.Join(dir, "sub"))
	use(t, "", "--trust-project")
	use(t, "")
	if err := os.Remove(".git"); err != nil {
		t.Fatal(err)
	}
	use(t, "mounts") // the project's again, after none
	use(t, "", "--trust-project")

	// The file of sub is the stricter one, and goes.
	write(t, filepath.Join(dir, settings.Name), "")
	t.Chdir(dir)
	use(t, "", "--trust-project")
	t.Chdir("sub")
	write(t, settings.Name, strict)
	use(t, "", "--trust-project")
	if err := os.Remove(settings.Name); err != nil {
		t.Fatal(err)
	}
	use(t, "network.mode")
	t.Chdir(dir)
	use(t, "")
}

// TestNoProjectIsNotOfOthers removes a file, so that the search for one ends at the root, and agrees to that; another project is used for the first
// time all the same.
func TestNoProjectIsNotOfOthers(t *testing.T) {
	dir := inProject(t, strict)
	use(t, "")
	if err := errors.Join(os.Remove(settings.Name), os.Remove(".git")); err != nil {
		t.Fatal(err)
	}
	use(t, "no agentvm.toml holds in "+dir)
	use(t, "", "--trust-project")
	use(t, "")
	t.Chdir(t.TempDir())
	write(t, settings.Name, strict)
	use(t, "")
}

func TestProjectByALink(t *testing.T) {
	dir := inProject(t, strict)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Skip("no symbolic links here: ", err)
	}
	use(t, "")
	write(t, settings.Name, "")
	t.Chdir(link)
	use(t, "network.mode")
	moved := dir + "-moved"
	if err := os.Rename(dir, moved); err != nil {
		t.Skip("the working directory cannot be renamed here: ", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(moved) })
	t.Setenv("AGENTVM_STORE", filepath.Join(moved, "store"))
	t.Chdir(moved)
	use(t, "") // a directory that is used for the first time
}

// TestConfigAgreesToNothing looks at a file without using it.
func TestConfigAgreesToNothing(t *testing.T) {
	inProject(t, strict)
	use(t, "")
	write(t, settings.Name, "")
	config := func(args ...string) error {
		c := &cli{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
		command := c.configCommand()
		command.SetArgs(append(args, "--check"))
		command.SilenceErrors, command.SilenceUsage = true, true
		return command.Execute()
	}
	if err := config(); err == nil || !strings.Contains(err.Error(), "network.mode") {
		t.Errorf("config says %v", err)
	}
	if err := config("--trust-project"); err != nil {
		t.Error(err)
	}
	use(t, "network.mode")
}

// TestOwnChangesAreTrusted adds rules as net learn --write does: only those are remembered.
func TestOwnChangesAreTrusted(t *testing.T) {
	inProject(t, strict)
	use(t, "")
	rule, err := egress.ParseRule("pypi.org:443")
	if err != nil {
		t.Fatal(err)
	}
	add := func() {
		t.Helper()
		place, err := openProjectPlace()
		if err != nil {
			t.Fatal(err)
		}
		defer place.Close()
		if _, err := place.writeRule(rule, true); err != nil {
			t.Fatal(err)
		}
	}
	add()
	use(t, "")
	write(t, settings.Name, strings.Replace(strict, ".env", "other", 1))
	add()
	use(t, ".env is no longer hidden")
}

func TestDamagedMemoryIsSaid(t *testing.T) {
	dir := inProject(t, strict)
	use(t, "")
	memory, err := openProjectMemory()
	if err != nil {
		t.Fatal(err)
	}
	path := projectUsePath(memory.folder, dir)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := parseVMFlags(t, "--trust-project"); err == nil || !strings.Contains(err.Error(), path+" is damaged") {
		t.Errorf("got %v", err)
	}
}

// TestProjectOfOtherStores: what a file gave to VMs of one store is known when another is used, and what an earlier version kept in a store.
func TestProjectOfOtherStores(t *testing.T) {
	inProject(t, strict)
	use(t, "")
	write(t, settings.Name, "")
	t.Setenv("AGENTVM_STORE", filepath.Join(t.TempDir(), "other"))
	use(t, "network.mode")
	memory, err := openProjectMemory()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(memory.earlier), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(memory.folder, memory.earlier); err != nil {
		t.Fatal(err)
	}
	use(t, "network.mode")
	use(t, "", "--trust-project")
	use(t, "")
}
