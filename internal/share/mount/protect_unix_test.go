//go:build unix

package mount

import (
	"bytes"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

// needsPermissions skips where permissions do not bind the process: of root, for whom TestMain has run the test as another user.
func needsPermissions(t *testing.T) {
	t.Helper()
	if unprivilegedErr != nil {
		t.Fatal(unprivilegedErr)
	}
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadDir(closed); err == nil {
		t.Skip("permissions do not bind root; TestMain has run this as another user")
	}
}

// protectedDir shares a directory with these files.
func protectedDir(t *testing.T, files ...string) (dir string, root *fusetest.File) {
	t.Helper()
	dir = t.TempDir()
	t.Cleanup(func() { // what a test has made unreadable can be removed
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
			if d.IsDir() {
				os.Chmod(path, 0o700)
			}
			return nil
		})
	})
	for _, name := range files {
		writeFile(t, filepath.Join(dir, name), "kept")
	}
	return dir, attach(t, Config{Dir: dir, Protected: DefaultProtected})
}

func makeDir(t *testing.T, root *fusetest.File, name string) error {
	t.Helper()
	names := strings.Split(name, "/")
	return walk(t, root, names[:len(names)-1]...).Mkdir(names[len(names)-1], 0o755)
}

func makeFile(t *testing.T, root *fusetest.File, name string) error {
	t.Helper()
	names := strings.Split(name, "/")
	return walk(t, root, names[:len(names)-1]...).Create(names[len(names)-1], fusetest.WriteOnly, 0o644)
}

func changeMode(t *testing.T, root *fusetest.File, mode fusetest.FileMode, names ...string) {
	t.Helper()
	if err := walk(t, root, names...).SetAttr(fusetest.SetAttrMask{Permissions: true}, fusetest.SetAttr{Permissions: mode}); err != nil {
		t.Fatal(err)
	}
}

// TestProtectedUnlessKnown has the guest make it impossible to see whether a directory has a repository, and then move the directory away.
func TestProtectedUnlessKnown(t *testing.T) {
	needsPermissions(t)
	for _, tc := range []struct {
		name string
		hide func(t *testing.T, dir string, root *fusetest.File)
	}{
		{"not readable", func(t *testing.T, _ string, root *fusetest.File) { changeMode(t, root, 0o300, "proj") }},
		{"not searchable", func(t *testing.T, _ string, root *fusetest.File) { changeMode(t, root, 0o600, "proj") }},
		{"neither", func(t *testing.T, _ string, root *fusetest.File) { changeMode(t, root, 0, "proj") }},
		{"a directory in it", func(t *testing.T, _ string, root *fusetest.File) { changeMode(t, root, 0o300, "proj", "deep") }},
		{"the repository", func(t *testing.T, _ string, root *fusetest.File) { changeMode(t, root, 0, "proj", "deep", "er") }},
		{"many files", func(t *testing.T, dir string, _ *fusetest.File) {
			for i := range maxLookThrough + 1 {
				if err := os.WriteFile(filepath.Join(dir, "proj", fmt.Sprint(i)), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"no descriptors", func(t *testing.T, dir string, _ *fusetest.File) {
			var was syscall.Rlimit
			if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was) })
			probe, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			next := uint64(probe.Fd())
			probe.Close()
			if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: next + 1, Max: was.Max}); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, root := protectedDir(t, "proj/deep/er/.git/config")
			tc.hide(t, dir, root)
			if err := root.RenameAt("proj", root, "x"); err == nil {
				t.Error("the repository was moved away")
			}
			if !exists(filepath.Join(dir, "proj")) {
				t.Error("the directory is not there any more")
			}
		})
	}
	t.Run("a new repository", func(t *testing.T) {
		dir, root := protectedDir(t, "proj/.git/config", "proj/deep/er/file")
		changeMode(t, root, 0o600, "proj", "deep")
		changeMode(t, root, 0o700, "proj", "deep")
		wantErrno(t, makeDir(t, root, "proj/deep/er/.git"), errno.EROFS)
		inner := filepath.Join(dir, "proj/deep/er")
		_, other := dir, attach(t, Config{Dir: inner, Protected: DefaultProtected})
		wantErrno(t, other.Mkdir(".git", 0o755), errno.EROFS)
	})
}

// TestProtectedRealPaths mounts what is in protected places, and tries to change it by names that say nothing.
func TestProtectedRealPaths(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{
		".claude/settings.json", ".claude/x", ".ssh/config", ".config/git/config", ".config/other/x", "proj/.vscode/tasks.json", "proj/.git/config", "proj/.git/hooks/x",
		"proj/.git/HEAD", "proj/.git/modules/sub/config", "proj/.git/modules/sub/HEAD", "proj/.git/worktrees/tree/gitdir", "proj/.git/worktrees/tree/commondir",
		"bare/HEAD", "bare/objects/x", "bare/refs/x", "bare/config", "bare/hooks/x", "apart/gitdir/HEAD", "apart/gitdir/objects/x", "apart/gitdir/refs/x", "apart/gitdir/config",
	} {
		writeFile(t, filepath.Join(home, name), "kept")
	}
	if err := os.Symlink(".ssh", filepath.Join(home, "link")); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ mount, old, fresh string }{
		{".claude", "settings.json", "settings.local.json"},
		{".claude", "", "hooks"},
		{".ssh", "config", "authorized_keys"},
		{"link", "config", "authorized_keys"},
		{".config", "git/config", "git/ignore"},
		{".config/git", "config", "ignore"},
		{"proj/.vscode", "tasks.json", "settings.json"},
		{"proj/.git", "config", "config.worktree"},
		{"proj/.git", "hooks/x", "hooks/y"},
		{"proj/.git/hooks", "x", "post-checkout"},
		{"proj/.git/modules", "sub/config", "sub/commondir"},
		{"proj/.git/modules/sub", "config", "config.worktree"},
		{"proj/.git/worktrees/tree", "commondir", "config.worktree"},
		{"bare", "config", "commondir"},
		{"bare", "HEAD", ""},
		{"bare/hooks", "x", "post-receive"},
		{"apart", "gitdir/config", "gitdir/commondir"},
		{"apart/gitdir", "config", "commondir"},
		{".", "bare/config", "bare/commondir"},
		{".", ".claude/settings.json", "proj/.mcp.json"},
	} {
		t.Run(tc.mount+" "+tc.old+" "+tc.fresh, func(t *testing.T) {
			root := attach(t, Config{Dir: filepath.Join(home, tc.mount), Protected: DefaultProtected})
			if tc.old != "" {
				names := strings.Split(tc.old, "/")
				parent, base := walk(t, root, names[:len(names)-1]...), names[len(names)-1]
				wantErrno(t, parent.UnlinkAt(base, 0), errno.EROFS)
				wantErrno(t, parent.RenameAt(base, root, "moved"), errno.EROFS)
				if base != "HEAD" {
					wantErrno(t, walk(t, root, names...).Open(fusetest.WriteOnly), errno.EROFS)
				}
			}
			if tc.fresh != "" {
				wantErrno(t, makeFile(t, root, tc.fresh), errno.EROFS)
			}
		})
	}
	// What is only beside is open.
	for mount, name := range map[string]string{".claude": "y", ".config": "other/y", "proj/.git": "HEAD.lock", "bare": "HEAD.lock"} {
		if err := makeFile(t, attach(t, Config{Dir: filepath.Join(home, mount), Protected: DefaultProtected}), name); err != nil {
			t.Errorf("%s/%s: %v", mount, name, err)
		}
	}
	// git replaces HEAD by its lock.
	root := attach(t, Config{Dir: filepath.Join(home, "bare"), Protected: DefaultProtected})
	if err := root.RenameAt("HEAD.lock", root, "HEAD"); err != nil {
		t.Error(err)
	}
}

// TestProtectedAnyDepth makes, replaces and moves protected names in a project below the mount.
func TestProtectedAnyDepth(t *testing.T) {
	dir, root := protectedDir(t, "proj/src/main.go", "other/.envrc", "stuff/tasks.json", "proj/.vscode/other.json", "old/deep/agentvm.toml", "evil")
	for _, name := range []string{
		"proj/.envrc", "proj/.ENVRC", "proj/src/.mcp.json", "proj/agentvm.toml", "proj/src/agentvm.toml", "agentvm.toml", "proj/.vscode/tasks.json", "proj/.vscode/SETTINGS.json",
		"proj/.npmrc", "proj/.pre-commit-config.yaml", "proj/.envrc.", "proj/ENVRC~1", "proj/x.code-workspace",
	} {
		wantErrno(t, makeFile(t, root, name), errno.EROFS)
		names := strings.Split(name, "/")
		parent := walk(t, root, names[:len(names)-1]...)
		wantErrno(t, root.RenameAt("evil", parent, names[len(names)-1]), errno.EROFS)
		wantErrno(t, parent.Link(walk(t, root, "evil"), names[len(names)-1]), errno.EROFS)
		wantErrno(t, parent.Symlink("/x", names[len(names)-1]), errno.EROFS)
		wantErrno(t, parent.Mknod(names[len(names)-1], fusetest.ModeRegular|0o644, 0, 0), errno.EROFS)
	}
	// Directories that lead there are made one by one, and are never links.
	for _, name := range []string{"proj/.claude", "proj/.github", "proj/.config"} {
		if err := makeDir(t, root, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantErrno(t, makeFile(t, root, "proj/.claude/settings.json"), errno.EROFS)
	wantErrno(t, makeDir(t, root, "proj/.claude/skills"), errno.EROFS)
	wantErrno(t, makeDir(t, root, "proj/.github/hooks"), errno.EROFS)
	wantErrno(t, makeDir(t, root, "proj/.husky"), errno.EROFS)
	wantErrno(t, walk(t, root, "proj").Symlink("src", ".cargo"), errno.EROFS)
	wantErrno(t, root.RenameAt("stuff", walk(t, root, "proj"), ".vscode"), errno.EROFS)
	// What holds one does not move, and nothing with one comes.
	wantErrno(t, root.RenameAt("other", root, "x"), errno.EROFS)
	wantErrno(t, root.RenameAt("old", root, "x"), errno.EROFS)
	wantErrno(t, walk(t, root, "old").RenameAt("deep", root, "x"), errno.EROFS)
	// Packages of others may have anything, and stay where they are.
	for _, name := range []string{"proj/node_modules", "proj/node_modules/p", "proj/node_modules/p/.vscode"} {
		if err := makeDir(t, root, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := makeFile(t, root, "proj/node_modules/p/.vscode/tasks.json"); err != nil {
		t.Error(err)
	}
	modules := walk(t, root, "proj", "node_modules")
	wantErrno(t, modules.RenameAt("p", root, "q"), errno.EROFS)
	if err := makeDir(t, root, "proj/node_modules/plain"); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, modules.RenameAt("plain", root, "q"), errno.EXDEV)
	wantErrno(t, root.Symlink("proj/node_modules/p", "q"), errno.EROFS)
	if err := modules.Symlink("plain", "alias"); err != nil {
		t.Error(err)
	}
	if exists(filepath.Join(dir, "q")) {
		t.Error("a name leads to packages")
	}
	// Messages that the server does not know plant nothing: rename with flags, nameless files, copies of ranges.
	raw := rawAttach(t, Config{Dir: dir, Protected: DefaultProtected})
	for _, op := range []uint32{43, 45, 47, 51} { // FALLOCATE, RENAME2, COPY_FILE_RANGE, TMPFILE
		if got := raw.errno(op, rootID, body.U64(rootID).U32(2).U32(0).Str("evil").Str(".envrc")); got != errno.ENOSYS {
			t.Errorf("message %d: %v", op, got)
		}
	}
}

// TestPlantedRepository makes, of names that git knows a repository by, one in a repository of the host.
func TestPlantedRepository(t *testing.T) {
	dir, root := protectedDir(t, "repo/.git/config", "repo/src/main.go", "bare/HEAD", "bare/objects/x", "bare/refs/x", "bare/config")
	src := walk(t, root, "repo", "src")
	for _, err := range []error{src.Mkdir("objects", 0o755), src.Mkdir("refs", 0o755), makeFile(t, root, "h")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	wantErrno(t, makeFile(t, root, "repo/src/HEAD"), errno.EROFS)
	wantErrno(t, root.RenameAt("h", src, "HEAD"), errno.EROFS)
	wantErrno(t, src.Link(walk(t, root, "h"), "HEAD"), errno.EROFS)
	wantErrno(t, src.Symlink("x", "HEAD"), errno.EROFS)
	if err := src.UnlinkAt("refs", fusetest.RemoveDirectory); err != nil {
		t.Fatal(err)
	}
	if err := makeFile(t, root, "repo/src/HEAD"); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, src.Mkdir("refs", 0o755), errno.EROFS)
	wantErrno(t, makeFile(t, root, "repo/src/commondir"), errno.EROFS)
	// The names by which git knows one of the host stay.
	bare := walk(t, root, "bare")
	wantErrno(t, bare.UnlinkAt("HEAD", 0), errno.EROFS)
	wantErrno(t, bare.RenameAt("HEAD", bare, "x"), errno.EROFS)
	wantErrno(t, bare.RenameAt("refs", bare, "x"), errno.EROFS)
	wantErrno(t, root.RenameAt("bare", root, "x"), errno.EROFS)
	wantErrno(t, root.RenameAt("bare", walk(t, root, "repo"), "x"), errno.EROFS)
	// One that the guest makes elsewhere is its own.
	for _, err := range []error{root.Mkdir("own", 0o755), makeDir(t, root, "own/objects"), makeDir(t, root, "own/refs"), makeFile(t, root, "own/HEAD"), makeFile(t, root, "own/config"), makeDir(t, root, "own/hooks")} {
		if err != nil {
			t.Error(err)
		}
	}
	wantErrno(t, root.RenameAt("own", walk(t, root, "repo"), "own"), errno.EROFS)
	if err := root.RenameAt("own", root, "owned"); err != nil {
		t.Error(err)
	}
	if exists(filepath.Join(dir, "repo/own")) {
		t.Error("it is in the repository")
	}
}

// TestMadeIsNotReused gives the names, and if the file system is willing the inodes, of a guest's repositories to the host.
func TestMadeIsNotReused(t *testing.T) {
	dir := t.TempDir()
	guard := NewGuard(nil)
	defer guard.Close()
	config := Config{Dir: dir, Protected: DefaultProtected, Guard: guard}
	root, other := attach(t, config), attach(t, config)
	var names []string
	for i := range maxHeld + 20 {
		names = append(names, fmt.Sprintf("p%d", i))
	}
	for _, name := range names {
		for _, err := range []error{makeDir(t, root, name), makeDir(t, root, name+"/.git"), makeFile(t, other, name+"/.git/config")} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, name := range names {
		repository := filepath.Join(dir, name, ".git")
		if i%2 == 0 {
			if err := os.RemoveAll(repository); err != nil {
				t.Fatal(err)
			}
		} else {
			for _, err := range []error{walk(t, other, name, ".git").UnlinkAt("config", 0), walk(t, other, name).UnlinkAt(".git", fusetest.RemoveDirectory)} {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		writeFile(t, filepath.Join(repository, "config"), "kept")
		if err := makeFile(t, root, name+"/.git/commondir"); err == nil {
			t.Fatalf("%s: the host's repository is taken for the guest's", name)
		}
		wantErrno(t, makeDir(t, root, name+"/.git/hooks"), errno.EROFS)
		wantErrno(t, walk(t, other, name, ".git", "config").Open(fusetest.WriteOnly), errno.EROFS)
		wantErrno(t, root.RenameAt(name, root, "x"), errno.EROFS)
	}
}

// TestProtectedRace moves a directory into a repository by one share while another one, of another VM, makes a repository in it.
func TestProtectedRace(t *testing.T) {
	tries := 10_000
	if testing.Short() {
		tries = 500
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "repo/.git/config"), "kept")
	for i := range 20 {
		if err := os.MkdirAll(filepath.Join(dir, "free/d", fmt.Sprint(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config := Config{Dir: dir, Protected: DefaultProtected}
	root, other := attach(t, config), attach(t, config)
	free, repo := walk(t, root, "free"), walk(t, root, "repo")
	var both sync.WaitGroup
	for i := range tries {
		inner := fmt.Sprint(i % 20)
		both.Go(func() {
			if d := tryWalk(other, "free", "d", inner); d != nil {
				d.Mkdir(".git", 0o755)
				d.Close()
			}
		})
		if free.RenameAt("d", repo, "d") == nil {
			repo.RenameAt("d", free, "d")
		}
		both.Wait()
		if exists(filepath.Join(dir, "repo/d", inner, ".git")) {
			t.Fatalf("planted at try %d", i)
		}
		os.Remove(filepath.Join(dir, "free/d", inner, ".git"))
	}
}

// TestGuestsModes: the mode of what a guest makes is what it asks for; the host's umask does not apply.
func TestGuestsModes(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	dir, root := protectedDir(t)
	if err := walk(t, root).Create("file", fusetest.ReadWrite, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{root.Mkdir("dir", 0o1777), root.Mknod("node", fusetest.ModeRegular|0o664, 0, 0), root.Mknod("fifo", fusetest.ModeNamedPipe|0o622, 0, 0)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]os.FileMode{"file": 0o666, "dir": os.ModeDir | os.ModeSticky | 0o777, "node": 0o664, "fifo": os.ModeNamedPipe | 0o622} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", name, info.Mode(), err, want)
		}
		if a := getattr(t, walk(t, root, name)); uint32(a.Mode)&0o777 != uint32(want.Perm()) {
			t.Errorf("%s: the guest sees %o", name, a.Mode)
		}
	}
}

// TestOriginalProtects: what a guest may not change is not taken over from its copy either.
func TestOriginalProtects(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "bare/HEAD"), "")
	writeFile(t, filepath.Join(dir, "bare/objects/x"), "")
	writeFile(t, filepath.Join(dir, "bare/refs/x"), "")
	original, err := OpenOriginal(Config{Dir: dir, Protected: DefaultProtected})
	if err != nil {
		t.Fatal(err)
	}
	defer original.Close()
	for _, tc := range []struct {
		name  string
		makes os.FileMode
	}{
		{"agentvm.toml", 0}, {"proj/agentvm.toml", os.ModeIrregular}, {"proj/.envrc", 0}, {"proj/.vscode", os.ModeSymlink}, {"proj/.vscode/tasks.json", 0}, {"proj/.husky", os.ModeDir},
		{"bare/config", 0}, {"bare/HEAD", os.ModeIrregular}, {"bare/hooks", os.ModeDir},
	} {
		if original.Refusal(tc.name, tc.makes) == "" {
			t.Errorf("%s (%v) is taken over", tc.name, tc.makes)
		}
	}
	for name, makes := range map[string]os.FileMode{"proj/.vscode": os.ModeDir, "bare/HEAD": 0, "proj/main.go": 0, "AGENTS.md": 0} {
		if why := original.Refusal(name, makes); why != "" {
			t.Errorf("%s: %s", name, why)
		}
	}
}

// TestWrittenInstructions: the user learns of texts that the guest has written for agents.
func TestWrittenInstructions(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "CLAUDE.md"), "")
	writeFile(t, filepath.Join(dir, "read/GEMINI.md"), "")
	var log bytes.Buffer
	guard := NewGuard(slog.New(slog.NewTextHandler(&log, nil)))
	root := attach(t, Config{Dir: dir, Protected: DefaultProtected, Guard: guard})
	open(t, root, fusetest.WriteOnly, "CLAUDE.md")
	open(t, root, fusetest.ReadOnly, "read", "GEMINI.md")
	for _, err := range []error{makeFile(t, root, "read/AGENTS.md"), makeFile(t, root, "plain"), root.RenameAt("plain", root, "agents.MD")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	noted := guard.Instructions(dir)
	if len(noted) != 3 || noted[0].Path != filepath.ToSlash(filepath.Join(dir, "CLAUDE.md")) || time.Since(noted[0].At) > time.Minute {
		t.Errorf("noted: %v", noted)
	}
	if other := guard.Instructions(dir[:len(dir)-1]); other != nil {
		t.Errorf("noted of another directory: %v", other)
	}
	guard.Close()
	for name, want := range map[string]bool{"CLAUDE.md": true, "read/AGENTS.md": true, "agents.MD": true, "GEMINI.md": false, "plain": false} {
		if got := strings.Contains(log.String(), name); got != want {
			t.Errorf("%s is reported: %v, want %v\n%s", name, got, want, log.String())
		}
	}
}
