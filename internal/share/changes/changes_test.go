package changes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/share/changes"
	"agentvm/internal/share/guestfs"
	"agentvm/internal/share/mount"
)

// guest is a guest that says of its layer what a test has it say. Its other files are none.
type guest struct {
	guestrpc.FilesHandler
	list     []guestrpc.LayerEntry
	content  map[string]io.ReaderAt // of paths; else the path's own text
	began    time.Time
	endless  bool // the list never ends
	applying uint64
	begun    func() // when an apply has begun
	settled  []guestrpc.LayerEntry
	newBegan time.Time
	dropped  []string
}

func (g *guest) Layer(string) (guestrpc.LayerHandler, guestrpc.LayerState, error) {
	return &layer{g: g, left: g.list}, guestrpc.LayerState{Began: g.began, Interrupted: g.applying}, nil
}

type layer struct {
	g    *guest
	left []guestrpc.LayerEntry
	n    int
}

func (l *layer) Next() ([]guestrpc.LayerEntry, error) {
	if l.g.endless {
		part := make([]guestrpc.LayerEntry, 512)
		for i := range part {
			l.n++
			part[i] = file(fmt.Sprintf("%d-%s", l.n, strings.Repeat("x", 240)), 0o644)
		}
		return part, nil
	}
	part := l.left[:min(len(l.left), 100)]
	l.left = l.left[len(part):]
	if len(part) == 0 {
		return nil, io.EOF
	}
	return part, nil
}

func (l *layer) Open(path string) (guestrpc.FileHandler, error) {
	if c := l.g.content[path]; c != nil {
		return content{c}, nil
	}
	return content{strings.NewReader(path)}, nil
}

func (l *layer) Begin(apply uint64) error {
	l.g.applying = apply
	if l.g.begun != nil {
		l.g.begun()
	}
	return nil
}

func (l *layer) Settle(entries []guestrpc.LayerEntry, began time.Time) error {
	l.g.applying = 0
	l.g.settled, l.g.newBegan = append(l.g.settled, entries...), began
	return nil
}

func (l *layer) Pack(context.Context, io.Writer) (guestrpc.Summary, error) {
	return guestrpc.Summary{}, errors.ErrUnsupported
}
func (l *layer) Discard(paths []string, now time.Time) error {
	l.g.dropped, l.g.newBegan = paths, now
	return nil
}
func (l *layer) Close() error { return nil }

type content struct{ io.ReaderAt }

func (content) WriteAt([]byte, int64) (int, error)         { return 0, fs.ErrPermission }
func (content) Stat() (guestrpc.FileInfo, error)           { return guestrpc.FileInfo{}, nil }
func (content) Truncate(int64) error                       { return fs.ErrPermission }
func (content) Commit() error                              { return fs.ErrPermission }
func (content) Close() error                               { return nil }
func (z zeros) ReadAt(b []byte, offset int64) (int, error) { clear(b); return len(b), nil }

// zeros never end.
type zeros struct{}

func file(path string, mode fs.FileMode) guestrpc.LayerEntry {
	return guestrpc.LayerEntry{Path: path, Info: guestrpc.FileInfo{Mode: mode, Size: int64(len(path))}}
}

func dir(path string) guestrpc.LayerEntry { return file(path, fs.ModeDir|0o755) }

func link(path, target string) guestrpc.LayerEntry {
	e := file(path, fs.ModeSymlink|0o777)
	e.Info.Target = target
	return e
}

func gone(path string) guestrpc.LayerEntry {
	e := file(path, fs.ModeDevice|fs.ModeCharDevice)
	e.Kind = guestrpc.LayerRemoval
	return e
}

func opaque(path string) guestrpc.LayerEntry {
	e := dir(path)
	e.Kind = guestrpc.LayerOpaque
	return e
}

// kit is a directory of the host, and a guest's layer over it.
type kit struct {
	*guest
	host string
	set  *changes.Set
}

func newKit(t *testing.T, config mount.Config, list ...guestrpc.LayerEntry) *kit {
	t.Helper()
	k := &kit{guest: &guest{list: list, began: time.Now().Add(time.Hour)}, host: t.TempDir()}
	ours, theirs := net.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { defer close(served); _ = guestrpc.ServeFiles(ctx, theirs, k.guest, nil) }()
	client, err := guestrpc.DialFiles(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(); cancel(); <-served })
	config.Dir = k.host
	k.set = changes.New(guestfs.New(client), func(context.Context) ([]changes.Mount, error) {
		return []changes.Mount{{Target: "/src", Open: func(context.Context, bool) (*mount.Original, error) { return mount.OpenOriginal(config) }}}, nil
	})
	return k
}

func (k *kit) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(k.host, filepath.FromSlash(name))
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// base is the entry with the host's file of now, which has a path, as what the guest has copied.
func (k *kit) base(t *testing.T, e guestrpc.LayerEntry, path string) guestrpc.LayerEntry {
	t.Helper()
	o, err := mount.OpenOriginal(mount.Config{Dir: k.host})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	st, err := o.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	e.Base = st.Base.String()
	return e
}

// want compares the changes with lines of status, path, and the reason why one is refused.
func (k *kit) want(t *testing.T, want ...string) {
	t.Helper()
	list, err := k.set.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range list {
		line := c.Status.String() + " " + c.Path
		if c.Status == changes.Renamed {
			line = "R " + c.From + " " + c.Path
		}
		if c.Conflict {
			line += " conflict"
		}
		if c.Refused != "" {
			line += ": " + c.Refused
		}
		got = append(got, line)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// tree is what the host has, one file a line.
func (k *kit) tree(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(k.host, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == k.host {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(k.host, path)
		fmt.Fprintf(&b, "%v %q", info.Mode(), filepath.ToSlash(rel))
		switch info.Mode().Type() {
		case 0:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %.30q", text)
		case fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " -> %s", target)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func skipWindows(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the host has no modes, or no such names")
	}
}

func TestApply(t *testing.T) {
	skipWindows(t)
	special := file("fifo", fs.ModeNamedPipe|0o644)
	k := newKit(t, mount.Config{})
	for _, name := range []string{"changed", "mode", "from", "gone/a", "gone/b/c", "file-to-dir", "dir-to-file/x", "opaque/old", "opaque/sub/old", "opaque/same", "same"} {
		k.write(t, name, "the host's "+name)
	}
	k.write(t, "same", "same")
	moved := k.base(t, file("to", 0o644), "from")
	mode := k.base(t, file("mode", 0o755), "mode")
	mode.Info.Size = int64(len("the host's mode"))
	k.content = map[string]io.ReaderAt{"mode": strings.NewReader("the host's mode")}
	k.list = []guestrpc.LayerEntry{
		k.base(t, file("changed", 0o644), "changed"), mode, moved, gone("from"), gone("gone"), opaque("file-to-dir"), file("file-to-dir/new", 0o600),
		file("dir-to-file", 0o640), opaque("opaque"), file("opaque/new", 0o4755), dir("opaque/sub"), file("opaque/sub/new", 0o644), file("opaque/same", 0o644),
		link("link", "/etc/passwd"), file("same", 0o644), dir("made"), dir("made/deep"), file("made/deep/file", 0o644), gone("never"), special,
	}
	k.want(t, "M changed", "T dir-to-file", "A fifo: it is no file, directory or link", "T file-to-dir", "A file-to-dir/new", "D gone", "A link", "A made", "A made/deep", "A made/deep/file",
		"M mode", "A opaque/new", "D opaque/old", "M opaque/same", "A opaque/sub/new", "D opaque/sub/old", "R from to")
	before := time.Now()
	applied, err := k.set.Apply(t.Context(), changes.ApplyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(applied.Done) != 16 || len(applied.Skipped) != 1 || applied.Skipped[0].Path != "fifo" {
		t.Errorf("%v", applied)
	}
	const want = `-rw-r--r-- "changed" "changed"
-rw-r----- "dir-to-file" "dir-to-file"
drwxr-xr-x "file-to-dir"
-rw------- "file-to-dir/new" "file-to-dir/new"
Lrwxrwxrwx "link" -> /etc/passwd
drwxr-xr-x "made"
drwxr-xr-x "made/deep"
-rw-r--r-- "made/deep/file" "made/deep/file"
-rwxr-xr-x "mode" "the host's mode"
drwxr-xr-x "opaque"
-rwxr-xr-x "opaque/new" "opaque/new"
-rw-r--r-- "opaque/same" "opaque/same"
drwxr-xr-x "opaque/sub"
-rw-r--r-- "opaque/sub/new" "opaque/sub/new"
-rw-r--r-- "same" "same"
-rw-r--r-- "to" "to"
`
	if diff := cmp.Diff(want, k.tree(t)); diff != "" {
		t.Error(diff)
	}
	// What was applied has the host's files as its base from now on. The layer's beginning stays: something was left out.
	if len(k.settled) != 14-1 || !k.newBegan.IsZero() {
		t.Errorf("settled %d, began %v; %v", len(k.settled), k.newBegan, before)
	}
}

func TestApplySome(t *testing.T) {
	k := newKit(t, mount.Config{}, dir("a"), dir("a/b"), file("a/b/c", 0o644), file("a/d", 0o644), file("ab", 0o644))
	if _, err := k.set.Apply(t.Context(), changes.ApplyOptions{Paths: []string{"/src/a/b/c"}}); err != nil {
		t.Fatal(err)
	}
	k.want(t, "A a/d", "A ab")
	if !k.newBegan.IsZero() {
		t.Error("the layer begins anew, though there are other changes")
	}
	if _, err := k.set.Apply(t.Context(), changes.ApplyOptions{Paths: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	k.want(t, "A ab")
	for path, want := range map[string]string{"/etc": "no copy-on-write mount", "/srcs": "no copy-on-write mount", "": "invalid", "../x": "no copy-on-write mount"} {
		if _, err := k.set.List(t.Context(), path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", path, err)
		}
	}
	if _, err := k.set.Apply(t.Context(), changes.ApplyOptions{Paths: []string{"/src"}}); err != nil {
		t.Fatal(err)
	}
	k.want(t)
	if k.newBegan.IsZero() {
		t.Error("all is applied, and the layer does not begin anew")
	}
}

// TestConflicts has the host change each kind of thing that the guest has changed.
func TestConflicts(t *testing.T) {
	k := newKit(t, mount.Config{})
	for _, name := range []string{"written", "removed", "gone", "dir/x", "from", "kept"} {
		k.write(t, name, "old "+name)
	}
	k.list = []guestrpc.LayerEntry{
		k.base(t, file("written", 0o644), "written"), k.base(t, file("removed", 0o644), "removed"), gone("gone"), gone("dir"), file("made", 0o644),
		k.base(t, file("to", 0o644), "from"), gone("from"), k.base(t, file("kept", 0o644), "kept"),
	}
	k.began = time.Now()
	time.Sleep(30 * time.Millisecond) // the clock of files has steps
	k.write(t, "written", "new written")
	k.write(t, "gone", "new gone")
	k.write(t, "dir/y", "new")
	k.write(t, "made", "by the host")
	k.write(t, "from", "new from")
	if err := os.Remove(filepath.Join(k.host, "removed")); err != nil {
		t.Fatal(err)
	}
	k.want(t, "D dir conflict", "D gone conflict", "M kept", "M made conflict", "A removed conflict", "R from to conflict", "M written conflict")
	was := k.tree(t)
	_, err := k.set.Apply(t.Context(), changes.ApplyOptions{})
	var conflict *changes.ConflictError
	if !errors.As(err, &conflict) || len(conflict.Changes) != 6 || !strings.Contains(err.Error(), `"/src/dir", "/src/gone", "/src/made" and 3 more`) {
		t.Errorf("%v", err)
	}
	if diff := cmp.Diff(was, k.tree(t)); diff != "" {
		t.Error(diff)
	}
	if _, err := k.set.Apply(t.Context(), changes.ApplyOptions{Paths: []string{"kept"}}); err != nil {
		t.Error(err)
	}
	if _, err := k.set.Apply(t.Context(), changes.ApplyOptions{Force: true}); err != nil {
		t.Error(err)
	}
	k.want(t)
}

// TestHostile has the guest say of its layer what none can have.
func TestHostile(t *testing.T) {
	for _, test := range []struct {
		name string
		list []guestrpc.LayerEntry
		want string
	}{
		{"climbs", []guestrpc.LayerEntry{file("../x", 0o644)}, "is no path"},
		{"climbs below", []guestrpc.LayerEntry{dir("a"), file("a/../../x", 0o644)}, "is no path"},
		{"absolute", []guestrpc.LayerEntry{file("/etc/x", 0o644)}, "is no path"},
		{"empty", []guestrpc.LayerEntry{file("", 0o644)}, "is no path"},
		{"root", []guestrpc.LayerEntry{opaque(".")}, "is no path"},
		{"NUL", []guestrpc.LayerEntry{file("a\x00b", 0o644)}, "is no path"},
		{"twice", []guestrpc.LayerEntry{file("a", 0o644), link("a", "b")}, "twice"},
		{"in a link", []guestrpc.LayerEntry{link("a", "/etc"), file("a/x", 0o644)}, "in no directory"},
		{"in what is removed", []guestrpc.LayerEntry{gone("a"), file("a/x", 0o644)}, "in no directory"},
		{"before its directory", []guestrpc.LayerEntry{file("a/x", 0o644), dir("a")}, "in no directory"},
		{"opaque file", []guestrpc.LayerEntry{{Path: "a", Kind: guestrpc.LayerOpaque}}, "unknown kind"},
		{"kind", []guestrpc.LayerEntry{{Path: "a", Kind: 9}}, "unknown kind"},
		{"long path", []guestrpc.LayerEntry{file(strings.Repeat("x", 5000), 0o644)}, "5000 bytes"},
		{"long base", []guestrpc.LayerEntry{{Path: "a", Base: strings.Repeat("x", 3000)}}, "3000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := newKit(t, mount.Config{}, test.list...)
			if list, err := k.set.List(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, %v", list, err)
			}
			if _, err := k.set.Apply(t.Context(), changes.ApplyOptions{Force: true}); err == nil || k.tree(t) != "" {
				t.Errorf("applied: %v\n%s", err, k.tree(t))
			}
		})
	}
	t.Run("endless list", func(t *testing.T) {
		k := newKit(t, mount.Config{})
		k.endless = true
		if _, err := k.set.List(t.Context()); err == nil || !strings.Contains(err.Error(), "more than") {
			t.Errorf("%v", err)
		}
	})
	t.Run("endless file", func(t *testing.T) {
		k := newKit(t, mount.Config{}, file("a", 0o644))
		k.content = map[string]io.ReaderAt{"a": zeros{}}
		_, err := k.set.Apply(t.Context(), changes.ApplyOptions{MaxBytes: 3 << 20})
		if limit := new(guestfs.LimitError); !errors.As(err, &limit) || k.tree(t) != "" {
			t.Errorf("%v\n%s", err, k.tree(t))
		}
		if _, err := k.set.WriteDiff(t.Context(), io.Discard); err != nil {
			t.Error(err)
		}
	})
}

// TestContained has the host's directory lead out of itself, where the guest's changes would go.
func TestContained(t *testing.T) {
	skipWindows(t)
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := newKit(t, mount.Config{}, dir("out"), file("out/secret", 0o644), file("link", 0o644), gone("removed"))
	for name, target := range map[string]string{"out": outside, "link": secret, "removed": outside} {
		if err := os.Symlink(target, filepath.Join(k.host, name)); err != nil {
			t.Fatal(err)
		}
	}
	var patch bytes.Buffer
	if _, err := k.set.WriteDiff(t.Context(), &patch); err != nil || strings.Contains(patch.String(), "-secret") {
		t.Errorf("%v\n%s", err, patch.String())
	}
	if _, err := k.set.Apply(t.Context(), changes.ApplyOptions{Force: true}); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(secret); string(text) != "secret" {
		t.Errorf("%q, %v", text, err)
	}
	const want = `-rw-r--r-- "link" "link"
drwxr-xr-x "out"
-rw-r--r-- "out/secret" "out/secret"
`
	if diff := cmp.Diff(want, k.tree(t)); diff != "" {
		t.Error(diff)
	}
}

// TestMasksAndProtection applies over what is hidden, or executed by programs of the host.
func TestMasksAndProtection(t *testing.T) {
	k := newKit(t, mount.Config{Masks: []string{".env", "deep/secret"}, Covered: []string{"cache"}, Protected: mount.DefaultProtected},
		file(".env", 0o644), file(".ENV", 0o644), dir("deep"), file("deep/secret", 0o644), file("deep/fine", 0o644), gone("removed"), file(".envrc", 0o644),
		dir(".git"), file(".git/config", 0o644), file(".git/index", 0o644), dir(".git/hooks"), file(".git/hooks/pre-commit", 0o755), link("cache", "/etc"))
	for _, name := range []string{".env", "deep/secret", "removed/.git/config", ".git/config", "cache/x"} {
		k.write(t, name, "the host's")
	}
	list, err := k.set.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	refused := make(map[string]bool)
	for _, c := range list {
		refused[c.Path] = c.Refused != ""
	}
	want := map[string]bool{
		".env": true, ".ENV": true, "deep/secret": true, "deep/fine": false, "removed": true, ".envrc": true, ".git/config": true, ".git/index": false,
		".git/hooks": true, ".git/hooks/pre-commit": true, "cache": true,
	}
	if diff := cmp.Diff(want, refused); diff != "" {
		t.Error(diff)
	}
	applied, err := k.set.Apply(t.Context(), changes.ApplyOptions{Force: true})
	if err != nil || len(applied.Done) != 2 {
		t.Errorf("%v, %v", applied.Done, err)
	}
	for _, name := range []string{".env", "deep/secret", "removed/.git/config", ".git/config", "cache/x"} {
		if text, err := os.ReadFile(filepath.Join(k.host, name)); string(text) != "the host's" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	// The masked file's content is in no patch.
	var patch bytes.Buffer
	if _, err := k.set.WriteDiff(t.Context(), &patch, ".env", ".ENV", "deep/secret", "cache"); err != nil || strings.Contains(patch.String(), "the host's") {
		t.Errorf("%v\n%s", err, patch.String())
	}
	k = newKit(t, mount.Config{Masks: []string{"deep/secret"}}, gone("deep"))
	k.write(t, "deep/secret", "the host's")
	k.want(t, "D deep: it contains what is hidden from the VM")
}

func TestNamesAreQuoted(t *testing.T) {
	skipWindows(t)
	name := "a\nb\x1b[2J\"\\é"
	k := newKit(t, mount.Config{}, file(name, 0o644))
	var patch bytes.Buffer
	if _, err := k.set.WriteDiff(t.Context(), &patch); err != nil {
		t.Fatal(err)
	}
	const quoted = `a\nb\033[2J\"\\\303\251"`
	if head, _, _ := strings.Cut(patch.String(), "@@"); head != "diff --git \"a/"+quoted+" \"b/"+quoted+"\nnew file mode 100644\n--- /dev/null\n+++ \"b/"+quoted+"\n" {
		t.Errorf("%s", head)
	}
	list, err := k.set.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(list)
	if err != nil || !bytes.Contains(b, []byte(`"path":"a\nb\u001b[2J\"\\é"`)) {
		t.Errorf("%s, %v", b, err)
	}
}

func TestDiscard(t *testing.T) {
	k := newKit(t, mount.Config{})
	for _, name := range []string{"from", "opaque/old"} {
		k.write(t, name, "old")
	}
	k.list = []guestrpc.LayerEntry{file("a", 0o644), k.base(t, file("to", 0o644), "from"), gone("from"), opaque("opaque"), file("opaque/x", 0o644), dir("d"), dir("d/e"), file("d/e/f", 0o644)}
	for _, test := range []struct {
		path, err string
		want      []string
	}{
		{"a", "", []string{"a"}},
		{"to", "", []string{"from", "to"}},
		{"from", "", []string{"from", "to"}},
		{"opaque", "", []string{"opaque"}},
		{"opaque/old", "as a whole", nil},
		{"d", "", []string{"d"}},
		{"d/e/f", "", []string{"d/e/f"}},
		{"/src", "", []string{}},
		{"b", "has not changed it", nil},
	} {
		k.dropped, k.newBegan = nil, time.Time{}
		asked := time.Now()
		err := k.set.Discard(t.Context(), test.path)
		if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%s: %v", test.path, err)
		}
		if diff := cmp.Diff(test.want, k.dropped); diff != "" {
			t.Errorf("%s: %s", test.path, diff)
		}
		if now := time.Now(); test.err == "" && (k.newBegan.Before(asked) || k.newBegan.After(now)) {
			t.Errorf("%s: the guest has %v as the time at %v", test.path, k.newBegan, now)
		}
	}
}

// TestBeganAfterDeletions applies a deletion in a directory, which changes the directory: that is not a conflict when the guest removes it.
func TestBeganAfterDeletions(t *testing.T) {
	k := newKit(t, mount.Config{})
	k.write(t, "dir/gone", "old")
	k.write(t, "dir/kept", "old")
	k.list = []guestrpc.LayerEntry{dir("dir"), gone("dir/gone")}
	k.began = time.Now()
	time.Sleep(30 * time.Millisecond) // the clock of files has steps
	if _, err := k.set.Apply(t.Context(), changes.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(k.host, "dir"))
	if err != nil || k.newBegan.Before(info.ModTime()) {
		t.Fatalf("changes are kept since %v, the directory has changed at %v, %v", k.newBegan, info.ModTime(), err)
	}
	k.list, k.began = []guestrpc.LayerEntry{gone("dir")}, k.newBegan
	k.want(t, "D dir")
}

// TestNewInDeleted has the host make a file in a directory that the guest has deleted, within the step of the file system's clock in which the
// changes are listed.
func TestNewInDeleted(t *testing.T) {
	k := newKit(t, mount.Config{}, gone("dir"))
	k.write(t, "dir/old", "old")
	k.began = time.Now()
	time.Sleep(30 * time.Millisecond) // the clock of files has steps
	k.begun = func() { k.write(t, "dir/new", "new") }
	if _, err := k.set.Apply(t.Context(), changes.ApplyOptions{}); err == nil || !strings.Contains(err.Error(), `just changed "dir/new"`) {
		t.Errorf("%v", err)
	}
	if text, err := os.ReadFile(filepath.Join(k.host, "dir", "new")); string(text) != "new" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestTorn is about files of which the guest says that they may be incomplete.
func TestTorn(t *testing.T) {
	torn := file("torn", 0o644)
	torn.Torn = true
	k := newKit(t, mount.Config{}, file("other", 0o644), torn)
	k.write(t, "torn", "old")
	k.write(t, "other", "old")
	list, err := k.set.List(t.Context())
	if err != nil || len(list) != 2 || list[0].Torn || !list[1].Torn {
		t.Fatalf("%+v, %v", list, err)
	}
	var refused *changes.TornError
	before := k.tree(t)
	if _, err := k.set.Apply(t.Context(), changes.ApplyOptions{}); !errors.As(err, &refused) || len(refused.Changes) != 1 || !strings.Contains(err.Error(), `"/src/torn"`) {
		t.Errorf("%v", err)
	}
	if after := k.tree(t); after != before || k.applying != 0 {
		t.Errorf("something was applied:\n%s", after)
	}
	if a, err := k.set.Apply(t.Context(), changes.ApplyOptions{Paths: []string{"other"}}); err != nil || len(a.Done) != 1 {
		t.Errorf("the other one: %+v, %v", a, err)
	}
	if a, err := k.set.Apply(t.Context(), changes.ApplyOptions{Force: true}); err != nil || len(a.Done) != 1 || a.Done[0].Path != "torn" {
		t.Errorf("forced: %+v, %v", a, err)
	}
}

// TestInterruptedApply finds a host and a guest as a killed apply leaves them: one file is applied, and another has only its temporary name.
func TestInterruptedApply(t *testing.T) {
	k := newKit(t, mount.Config{})
	k.write(t, "applied", "old")
	k.write(t, "gone/left", "old")
	k.list = []guestrpc.LayerEntry{k.base(t, file("applied", 0o644), "applied"), gone("gone"), file("new", 0o644)}
	k.applying = 7
	k.write(t, "applied", "applied")
	k.write(t, ".agentvm-0000000000000007-00000001", "ne")
	k.write(t, ".agentvm-0000000000000008-00000001", "another's")
	if list, err := k.set.Interrupted(t.Context()); err != nil || len(list) != 1 || list[0] != "/src" {
		t.Errorf("interrupted: %q, %v", list, err)
	}
	k.want(t, "D gone", "A new")
	a, err := k.set.Apply(t.Context(), changes.ApplyOptions{})
	if err != nil || len(a.Done) != 2 || len(a.Resumed) != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	if tree := k.tree(t); strings.Contains(tree, "0000000000000007") || !strings.Contains(tree, "0000000000000008") || strings.Contains(tree, "gone") {
		t.Errorf("the host has\n%s", tree)
	}
	if k.applying != 0 {
		t.Error("it is still being applied")
	}
	var settled []string
	for _, e := range k.settled {
		settled = append(settled, e.Path)
	}
	if diff := cmp.Diff([]string{"new", "applied"}, settled); diff != "" { // else a later change of the guest would be a conflict
		t.Error(diff)
	}
}

// TestPartlyRemoved has a directory that the guest has removed, and of which an interrupted apply has removed a part: its time is not a conflict,
// but a file in it that has changed is.
func TestPartlyRemoved(t *testing.T) {
	k := newKit(t, mount.Config{}, gone("gone"))
	k.write(t, "gone/file", "old")
	k.began = time.Unix(1, 0)
	k.want(t, "D gone conflict")
	k.applying = 7
	k.want(t, "D gone conflict")
	if err := os.Remove(filepath.Join(k.host, "gone", "file")); err != nil {
		t.Fatal(err)
	}
	k.want(t, "D gone")
}
