package mount

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

// protectedShare shares a directory with a repository and editors' files.
func protectedShare(t *testing.T, change func(*Config)) (dir string, root *fusetest.File, log *bytes.Buffer) {
	t.Helper()
	dir, log = t.TempDir(), &bytes.Buffer{}
	for _, name := range []string{"repo/.git/config", "repo/.git/hooks/pre-commit", "repo/.git/modules/sub/config", "repo/.git/HEAD", "repo/src/main.go", "repo/sub/.git", ".vscode/tasks.json", ".envrc", ".mcp.json", ".claude/hooks/stop"} {
		writeFile(t, filepath.Join(dir, name), "kept")
	}
	writeFile(t, filepath.Join(dir, "evil"), "evil")
	config := Config{Dir: dir, Protected: DefaultProtected, Logger: slog.New(slog.NewTextHandler(log, nil))}
	if change != nil {
		change(&config)
	}
	return dir, attach(t, config), log
}

// tryAll does to a name what would change it, and returns those that were done.
func tryAll(t *testing.T, root *fusetest.File, name string) (done []string) {
	t.Helper()
	names := strings.Split(name, "/")
	parent, base := walk(t, root, names[:len(names)-1]...), names[len(names)-1]
	try := func(what string, err error) {
		var got errno.Errno
		if err == nil {
			done = append(done, what)
		} else if errors.As(err, &got); got != errno.EROFS {
			t.Errorf("%s %s: %v, want EROFS", what, name, err)
		}
	}
	open := func(flags fusetest.OpenFlags) error {
		err := walk(t, root, names...).Open(flags)
		return err
	}
	try("write", open(fusetest.WriteOnly))
	try("truncate", walk(t, root, names...).SetAttr(fusetest.SetAttrMask{Size: true}, fusetest.SetAttr{}))
	try("chmod", walk(t, root, names...).SetAttr(fusetest.SetAttrMask{Permissions: true}, fusetest.SetAttr{Permissions: 0o755}))
	try("link", walk(t, root).Link(walk(t, root, names...), "linked"))
	try("replace", root.RenameAt("evil", parent, base))
	try("move", parent.RenameAt(base, root, "moved"))
	try("remove", parent.UnlinkAt(base, 0))
	return done
}

func TestProtected(t *testing.T) {
	dir, root, log := protectedShare(t, nil)
	for _, name := range []string{"repo/.git/config", "repo/.git/hooks/pre-commit", "repo/.git/modules/sub/config", "repo/sub/.git", ".vscode/tasks.json", ".envrc", ".mcp.json", ".claude/hooks/stop"} {
		if done := tryAll(t, root, name); len(done) > 0 {
			t.Errorf("%s: %q was done", name, done)
		}
		if got := readFile(t, filepath.Join(dir, name)); got != "kept" {
			t.Errorf("%s is %q", name, got)
		}
	}
	open(t, root, fusetest.ReadOnly, "repo", ".git", "config")
	if n := strings.Count(log.String(), "level=WARN"); n != 8 || !strings.Contains(log.String(), "--unprotected repo/.git/config") {
		t.Errorf("%d warnings:\n%s", n, log)
	}
	// What is not there is not made, and directories that lead there keep their names.
	create := func(name string, in ...string) error {
		err := walk(t, root, in...).Create(name, fusetest.WriteOnly, 0o644)
		return err
	}
	wantErrno(t, create("post-commit", "repo", ".git", "hooks"), errno.EROFS)
	wantErrno(t, create("commondir", "repo", ".git"), errno.EROFS)
	wantErrno(t, create("CONFIG.worktree", "repo", ".git"), errno.EROFS)
	wantErrno(t, create(".bashrc"), errno.EROFS)
	wantErrno(t, create("settings.json", ".claude"), errno.EROFS)
	wantErrno(t, create("settings.json", ".vscode"), errno.EROFS)
	err := root.Symlink("evil", ".ssh")
	wantErrno(t, err, errno.EROFS)
	wantErrno(t, root.RenameAt(".vscode", root, "v"), errno.EROFS)
	wantErrno(t, walk(t, root, "repo").RenameAt(".git", root, "g"), errno.EROFS)
	wantErrno(t, walk(t, root, "repo", ".git").RenameAt("modules", root, "m"), errno.EROFS)
	wantErrno(t, walk(t, root, "repo", ".git").RenameAt("hooks", root, "h"), errno.EROFS)
	wantErrno(t, root.RenameAt("repo", root, "r"), errno.EROFS)
	// What git itself does in a repository.
	f := walk(t, root, "repo", ".git")
	if err := f.Create("HEAD.lock", fusetest.WriteOnly, 0o644); err != nil {
		t.Error(err)
	}
	at := walk(t, root, "repo", ".git")
	if err := at.RenameAt("HEAD.lock", at, "HEAD"); err != nil {
		t.Error(err)
	}
}

func TestProtectedGit(t *testing.T) {
	_, root, _ := protectedShare(t, nil)
	mkdir := func(name string, in ...string) error {
		err := walk(t, root, in...).Mkdir(name, 0o755)
		return err
	}
	for _, in := range [][]string{{"repo", "src"}} {
		wantErrno(t, mkdir(".git", in...), errno.EROFS)
		wantErrno(t, mkdir(".GIT", in...), errno.EROFS)
	}
	// Elsewhere the guest makes one of its own, and does there what it likes.
	for _, err := range []error{mkdir("new"), mkdir(".git", "new"), mkdir("hooks", "new", ".git")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := walk(t, root, "new", ".git").Create("config", fusetest.ReadWrite, 0o644); err != nil {
		t.Error(err)
	}
	wantErrno(t, root.RenameAt("new", walk(t, root, "repo"), "new"), errno.EROFS) // which would be within another one
	if err := root.RenameAt("new", root, "newer"); err != nil {
		t.Error(err)
	}
	// A mount within a repository of the host.
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, ".git/config"), "")
	if err := os.Mkdir(filepath.Join(dir, "src"), 0o755); err != nil {
		t.Fatal(err)
	}
	err := attach(t, Config{Dir: filepath.Join(dir, "src"), Protected: DefaultProtected}).Mkdir(".git", 0o755)
	wantErrno(t, err, errno.EROFS)
	// What Config.Unprotected names is open, and no more.
	_, root, _ = protectedShare(t, func(c *Config) { c.Unprotected = []string{"repo/.git/hooks", ".envrc"} })
	open(t, root, fusetest.WriteOnly, "repo", ".git", "hooks", "pre-commit")
	open(t, root, fusetest.WriteOnly, ".envrc")
	err = walk(t, root, "repo", ".git", "config").Open(fusetest.WriteOnly)
	wantErrno(t, err, errno.EROFS)
	_, root, _ = protectedShare(t, func(c *Config) { c.Unprotected = []string{"."} })
	open(t, root, fusetest.WriteOnly, "repo", ".git", "config")
}

// TestProtectedGitsOwnMoves does what git does in a repository of the host: locks become files, also in submodules, and a configuration that
// is written anew with the same content is not a change.
func TestProtectedGitsOwnMoves(t *testing.T) {
	dir, root, log := protectedShare(t, nil)
	create := func(name, content string, in ...string) {
		t.Helper()
		f := walk(t, root, in...)
		if err := f.Create(name, fusetest.ReadWrite, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte(content), 0); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(dir, "repo/.git/modules/sub/index"), "old")
	module := walk(t, root, "repo", ".git", "modules", "sub")
	create("index.lock", "new", "repo", ".git", "modules", "sub")
	if err := module.RenameAt("index.lock", module, "index"); err != nil {
		t.Errorf("the index of a submodule: %v", err)
	}
	create("tmp_obj", "new", "repo", ".git", "modules", "sub")
	if err := module.Link(walk(t, root, "repo", ".git", "modules", "sub", "tmp_obj"), "object"); err != nil {
		t.Errorf("an object of a submodule: %v", err)
	}
	repository := walk(t, root, "repo", ".git")
	before, err := os.Stat(filepath.Join(dir, "repo/.git/config"))
	if err != nil {
		t.Fatal(err)
	}
	create("config.lock", "kept", "repo", ".git")
	lock := walk(t, root, "repo", ".git", "config.lock")
	if err := repository.RenameAt("config.lock", repository, "config"); err != nil {
		t.Errorf("the same configuration: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "repo/.git/config.lock")); !os.IsNotExist(err) {
		t.Errorf("the lock is left: %v", err)
	}
	if after, err := os.Stat(filepath.Join(dir, "repo/.git/config")); err != nil || !os.SameFile(before, after) {
		t.Errorf("the configuration is another file: %v", err)
	}
	err = lock.Open(fusetest.WriteOnly) // which has the name of the configuration now
	wantErrno(t, err, errno.EROFS)
	for _, content := range []string{"evil", "kept and more", ""} {
		create("config.lock", content, "repo", ".git")
		wantErrno(t, repository.RenameAt("config.lock", repository, "config"), errno.EROFS)
		if err := repository.UnlinkAt("config.lock", 0); err != nil {
			t.Fatal(err)
		}
	}
	// A link with that content is not the file.
	if err := repository.Symlink("config", "link"); err == nil { // a privilege on Windows
		wantErrno(t, repository.RenameAt("link", repository, "config"), errno.EROFS)
	}
	wantErrno(t, walk(t, root, "repo", "src").RenameAt("main.go", walk(t, root, "repo", ".git", "hooks"), "post-commit"), errno.EROFS)
	if got := readFile(t, filepath.Join(dir, "repo/.git/config")); got != "kept" {
		t.Errorf("the configuration is %q", got)
	}
	if !strings.Contains(log.String(), "--unprotected repo/.git/config") {
		t.Errorf("log: %s", log.String())
	}
}

// TestProtectedLinks plants links that make what is protected mean something of the guest.
func TestProtectedLinks(t *testing.T) {
	dir, root, _ := protectedShare(t, nil)
	for _, name := range []string{"plain/.git/HEAD", "plant/config"} {
		writeFile(t, filepath.Join(dir, name), "planted")
	}
	if err := root.Symlink("plant", "ready"); err != nil {
		t.Skip("no symbolic links here: ", err)
	}
	for _, place := range [][]string{
		{".config"}, {"repo", ".git", "modules", "new"}, {"repo", ".git", "modules", "sub", "modules"}, {"repo", ".git", "worktrees"}, {"plain", ".git", "modules"}, {"plain", ".git", "hooks"},
	} {
		in, name := place[:len(place)-1], place[len(place)-1]
		parent := walk(t, root, in...)
		err := parent.Symlink("../../plant", name)
		wantErrno(t, err, errno.EROFS)
		wantErrno(t, parent.Link(walk(t, root, "ready"), name), errno.EROFS)
		wantErrno(t, root.RenameAt("ready", parent, name), errno.EROFS)
		wantErrno(t, root.RenameAt("plant", parent, name), errno.EROFS)
		if _, err := os.Lstat(filepath.Join(dir, filepath.Join(place...))); !os.IsNotExist(err) {
			t.Errorf("%q: %v", place, err)
		}
	}
}

// TestGuestsOwnGitFiles makes the files with the name .git that worktrees and submodules of the guest's own have.
func TestGuestsOwnGitFiles(t *testing.T) {
	dir, root, _ := protectedShare(t, nil)
	if err := root.Mkdir("tree", 0o755); err != nil {
		t.Fatal(err)
	}
	tree := walk(t, root, "tree")
	create := func() {
		t.Helper()
		if err := walk(t, root, "tree").Create(".git", fusetest.WriteOnly, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	create()
	open(t, root, fusetest.WriteOnly, "tree", ".git")
	wantErrno(t, root.RenameAt("tree", walk(t, root, "repo"), "tree"), errno.EROFS) // which would be within another one
	if err := root.RenameAt("tree", root, "other"); err != nil {
		t.Errorf("moving it: %v", err)
	}
	if err := root.RenameAt("other", root, "tree"); err != nil {
		t.Fatal(err)
	}
	if err := tree.UnlinkAt(".git", 0); err != nil {
		t.Errorf("removing it: %v", err)
	}
	// What the guest has removed is not its own any more, whatever gets the inode.
	create()
	if err := tree.RenameAt(".git", root, "away"); err != nil {
		t.Fatal(err)
	}
	if err := root.UnlinkAt("away", 0); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "tree/.git"), "kept")
	if done := tryAll(t, root, "tree/.git"); len(done) > 0 {
		t.Errorf("a file of the host: %q was done", done)
	}
}
