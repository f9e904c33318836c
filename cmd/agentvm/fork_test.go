package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
)

func TestForkNames(t *testing.T) {
	for _, tt := range []struct {
		name    string
		list    []string
		counted bool
		count   int
		want    []string // nil: an error
	}{
		{"one", []string{"a"}, false, 1, []string{"a"}},
		{"several", []string{"a", "b"}, false, 1, []string{"a", "b"}},
		{"counted", []string{"a"}, true, 2, []string{"a-1", "a-2"}},
		{"counted once", []string{"a"}, true, 1, []string{"a-1"}},
		{"none", []string{"a"}, true, 0, nil},
		{"too many", []string{"a"}, true, maxForks + 1, nil},
		{"several counted", []string{"a", "b"}, true, 2, nil},
		{"twice", []string{"a", "a"}, false, 1, nil},
		{"no name", []string{"A"}, false, 1, nil},
	} {
		got, err := forkNames(tt.list, tt.counted, tt.count)
		if !slices.Equal(got, tt.want) || (err == nil) != (tt.want != nil) {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
	}
}

// TestImpersonal passes an archive on without machine-ids, whatever they are called.
func TestImpersonal(t *testing.T) {
	var in, out bytes.Buffer
	w := tar.NewWriter(&in)
	for _, name := range []string{"./", "./etc/machine-id", "etc/../etc/machine-id", "/var/lib/dbus/machine-id", "./etc/machine-id.old", "root/etc/machine-id"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: 3, Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, "abc"); err != nil && name != "./" {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := impersonal(&in, &out); err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if want := []string{"./", "./etc/machine-id.old", "root/etc/machine-id"}; !slices.Equal(names, want) {
		t.Errorf("passed on %q, want %q", names, want)
	}
	if err := impersonal(bytes.NewReader(bytes.Repeat([]byte("x"), 2000)), io.Discard); err == nil {
		t.Error("no error of what is no archive")
	}
}
