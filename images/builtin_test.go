package images

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// provenance is what images/busybox/build.sh says about its result.
type provenance struct {
	BusyBox string `json:"busybox_sha256"`
	Sources string `json:"sources_sha256"`
	Root    string `json:"root_tar_gz_sha256"`
}

// TestBuiltinIsUpToDate fails when a source of the built-in root changed and root.tar.gz did not.
func TestBuiltinIsUpToDate(t *testing.T) {
	text, err := os.ReadFile("busybox/provenance.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded provenance
	if err := json.Unmarshal(text, &recorded); err != nil {
		t.Fatal(err)
	}
	if got := hashOf(builtinRoot); got != recorded.Root {
		t.Errorf("root.tar.gz has sha256 %s, recorded is %s: run images/busybox/build.sh", got, recorded.Root)
	}
	if got := sourcesHash(t); got != recorded.Sources {
		t.Errorf("the sources have sha256 %s, recorded is %s: run images/busybox/build.sh", got, recorded.Sources)
	}
}

// sourcesHash is the hash of what sha256sum prints about the sources, as build.sh computes it.
func sourcesHash(t testing.TB) string {
	t.Helper()
	names := []string{"applets", "build.sh"}
	below, err := filepath.Glob("busybox/root/etc/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range below {
		names = append(names, filepath.ToSlash(strings.TrimPrefix(name, "busybox"+string(filepath.Separator))))
	}
	list := sha256.New()
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join("busybox", name))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(list, "%s  %s\n", hashOf(text), name)
	}
	return fmt.Sprintf("%x", list.Sum(nil))
}

func TestBuiltin(t *testing.T) {
	s := openStore(t, "http://127.0.0.1:1")
	image, err := s.Resolve(t.Context(), BuiltinName)
	if err != nil {
		t.Fatal(err)
	}
	if image.Architecture != Architecture || image.Ref != "builtin" {
		t.Errorf("image %+v", image)
	}
	tree := readDisk(t, image.RootDisk)
	for path, want := range map[string]uint16{
		"bin/busybox": typeRegular | 0o755, "bin/sh": typeSymlink | 0o777, "etc/passwd": typeRegular | 0o644, "root": typeDir | 0o700,
		"proc": typeDir | 0o755, "usr/share/doc/busybox/copyright": typeRegular | 0o644,
	} {
		if x := tree[path]; x == nil || x.Mode != want || x.UID != 0 || x.GID != 0 {
			t.Errorf("%s: %+v, want mode %o", path, x, want)
		}
	}
	fsck(t, image.RootDisk)
}

// TestBuiltinOfAnotherVersion replaces the root that an older program has stored.
func TestBuiltinOfAnotherVersion(t *testing.T) {
	s := openStore(t, "http://127.0.0.1:1")
	older := bytes.NewReader(makeTar(t, []entry{file("older", nil)}))
	if _, err := s.addArchive(t.Context(), Image{Name: BuiltinName, Ref: "builtin"}, older, nil); err != nil {
		t.Fatal(err)
	}
	image, err := s.Resolve(t.Context(), BuiltinName)
	if err != nil || readDisk(t, image.RootDisk)["bin/busybox"] == nil {
		t.Errorf("resolved %+v, %v", image, err)
	}
}
