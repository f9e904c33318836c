package vm_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/mount"
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

	// What was applied is no conflict when the guest changes it again.
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
