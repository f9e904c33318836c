//go:build linux

package guest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// newDenials makes a file of denials for this test. Each add waits until its lines are written.
func newDenials(t *testing.T) (d *denials, path string) {
	t.Helper()
	d = &denials{dir: filepath.Join(t.TempDir(), "agentvm")}
	return d, filepath.Join(d.dir, denialsName)
}

func report(t *testing.T, d *denials, lines ...string) {
	t.Helper()
	var tasks sync.WaitGroup
	select {
	case <-d.add(lines, tasks.Go):
	case <-time.After(10 * time.Second):
		t.Fatal("nothing is written")
	}
	tasks.Wait()
}

func TestDenials(t *testing.T) {
	d, path := newDenials(t)
	report(t, d, `{"a":1}`, "text", "two\nlines\r\n", "")
	report(t, d, "later")
	b, err := os.ReadFile(path)
	if want := "{\"a\":1}\ntext\ntwo lines\n\nlater\n"; err != nil || string(b) != want {
		t.Errorf("got %q, %v, want %q", b, err, want)
	}
	for name, want := range map[string]os.FileMode{d.dir: os.ModeDir | 0o755, path: 0o644} {
		if st, err := os.Lstat(name); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
}

// TestDenialsCap: the file keeps the newest lines, whole ones, and never grows over its limit.
func TestDenialsCap(t *testing.T) {
	d, path := newDenials(t)
	shrunk, before := 0, 0
	for i := range 3000 {
		report(t, d, fmt.Sprintf("line %d %s", i, strings.Repeat("x", i%97)))
		if i%10 != 0 {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > maxDenials {
			t.Fatalf("%d bytes after line %d", len(b), i)
		}
		if len(b) < before {
			if shrunk++; len(b) < maxDenials/2-2000 {
				t.Errorf("only %d bytes are left", len(b))
			}
		}
		before = len(b)
		if last := bytes.LastIndex(b, []byte("\nline ")); i > 0 && !bytes.HasPrefix(b[last+1:], fmt.Appendf(nil, "line %d ", i)) {
			t.Fatalf("line %d is not the last", i)
		}
		if !bytes.HasPrefix(b, []byte("line ")) {
			t.Fatalf("it begins with %q", b[:20])
		}
	}
	if shrunk < 2 {
		t.Errorf("it was cut %d times", shrunk)
	}
}

// TestDenialsAtOnce reports more than the file may hold.
func TestDenialsAtOnce(t *testing.T) {
	d, path := newDenials(t)
	lines := make([]string, 5000)
	for i := range lines {
		lines[i] = fmt.Sprintf("line %05d of many", i)
	}
	report(t, d, lines...)
	report(t, d, strings.Repeat("y", 1<<20))
	b, err := os.ReadFile(path)
	if err != nil || len(b) > maxDenials || !bytes.HasPrefix(b, []byte("line ")) || !bytes.Contains(b, []byte("\nline 04999 of many\n")) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if last := b[bytes.LastIndexByte(b[:len(b)-1], '\n')+1:]; len(last) != maxDenialLine+1 {
		t.Errorf("the last line has %d bytes", len(last))
	}
}

// TestDenialsHindered: a link that a program puts in the file's place is not followed, and a FIFO is not waited for.
func TestDenialsHindered(t *testing.T) {
	for _, tt := range []struct {
		name  string
		put   func(dir, path string) error
		wants string // the file; "-": whatever
	}{
		{"pipe", func(_, path string) error { return syscall.Mkfifo(path, 0o666) }, "new\n"},
		{"link", func(dir, path string) error { return os.Symlink(dir+"/../victim", path) }, "new\n"},
		{"device", func(_, path string) error { return os.Symlink("/dev/full", path) }, "new\n"},
		{"directory", func(_, path string) error { return os.Mkdir(path, 0o755) }, "-"},
		{"removed", func(dir, _ string) error { return os.Remove(dir) }, "new\n"},
		{"file instead of the directory", func(dir, _ string) error {
			if err := os.Remove(dir); err != nil {
				return err
			}
			return os.WriteFile(dir, nil, 0o600)
		}, "-"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, path := newDenials(t)
			victim := filepath.Join(filepath.Dir(d.dir), "victim")
			if err := os.WriteFile(victim, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(d.dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := tt.put(d.dir, path); err != nil {
				t.Fatal(err)
			}
			report(t, d, "new")
			if b, err := os.ReadFile(path); tt.wants != "-" && (err != nil || string(b) != tt.wants) {
				t.Errorf("got %q, %v", b, err)
			}
			if b, err := os.ReadFile(victim); err != nil || string(b) != "old" {
				t.Errorf("the link was followed: %q, %v", b, err)
			}
		})
	}
}

// TestDenialsDoNotBlock: while the file cannot be written, reports return, and only the newest lines wait, up to a limit.
func TestDenialsDoNotBlock(t *testing.T) {
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	d := &s.denials
	d.written = make(chan struct{}) // as if a writer were blocked
	for i := range 100 {
		d.add([]string{fmt.Sprint(i), strings.Repeat("z", 4000)}, func(func()) { t.Error("a second writer") })
	}
	begin := time.Now()
	if err := s.ReportDenials([]string{"last"}); err == nil || time.Since(begin) > 5*time.Second {
		t.Errorf("got %v after %v", err, time.Since(begin))
	}
	if len(d.waiting) > maxDenials || !bytes.HasSuffix(d.waiting, []byte("\nlast\n")) {
		t.Errorf("%d bytes wait", len(d.waiting))
	}
}
