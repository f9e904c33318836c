package mount

import (
	"os"
	"path/filepath"
	"testing"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

// TestReopenUnlinked has a file unlinked by another session, and a link to what is masked or outside put in its place: the node of the old
// file must not become one of what the link leads to, and an open one stays that of the old file.
func TestReopenUnlinked(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "mounted")
	writeFile(t, filepath.Join(top, "outside"), "SECRET")
	writeFile(t, filepath.Join(dir, ".env"), "SECRET")
	for _, target := range []string{".env", "../outside", filepath.Join(top, "outside")} {
		t.Run(target, func(t *testing.T) {
			writeFile(t, filepath.Join(dir, "f"), "inside")
			first, second := attach(t, Config{Dir: dir, Masks: []string{".env"}}), attach(t, Config{Dir: dir, Masks: []string{".env"}})
			fid, opened := walk(t, first, "f"), open(t, first, fusetest.ReadWrite, "f")
			if err := second.UnlinkAt("f", 0); err != nil {
				t.Fatal(err)
			}
			if err := second.Symlink(target, "f"); err != nil {
				t.Skip("no symbolic links here: ", err)
			}
			for _, flags := range []fusetest.OpenFlags{fusetest.ReadOnly, fusetest.ReadWrite, fusetest.WriteOnly | openTruncate} {
				err := walk(t, first).Open(fusetest.ReadOnly) // the session continues
				if err != nil {
					t.Error(err)
				}
				err = fid.Open(flags)
				wantErrno(t, err, errno.ESTALE)
			}
			if err := fid.SetAttr(fusetest.SetAttrMask{Size: true}, fusetest.SetAttr{Size: 6}); err != nil { // of the old file, which is open
				t.Error(err)
			}
			wantErrno(t, createIn(walk(t, first), "f"), errno.ELOOP)
			buf := make([]byte, 6)
			if n, err := opened.ReadAt(buf, 0); err != nil || string(buf[:n]) != "inside" {
				t.Errorf("the open file: %q, %v", buf[:n], err)
			}
			if _, err := opened.WriteAt([]byte("change"), 0); err != nil {
				t.Error(err)
			}
			for _, name := range []string{"outside", "mounted/.env"} {
				if got := readFile(t, filepath.Join(top, name)); got != "SECRET" {
					t.Errorf("%s is %q", name, got)
				}
			}
			if err := os.Remove(filepath.Join(dir, "f")); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestOneNode has requests of every kind meet on one node and one open file, which are neither kept nor lost from the count.
func TestOneNode(t *testing.T) {
	for settings := range byte(8) {
		program := []byte{settings}
		for i := range byte(60) {
			for kind := range byte(len(fuzzKinds)) {
				if len(program)+fuzzOperation <= 400*fuzzOperation {
					program = append(program, kind^i<<7, 1, i%4, i%5, i)
				}
			}
		}
		runTwoSessions(t, program)
	}
}
