package vm_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/share/mount"
	"agentvm/vm"
)

// copied adds a host directory at /src, which the guest changes for itself.
func copied(dir string) func(*vm.Config) {
	return func(c *vm.Config) {
		c.Mounts = append(c.Mounts, mount.Spec{HostPath: dir, GuestPath: "/src", CopyOnWrite: true})
	}
}

// wantChanges compares the changes of a VM, one a line: status, path, and what else there is to say.
func wantChanges(t *testing.T, v *vm.VM, want ...string) {
	t.Helper()
	list, err := v.Changes().List(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, lines(list)); diff != "" {
		t.Error(diff)
	}
}

func lines(list []vm.Change) (lines []string) {
	for _, c := range list {
		line := c.Status.String() + " " + c.Path
		if c.From != "" {
			line = c.Status.String() + " " + c.From + " -> " + c.Path
		}
		if c.Conflict {
			line += " conflict"
		}
		if c.Refused != "" {
			line += " refused: " + c.Refused
		}
		lines = append(lines, line)
	}
	return lines
}

// snapshotOf is what a directory of the host has, one file a line.
func snapshotOf(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		fmt.Fprintf(&b, "%s %v", filepath.ToSlash(rel), info.Mode())
		switch {
		case info.Mode().IsRegular():
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", text)
		case info.Mode().Type() == os.ModeSymlink:
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

func TestCopyOnWrite(t *testing.T) {
	host := t.TempDir()
	write(t, filepath.Join(host, "file"), "from the host\n")
	write(t, filepath.Join(host, "gone"), "gone\n")
	write(t, filepath.Join(host, "touched"), "touched\n")
	write(t, filepath.Join(host, "program"), "#!/bin/sh\n")
	was := snapshotOf(t, host)
	v := ownVM(t, copied(host))
	wantChanges(t, v)
	wantOutput(t, v, "cat /src/file; echo more >>/src/file; cat /src/file; rm /src/gone; echo new >/src/new; touch /src/touched; chmod 755 /src/program; ls /src",
		"from the host\nfrom the host\nmore\nfile\nnew\nprogram\ntouched\n")
	if now := snapshotOf(t, host); now != was {
		t.Errorf("the host has\n%s\nafter\n%s", now, was)
	}
	wantChanges(t, v, "M file", "D gone", "A new", "M program")
	var patch bytes.Buffer
	if _, err := v.Changes().WriteDiff(limited(t), &patch); err != nil {
		t.Fatal(err)
	}
	const want = `diff --git a/file b/file
--- a/file
+++ b/file
@@ -1,1 +1,2 @@
 from the host
+more
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1,1 +0,0 @@
-gone
diff --git a/new b/new
new file mode 100644
--- /dev/null
+++ b/new
@@ -0,0 +1,1 @@
+new
diff --git a/program b/program
old mode 100644
new mode 100755
`
	if diff := cmp.Diff(want, patch.String()); diff != "" {
		t.Error(diff)
	}
	applied, err := v.Changes().Apply(limited(t), vm.ApplyOptions{})
	if err != nil || len(applied.Done) != 4 || len(applied.Skipped) != 0 {
		t.Fatalf("%v, %v", applied, err)
	}
	const after = `file -rw-r--r-- "from the host\nmore\n"
new -rw-r--r-- "new\n"
program -rwxr-xr-x "#!/bin/sh\n"
touched -rw-r--r-- "touched\n"
`
	if diff := cmp.Diff(after, snapshotOf(t, host)); diff != "" {
		t.Error(diff)
	}
	wantChanges(t, v)

	// What was applied is not a conflict when the guest changes it again.
	wantOutput(t, v, "echo again >>/src/file; rm /src/new /src/touched; chmod 700 /src/program", "")
	wantChanges(t, v, "M file", "D new", "M program", "D touched")
}

// TestCopyOnWriteHostChanges has the host change what is below the guest's layer while the guest has it in memory.
func TestCopyOnWriteHostChanges(t *testing.T) {
	host := t.TempDir()
	at := func(name string) string { return filepath.Join(host, name) }
	if err := os.MkdirAll(at("dir/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"written", "replaced", "removed", "back", "dir/file", "dir/sub/file", "both"} {
		write(t, at(name), "old\n")
	}
	v := ownVM(t, copied(host))
	look := "cd /src && cat written replaced back dir/file dir/sub/file both; cat removed"
	wantOutput(t, v, look, strings.Repeat("old\n", 7))
	wantOutput(t, v, "echo guest >/src/both", "")
	replace := func(name, text string) {
		t.Helper()
		write(t, at(name)+".new", text)
		if err := os.Rename(at(name)+".new", at(name)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		text := fmt.Sprintf("host %d\n", i)
		write(t, at("written"), text)
		replace("replaced", text)
		replace("dir/file", text)
		replace("both", text)
		for _, name := range []string{"removed", "back"} {
			if err := os.Remove(at(name)); i == 0 && err != nil {
				t.Fatal(err)
			}
		}
		r := mustRun(t, v, vm.Command{Line: "cd /src; cat removed back; ls | grep -E '^(removed|back)$'"})
		if string(r.Stdout) != "" || strings.Count(string(r.Stderr), "No such file") != 2 {
			t.Errorf("what the host has removed: %q, %q", r.Stdout, r.Stderr)
		}
		write(t, at("back"), text)
		write(t, at("new"), text)
		wantOutput(t, v, "cd /src && cat written replaced back dir/file dir/sub/file both new", text+text+text+text+"old\nguest\n"+text)
	}
	wantChanges(t, v, "M both conflict")
	wantOutput(t, v, "for i in $(seq 100); do stat /src/removed >/dev/null 2>&1 || break; sleep 0.1; done; stat /src/removed 2>&1 || :", "stat: can't stat '/src/removed': No such file or directory\n")

	// A directory that goes and comes, with a program in it; nothing of this harms the guest.
	p, err := v.Start(limited(t), vm.Command{Line: "cd /src/dir/sub && sleep 100"})
	if err != nil {
		t.Fatal(err)
	}
	wantOutput(t, v, "until test -n \"$(pidof sleep)\"; do sleep 0.05; done", "")
	if err := os.Rename(at("dir"), at("other")); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, v, "cat /src/other/sub/file; ls /src/dir >/dev/null 2>&1 || echo gone; echo kept >/src/other/sub/file; cat /src/other/sub/file", "old\ngone\nkept\n")
	if err := os.Rename(at("other"), at("dir")); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, v, "cat /src/dir/sub/file; dmesg | grep -c -i -E 'bug|oops|warning:' || :", "old\n0\n")
	_ = p.Kill(limited(t))
	wantChanges(t, v, "M both conflict", "A other conflict", "A other/sub conflict", "A other/sub/file conflict")
}

// TestCopyOnWriteClock has programs of the guest set its clock an hour back and an hour ahead before layers begin: what the host changed before is no
// conflict, and what it changes afterwards is one.
func TestCopyOnWriteClock(t *testing.T) {
	host := t.TempDir()
	v := ownVM(t, copied(host))
	for i, hours := range []int{-1, 1} {
		wantOutput(t, v, fmt.Sprintf("date -s @%d >/dev/null", time.Now().Add(time.Duration(hours)*time.Hour).Unix()), "")
		added := fmt.Sprint("/added", i)
		for guest, begin := range map[string]func(dir string) error{
			"/src": func(string) error { return v.Changes().Discard(limited(t), "/src") },
			added: func(dir string) error {
				return v.AddMount(limited(t), vm.Mount{HostPath: dir, GuestPath: added, CopyOnWrite: true})
			},
		} {
			dir := host
			if guest == added {
				dir = t.TempDir()
			}
			for _, name := range []string{"before", "since"} {
				write(t, filepath.Join(dir, name), "old\n")
			}
			if err := begin(dir); err != nil {
				t.Fatal(err)
			}
			time.Sleep(30 * time.Millisecond) // the clock of files has steps
			write(t, filepath.Join(dir, "since"), "new\n")
			wantOutput(t, v, "rm "+guest+"/before "+guest+"/since", "")
			list, err := v.Changes().List(limited(t), guest)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"D before", "D since conflict"}, lines(list)); diff != "" {
				t.Errorf("%s, clock %+d hours: %s", guest, hours, diff)
			}
			if err := v.Changes().Discard(limited(t), guest); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestCopyOnWriteHostile has root of the guest do to its layer what no program does.
func TestCopyOnWriteHostile(t *testing.T) {
	host, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	write(t, secret, "secret")
	write(t, filepath.Join(host, ".env"), "TOKEN=xyzzy\n")
	write(t, filepath.Join(host, "file"), "old\n")
	if err := os.Symlink(filepath.Dir(secret), filepath.Join(host, "out")); err != nil {
		t.Fatal(err)
	}
	v := ownVM(t, func(c *vm.Config) {
		c.Mounts = []vm.Mount{{HostPath: host, GuestPath: "/src", CopyOnWrite: true, Masks: []string{".env"}}}
	})
	r := mustRun(t, v, vm.Command{Line: `cd /src || exit 1
cat .env; ls -a | grep env; echo TOKEN=mine >.env
mkfifo fifo; mknod null c 1 3; echo new >setuid; chmod 4755 setuid; rm out; mkdir out; echo planted >out/secret; ln -s / root
printf x >"$(printf 'a\nb\033[2J')"; mkdir .git; echo x >.git/config; chmod 4755 file
cd / ; mount -t tmpfs none /src; echo hidden >/src/over
layer=$(ls -d /proc/1/fd/*/cow/*/data 2>/dev/null | head -n 1); test -n "$layer" || exit 2
ln -s /etc "$layer/etc"; mknod "$layer/never" c 0 0; mkdir "$layer/forged"; echo x >"$layer/forged/x"; ls -a "$layer/../lower"`})
	if r.ExitCode != 0 || strings.Contains(string(r.Stdout), "xyzzy") || strings.Contains(string(r.Stdout), "env") {
		t.Errorf("exit %d: %s%s", r.ExitCode, r.Stdout, r.Stderr)
	}
	var list []string
	found, err := v.Changes().List(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines(found) {
		before, _, _ := strings.Cut(line, " refused")
		list = append(list, before+map[bool]string{true: " refused"}[before != line])
	}
	want := []string{
		"A .env refused", "A .git", "A .git/config refused", "A a\nb\x1b[2J", "A etc", "A fifo refused", "M file", "A forged", "A forged/x", "A null refused", "T out", "A out/secret",
		"A root", "A setuid",
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Error(diff)
	}
	if _, err := v.Changes().Apply(limited(t), vm.ApplyOptions{}); err != nil {
		t.Error(err)
	}
	const after = `.env -rw-r--r-- "TOKEN=xyzzy\n"
.git drwxr-xr-x
a
b` + "\x1b" + `[2J -rw-r--r-- "x"
etc Lrwxrwxrwx -> /etc
file -rwxr-xr-x "old\n"
forged drwxr-xr-x
forged/x -rw-r--r-- "x\n"
out drwxr-xr-x
out/secret -rw-r--r-- "planted\n"
root Lrwxrwxrwx -> /
setuid -rwxr-xr-x "new\n"
`
	if diff := cmp.Diff(after, snapshotOf(t, host)); diff != "" {
		t.Error(diff)
	}
	if text, err := os.ReadFile(secret); string(text) != "secret" {
		t.Errorf("%q, %v", text, err)
	}
	if err := v.Changes().Discard(limited(t)); err != nil { // which unmounts what the guest has put over it
		t.Logf("discard: %v", err)
	}
}

// TestCopyOnWriteForks has programs and a read-only root while layers are mounted anew.
func TestCopyOnWriteForks(t *testing.T) {
	host := t.TempDir()
	write(t, filepath.Join(host, "file"), "old\n")
	v := ownVM(t, func(c *vm.Config) {
		copied(host)(c)
		c.ReadOnlyRoot = true
	})
	wantOutput(t, v, "touch /root/x 2>/dev/null || echo read-only; echo begun >/src/begun; cat /src/file", "read-only\nold\n")
	if _, err := v.Start(limited(t), vm.Command{Line: "cd /src && exec 3>>log && while sleep 0.1; do echo tick >&3 || exit; done"}); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, v, "until test -s /src/log; do sleep 0.05; done; rm -f /src/none", "")
	forks := append(fork(t, v, 2, vm.ForkOptions{}), fork(t, v, 1, vm.ForkOptions{KeepPrograms: true})...)
	for i, f := range forks {
		wantOutput(t, f, fmt.Sprintf("cat /src/begun; echo fix %d >/src/file; rm -f /src/log; cat /src/file", i), fmt.Sprintf("begun\nfix %d\n", i))
	}
	for i, f := range forks[:2] {
		wantChanges(t, f, "A begun", "M file")
		if i == 1 {
			if _, err := f.Changes().Apply(limited(t), vm.ApplyOptions{Paths: []string{"/src/file"}}); err != nil {
				t.Error(err)
			}
		}
	}
	if text, err := os.ReadFile(filepath.Join(host, "file")); string(text) != "fix 1\n" {
		t.Errorf("%q, %v", text, err)
	}
	wantChanges(t, forks[0], "A begun", "M file conflict")
	wantChanges(t, forks[1], "A begun")
	wantOutput(t, forks[2], "cat /src/file /src/begun", "fix 2\nbegun\n")
	wantOutput(t, v, "cat /src/file", "fix 1\n") // unchanged by this VM: the host's
	saved := filepath.Join(t.TempDir(), "saved")
	if _, err := forks[1].Snapshot(limited(t), saved, vm.SnapshotOptions{}); err != nil {
		t.Fatal(err)
	}
	c := config(t)
	copied(host)(&c)
	restored, err := vm.Restore(limited(t), saved, c, vm.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer restored.Close()
	wantChanges(t, restored, "A begun")
}

// TestCopyOnWriteLarge takes over a file that is larger than what either side keeps of it in memory, and many small ones.
func TestCopyOnWriteLarge(t *testing.T) {
	host := t.TempDir()
	v := ownVM(t, func(c *vm.Config) {
		copied(host)(c)
		c.Disk = filepath.Join(t.TempDir(), "disk")
		if err := vm.CreateDisk(c.Disk, 2<<30); err != nil {
			t.Fatal(err)
		}
	})
	wantOutput(t, v, "cd /src && dd if=/dev/zero bs=1M count=100 of=large 2>/dev/null && echo end >>large; mkdir many; cd many; for i in $(seq 1000); do echo $i >$i; done", "")
	began := time.Now()
	applied, err := v.Changes().Apply(longer(t), vm.ApplyOptions{})
	if err != nil || len(applied.Done) != 1002 {
		t.Fatalf("%d changes, %v", len(applied.Done), err)
	}
	t.Logf("applied in %v", time.Since(began))
	f, err := os.Open(filepath.Join(host, "large"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want, got := sha256.New(), sha256.New()
	want.Write(append(make([]byte, 100<<20), "end\n"...))
	if _, err := io.Copy(got, f); err != nil || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Errorf("another content, %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(host, "many/1000")); string(text) != "1000\n" {
		t.Errorf("%q, %v", text, err)
	}
	wantChanges(t, v)
	began = time.Now()
	wantChanges(t, v)
	t.Logf("compared in %v", time.Since(began))
}

// TestCopyOnWriteDirectories has programs of the guest rename, replace and remove directories, and files change their types.
func TestCopyOnWriteDirectories(t *testing.T) {
	host := t.TempDir()
	for _, name := range []string{"moved/a", "moved/sub/b", "replaced/old", "replaced/both", "removed/x/y", "kept/file", "renamed", "becomes-dir", "becomes-link"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(host, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(host, name), name+"\n")
	}
	if err := os.Symlink("kept", filepath.Join(host, "link")); err != nil {
		t.Fatal(err)
	}
	v := ownVM(t, copied(host))
	wantOutput(t, v, `cd /src && mv moved to && rm -r replaced && mkdir replaced && echo new >replaced/new && echo both >replaced/both && rm -r removed &&
chmod 700 kept && mv renamed kept/name && echo more >>kept/name && rm becomes-dir && mkdir becomes-dir && echo in >becomes-dir/in && ln -sf kept/file becomes-link &&
ln -sfn nowhere link && mkdir empty && ln kept/file kept/hard`, "")
	wantChanges(t, v, "T becomes-dir", "A becomes-dir/in", "T becomes-link", "A empty", "M kept", "A kept/hard", "R renamed -> kept/name", "M link", "D moved", "D removed",
		"M replaced/both", "A replaced/new", "D replaced/old", "A to", "A to/a", "A to/sub", "A to/sub/b")
	was := string(mustRun(t, v, vm.Command{Line: "cd /src && find . | sort | xargs stat -c '%n %A'; cat $(find . -type f | sort)"}).Stdout)
	patched := t.TempDir()
	if err := os.CopyFS(patched, os.DirFS(host)); err != nil {
		t.Fatal(err)
	}
	var patch bytes.Buffer
	if _, err := v.Changes().WriteDiff(limited(t), &patch); err != nil {
		t.Fatal(err)
	}
	applied, err := v.Changes().Apply(limited(t), vm.ApplyOptions{})
	if err != nil || len(applied.Skipped) != 0 {
		t.Fatalf("%v, %v", applied, err)
	}
	wantChanges(t, v)
	if gitApply(t, patched, patch.Bytes()) {
		if diff := cmp.Diff(filesOf(t, host), filesOf(t, patched)); diff != "" {
			t.Errorf("applied by agentvm (-), and the patch by git (+):\n%s", diff)
		}
	}
	fresh := ownVM(t, copied(host))
	if diff := cmp.Diff(was, string(mustRun(t, fresh, vm.Command{Line: "cd /src && find . | sort | xargs stat -c '%n %A'; cat $(find . -type f | sort)"}).Stdout)); diff != "" {
		t.Errorf("what the guest had (-), what the host has (+):\n%s", diff)
	}

	// All is applied, so that the guest can remove what it has made, and the host's files with it.
	wantOutput(t, v, "rm -r /src/to /src/replaced /src/kept", "")
	if _, err := v.Changes().Apply(limited(t), vm.ApplyOptions{}); err != nil {
		t.Error(err)
	}
	const after = `becomes-dir drwxr-xr-x
becomes-dir/in -rw-r--r-- "in\n"
becomes-link Lrwxrwxrwx -> kept/file
empty drwxr-xr-x
link Lrwxrwxrwx -> nowhere
`
	if diff := cmp.Diff(after, snapshotOf(t, host)); diff != "" {
		t.Error(diff)
	}
}

// gitApply applies a patch with git, and says whether there is one.
func gitApply(t *testing.T, dir string, patch []byte) (applied bool) {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		return false
	}
	command := exec.Command(git, "apply", "-")
	command.Dir, command.Stdin = dir, bytes.NewReader(patch)
	command.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir)) // no repository of the host
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("git apply: %v: %s\n%s", err, out, patch)
	}
	return true
}

// filesOf is snapshotOf without the directories, of which a patch has none.
func filesOf(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(snapshotOf(t, dir)) {
		if strings.Contains(line, `"`) || strings.Contains(line, " -> ") {
			b.WriteString(line)
		}
	}
	return b.String()
}
