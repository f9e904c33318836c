package mount

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hugelgupf/p9/linux"
	"github.com/hugelgupf/p9/p9"
)

// TestReopenUnlinked has a file unlinked by another session, and a link to what is masked or outside put in its place: a fid of the old
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
			fid, opened := walk(t, first, "f"), open(t, first, p9.ReadWrite, "f")
			if err := second.UnlinkAt("f", 0); err != nil {
				t.Fatal(err)
			}
			if _, err := second.Symlink(target, "f", p9.NoUID, p9.NoGID); err != nil {
				t.Skip("no symbolic links here: ", err)
			}
			for _, flags := range []p9.OpenFlags{p9.ReadOnly, p9.ReadWrite, p9.WriteOnly | openTruncate} {
				_, _, err := walk(t, first).Open(p9.ReadOnly) // the session continues
				if err != nil {
					t.Error(err)
				}
				_, _, err = fid.Open(flags)
				wantErrno(t, err, linux.ELOOP)
			}
			if err := fid.SetAttr(p9.SetAttrMask{Size: true}, p9.SetAttr{}); err == nil {
				t.Error("the link was truncated")
			}
			wantErrno(t, createIn(walk(t, first), "f"), linux.ELOOP)
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

// TestOneFid has requests of every kind meet on one fid: a file that is created while the fid walks elsewhere is neither kept open nor
// lost from the count.
func TestOneFid(t *testing.T) {
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
