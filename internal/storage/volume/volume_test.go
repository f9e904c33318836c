package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestVolumes(t *testing.T) {
	s := In(t.TempDir())
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("a new store: %v, %v", list, err)
	}
	v, err := s.Create("cache")
	if err != nil || v.Name != "cache" || v.Path != s.Data("cache") || v.Created.IsZero() {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := s.Create("cache"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	for _, name := range []string{"", "..", "A", "a/b", ".a", strings.Repeat("a", 64)} {
		if _, err := s.Use(name); err == nil {
			t.Errorf("%q is a name", name)
		}
	}
	first, err := s.Use("cache")
	if err != nil || first.Made {
		t.Fatalf("%+v, %v", first, err)
	}
	second, err := s.Use("cache") // another VM
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(v.Path, "a/b"), 0o755), os.WriteFile(filepath.Join(v.Path, "a/f"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, use := range []*Use{first, second} {
		if err := s.Remove("cache"); !errors.Is(err, ErrInUse) {
			t.Errorf("removed under a VM: %v", err)
		}
		if err := use.Close(); err != nil {
			t.Error(err)
		}
	}
	if list, err := s.List(); err != nil || len(list) != 1 || list[0] != v {
		t.Errorf("%+v, %v", list, err)
	}
	if err := s.Remove("cache"); err != nil {
		t.Error(err)
	}
	if err := s.Remove("cache"); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.dir, "*")); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// TestRemoveWhatAGuestHasLocked: a guest can take the host's user the rights to directories of a volume.
func TestRemoveWhatAGuestHasLocked(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root has all rights")
	}
	s := In(t.TempDir())
	v, err := s.Create("v")
	inner := filepath.Join(v.Path, "a", "b")
	if err = errors.Join(err, os.MkdirAll(inner, 0o755), os.WriteFile(filepath.Join(inner, "f"), nil, 0o600), os.Chmod(inner, 0), os.Chmod(filepath.Dir(inner), 0)); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove("v"); err != nil {
		t.Error(err)
	}
}

// TestIsData: the exception from the rule that nothing in the store is mounted is no wider than it has to be.
func TestIsData(t *testing.T) {
	for path, want := range map[string]bool{
		"volumes/cache/data": true, "volumes/a.b-c_d/data": true,
		"": false, ".": false, "volumes": false, "volumes/cache": false, "volumes/cache/data/x": false, "volumes/cache/lock": false,
		"volumes/../data": false, "volumes//data": false, "volumes/./data": false, "vms/cache/data": false, "x/volumes/cache/data": false, "volumes/A/data": false, "volumes/cache/data/": false,
	} {
		if IsData(path) != want {
			t.Errorf("%q: %v", path, !want)
		}
	}
}
