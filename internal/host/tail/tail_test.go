package tail

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func poll(t *testing.T, r *Reader) (list []string) {
	t.Helper()
	if err := r.Poll(func(line []byte) error { list = append(list, string(line)); return nil }); err != nil {
		t.Fatal(err)
	}
	return list
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestPoll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	appendTo(t, path, "one\ntwo\nhal")
	r, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	steps := []struct {
		name   string
		change func()
		want   []string
	}{
		{"whole lines", func() {}, []string{"one", "two"}},
		{"nothing", func() {}, nil},
		{"the rest of a line", func() { appendTo(t, path, "f\n") }, []string{"half"}},
		{"cut off", func() {
			appendTo(t, path, "three\n")
			text, _ := os.ReadFile(path)
			os.WriteFile(path+".1", text, 0o600)
			os.Truncate(path, 0)
			appendTo(t, path, "four\n")
		}, []string{"three", "four"}},
		{"cut off, and nothing kept", func() { os.Remove(path + ".1"); os.Truncate(path, 0); appendTo(t, path, "5\n") }, []string{"5"}},
	}
	for _, step := range steps {
		step.change()
		if diff := cmp.Diff(step.want, poll(t, r)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}

func TestSkipTo(t *testing.T) {
	const text = "one\ntwo\nthree\n"
	for n, want := range map[int64][]string{0: nil, 5: nil, 6: {"three"}, 7: {"three"}, 10: {"two", "three"}, 14: {"one", "two", "three"}, 99: {"one", "two", "three"}} {
		path := filepath.Join(t.TempDir(), "log")
		appendTo(t, path, text)
		r, err := Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.SkipTo(n); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, poll(t, r)); diff != "" {
			t.Errorf("last %d bytes (-want +got):\n%s", n, diff)
		}
		appendTo(t, path, "four\n")
		if got := poll(t, r); len(got) != 1 || got[0] != "four" {
			t.Errorf("after the last %d bytes: %q", n, got)
		}
		r.Close()
	}
}

func TestLongLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	appendTo(t, path, strings.Repeat("x", MaxLine+1))
	r, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Poll(func([]byte) error { return nil }); err == nil {
		t.Error("a line without an end was kept")
	}
}
