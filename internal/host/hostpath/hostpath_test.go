package hostpath

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/host/private"
)

// tree makes directories, files (by a content) and links (by "-> target") below a new directory without links on its way.
func tree(t *testing.T, entries map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range entries {
		path := filepath.Join(dir, filepath.FromSlash(name))
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if target, isLink := cutLink(content); isLink {
			err = errors.Join(err, os.Symlink(filepath.FromSlash(target), path))
		} else if content == "dir" {
			err = errors.Join(err, os.MkdirAll(path, 0o755))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(content), 0o644))
		}
		if err != nil {
			if runtime.GOOS == "windows" && isLinkError(err) {
				t.Skip("links need a privilege here: ", err)
			}
			t.Fatal(err)
		}
	}
	return dir
}

func isLinkError(err error) bool { return errors.As(err, new(*os.LinkError)) }

func cutLink(content string) (string, bool) {
	if len(content) > 3 && content[:3] == "-> " {
		return content[3:], true
	}
	return "", false
}

func resolved(t *testing.T, path string) *Place {
	t.Helper()
	p, err := Resolve(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestResolve(t *testing.T) {
	dir := tree(t, map[string]string{
		"a/b/file": "text", "link": "-> a", "a/up": "-> ../other", "other/x": "x", "loop": "-> loop", "broken": "-> nothing", "far": "-> link/b/../up/x",
	})
	if err := os.Symlink(filepath.Join(dir, "other"), filepath.Join(dir, "absolute")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ give, want string }{
		{"", ""}, {"a/b", "a/b"}, {"a/b/file", "a/b/file"}, {"a/../a/./b//", "a/b"}, {"link/b/file", "a/b/file"}, {"link", "a"}, {"link/up/x", "other/x"},
		{"absolute/x", "other/x"}, {"far", "other/x"},
	} {
		p := resolved(t, filepath.Join(dir, tt.give)+"/")
		if want := filepath.Join(dir, filepath.FromSlash(tt.want)); p.Real != want {
			t.Errorf("%s: real path %s, want %s", tt.give, p.Real, want)
		}
		info, err := os.Stat(p.Real)
		if err != nil || info.IsDir() != p.IsDir() {
			t.Errorf("%s: %v, %v", tt.give, info, err)
		}
		again, err := Reopen(p.Identity)
		if err != nil || again.Identity != p.Identity {
			t.Errorf("%s again: %+v, %v", tt.give, again, err)
		}
		again.Close()
	}
	for path, want := range map[string]error{"none": fs.ErrNotExist, "a/none/x": fs.ErrNotExist, "broken": fs.ErrNotExist, "loop": nil, "a/b/file/x": nil} {
		if p, err := Resolve(filepath.Join(dir, path)); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %+v, %v, want %v", path, p, err, want)
		}
	}
	if p, err := Resolve("/"); err != nil || runtime.GOOS != "windows" && p.Real != "/" || !p.IsDir() {
		t.Errorf("the root: %+v, %v", p, err)
	}
}

// TestReopen does what a guest can do to a name between two openings.
func TestReopen(t *testing.T) {
	for name, exchange := range map[string]func(dir string) error{
		"a link": func(dir string) error { return os.Symlink(filepath.Join(dir, "secret"), filepath.Join(dir, "p/cache")) },
		"a link to the same": func(dir string) error {
			return os.Symlink(filepath.Join(dir, "p/moved"), filepath.Join(dir, "p/cache"))
		},
		"another directory": func(dir string) error { return os.Mkdir(filepath.Join(dir, "p/cache"), 0o755) },
		"a file":            func(dir string) error { return os.WriteFile(filepath.Join(dir, "p/cache"), nil, 0o644) },
		"nothing":           func(string) error { return nil },
		"a link above": func(dir string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "p"), filepath.Join(dir, "q")), os.Symlink(filepath.Join(dir, "also"), filepath.Join(dir, "p")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t, map[string]string{"p/cache/file": "x", "secret/file": "s", "also/cache/file": "s"})
			p, err := Resolve(filepath.Join(dir, "p/cache"))
			if err != nil {
				t.Fatal(err)
			}
			was := p.Identity
			p.Close() // Windows renames nothing that is held
			if err := errors.Join(os.Rename(filepath.Join(dir, "p/cache"), filepath.Join(dir, "p/moved")), exchange(dir)); err != nil {
				if runtime.GOOS == "windows" && isLinkError(err) {
					t.Skip(err)
				}
				t.Fatal(err)
			}
			again, err := Reopen(was)
			changed := (*ChangedError)(nil)
			if !errors.As(err, &changed) || changed.Was != was {
				t.Errorf("opened %+v, %v", again, err)
			}
		})
	}
}

// TestGuard: a link is refused where guests may change names, however the way there is spelled, and nowhere else.
func TestGuard(t *testing.T) {
	dir := tree(t, map[string]string{
		"p/d/file": "x", "p/out": "-> ../secret", "p/in": "-> d", "p/d/deep": "-> ../../secret", "secret/file": "s", "home": "-> p", "to": "-> p/out", "alias": "-> p/d",
	})
	g := &Guard{}
	g.Add(resolved(t, filepath.Join(dir, "p")))
	for path, want := range map[string]bool{
		"p": true, "p/d": true, "home": true, "home/d": true, "alias": true, "secret": true,
		"p/out": false, "p/in": false, "home/out": false, "to": false, "p/d/deep": false, "alias/deep": false, "p/out/file": false, "home/in/file": false,
	} {
		err := g.Check(resolved(t, filepath.Join(dir, path)))
		if link := (*LinkError)(nil); (err == nil) != want || err != nil && (!errors.As(err, &link) || link.Root != filepath.Join(dir, "p")) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for path, want := range map[string]string{"p/d": "d", "home/d/file": "d/file", "p/d/deep": "", "p": ".", "home": "."} {
		rel, inside := g.Within(resolved(t, filepath.Join(dir, path)), resolved(t, filepath.Join(dir, "p")))
		if rel != want || inside != (want != "") {
			t.Errorf("%s: %q, %v", path, rel, inside)
		}
	}
}

func TestKnown(t *testing.T) {
	user(t)
	store := t.TempDir()
	dir := tree(t, map[string]string{"p/link": "-> ../q", "q/x": ""})
	p := resolved(t, filepath.Join(dir, "p"))
	g := &Guard{}
	for range 3 {
		if err := g.Remember(t.Context(), store, []*Place{p}); err != nil {
			t.Fatal(err)
		}
	}
	again, err := Known(store)
	if err != nil || len(again.roots) != 1 {
		t.Fatalf("%+v, %v", again, err)
	}
	if err := again.Check(resolved(t, filepath.Join(dir, "p/link"))); err == nil {
		t.Error("a link in a directory that was mounted writable is followed")
	}
	if again.Exposed(resolved(t, filepath.Join(dir, "q/x"))) != "" || again.Exposed(p) == "" {
		t.Error("Exposed is wrong about what machines can change")
	}
	folder, err := MakeRecord()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, recordName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Known(store); err == nil {
		t.Error("a record that cannot be read is no error")
	}
}

// user gives the test a user's configuration of its own, and returns its folder, which is not there yet.
func user(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	for _, name := range []string{"XDG_CONFIG_HOME", "HOME", "AppData"} {
		t.Setenv(name, home)
	}
	if err := os.Mkdir(filepath.Join(home, "Library"), 0o700); err != nil { // of macOS
		t.Fatal(err)
	}
	folder, err := private.UserFolder()
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// TestKnownInOtherStores: what a guest of one store could change is known to the commands of every other store of the user, also when
// many processes note it at once, and what an earlier version has noted in its store.
func TestKnownInOtherStores(t *testing.T) {
	user(t)
	dir := tree(t, map[string]string{"old/x": ""})
	earlier := t.TempDir()
	old := resolved(t, filepath.Join(dir, "old"))
	text, err := json.Marshal([]recorded{{Identity: old.Identity, Last: time.Now()}})
	if err == nil {
		err = errors.Join(os.Mkdir(filepath.Join(earlier, recordFolder), 0o700), os.WriteFile(filepath.Join(earlier, recordFolder, recordName), text, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	if g, err := Known(earlier); err != nil || g.Exposed(old) == "" {
		t.Errorf("what an earlier version has noted is not known: %v", err)
	}
	const stores = 12
	var places []*Place
	for i := range stores {
		path := filepath.Join(dir, fmt.Sprint("p", i))
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		places = append(places, resolved(t, path))
	}
	var all sync.WaitGroup
	for i, p := range places {
		all.Go(func() {
			g, err := Known(earlier)
			if err == nil {
				store := earlier
				if i > 0 {
					store = filepath.Join(dir, "store", fmt.Sprint(i))
				}
				err = g.Remember(t.Context(), store, []*Place{p})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	g, err := Known(filepath.Join(dir, "another store"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(places, old) {
		if g.Exposed(p) == "" {
			t.Errorf("%s is not known in another store", p.Path)
		}
	}
}

// TestRecordThatCannotBeWritten: a machine gets no directory that cannot be noted, and the error says where the note would be.
func TestRecordThatCannotBeWritten(t *testing.T) {
	folder := user(t)
	p := resolved(t, tree(t, map[string]string{"x": ""}))
	obstacle := filepath.Join(folder, recordFolder, recordName+".lock")
	if err := os.MkdirAll(obstacle, 0o700); err != nil { // root may write in every folder, but not open one as a file
		t.Fatal(err)
	}
	g, err := Known(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	err = g.Remember(t.Context(), t.TempDir(), []*Place{p})
	if err == nil || !strings.Contains(err.Error(), obstacle) || !strings.Contains(err.Error(), "XDG_CONFIG_HOME") {
		t.Errorf("%v", err)
	}
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	if err := g.Remember(t.Context(), t.TempDir(), []*Place{p}); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	if err := os.Chmod(filepath.Join(folder, recordFolder), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Known(t.TempDir()); !errors.Is(err, private.ErrNotPrivate) {
		t.Errorf("a record that others can change: %v", err)
	}
	none := filepath.Join(folder, "none", "none")
	t.Setenv("XDG_CONFIG_HOME", none)
	t.Setenv("HOME", none)
	if g, err = Known(t.TempDir()); err != nil {
		t.Fatalf("without a home nothing was ever noted: %v", err)
	}
	if err := g.Remember(t.Context(), t.TempDir(), []*Place{p}); err == nil || !strings.Contains(err.Error(), "XDG_CONFIG_HOME") {
		t.Errorf("without a home: %v", err)
	}
}

// TestNumberOfAnother: a directory that has got the number of one that is gone is not taken for it.
func TestNumberOfAnother(t *testing.T) {
	p := resolved(t, tree(t, map[string]string{"p/link": "-> ../q", "q/x": ""}))
	if p.born == 0 {
		t.Skip("this system tells no times of birth")
	}
	g := &Guard{roots: []root{{id: p.id(), born: p.born - 1, boot: p.Boot, path: "/gone"}}}
	if err := g.Check(resolved(t, filepath.Join(p.Path, "p/link"))); err != nil {
		t.Error(err)
	}
	g.roots[0].born = p.born
	if err := g.Check(resolved(t, filepath.Join(p.Path, "p/link"))); err == nil {
		t.Error("a link in a directory that machines could change is followed")
	}
}

// TestOpenFile: only the file that was checked is opened.
func TestOpenFile(t *testing.T) {
	dir := tree(t, map[string]string{"p/file": "text", "secret": "secret"})
	file := filepath.Join(dir, "p/file")
	link := func(t *testing.T) {
		if err := errors.Join(os.Remove(file), os.Symlink(filepath.Join(dir, "secret"), file)); err != nil {
			t.Skip(err)
		}
	}
	p, err := ResolveNew(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.OpenFile(os.O_RDONLY, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(f); string(b) != "text" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	f.Close()
	if f, err := p.OpenFile(os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600, false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file that is to be new, and is there: %v, %v", f, err)
	}
	if runtime.GOOS == "windows" {
		return // the rest removes what is held
	}
	link(t)
	if f, err := p.OpenFile(os.O_WRONLY|os.O_TRUNC, 0, false); err == nil {
		f.Close()
		t.Error("a link that has taken the file's place was followed")
	}
	if err := errors.Join(os.Remove(file), os.WriteFile(file, []byte("other"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "linux" { // elsewhere another file can get the number of one that is gone
		if f, err := p.OpenFile(os.O_WRONLY|os.O_TRUNC, 0, false); err == nil {
			f.Close()
			t.Error("another file was opened")
		}
		if b, _ := os.ReadFile(file); string(b) != "other" {
			t.Errorf("another file was cut: %q", b)
		}
	}
	p.Close()

	missing, err := ResolveNew(filepath.Join(dir, "p/new"))
	if err != nil || !missing.Missing {
		t.Fatalf("%+v, %v", missing, err)
	}
	defer missing.Close()
	if err := os.Symlink(filepath.Join(dir, "made"), filepath.Join(dir, "p/new")); err != nil {
		t.Fatal(err)
	}
	if f, err := missing.OpenFile(os.O_CREATE|os.O_WRONLY, 0o600, false); err == nil {
		f.Close()
		t.Error("a link that was put at a missing name was followed")
	}
	if err := os.Remove(filepath.Join(dir, "p/new")); err != nil {
		t.Fatal(err)
	}
	f, err = missing.OpenFile(os.O_CREATE|os.O_WRONLY, 0o600, false)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if b, _ := os.ReadFile(filepath.Join(dir, "secret")); string(b) != "secret" {
		t.Errorf("the secret is %q", b)
	}
}
