package images

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentvm/images/imagestest"
	"agentvm/internal/host/platform"
)

// TestPins looks at the table as a release does, and shows that the mirror is asked for the newest release.
func TestPins(t *testing.T) {
	asked := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Path
		http.NotFound(w, r)
	}))
	defer server.Close()
	for a, want := range map[platform.Architecture]string{
		"":             "/v3.24/releases/riscv64/alpine-minirootfs-3.24.2-riscv64.tar.gz",
		platform.ARM64: "/v3.24/releases/aarch64/alpine-minirootfs-3.24.2-aarch64.tar.gz",
	} {
		if _, err := openStore(t, server.URL).For(a).Resolve(t.Context(), AlpineName); err == nil || errors.Is(err, ErrUnreachable) {
			t.Errorf("error %v", err)
		}
		if asked != want {
			t.Errorf("asked for %s, want %s", asked, want)
		}
	}
	for _, p := range pins {
		_, ok := SupportEnd("alpine:" + p.version)
		for _, a := range platform.Supported() {
			if !ok || !isVersion(p.version, 3) || !isHex(p.sha512[a], 128) {
				t.Errorf("pin %s for %s", p.version, a)
			}
		}
	}
	if !slices.ContainsFunc(pins, func(p pin) bool { return "alpine:"+p.version == UnrecordedAlpine }) {
		t.Errorf("disks lie on %s, which is not pinned", UnrecordedAlpine)
	}
}

func TestSupportEnd(t *testing.T) {
	for name, want := range map[string]string{
		"alpine:3.20.3": "2026-04-01", "alpine:3.20": "2026-04-01", "alpine:3.20.9": "2026-04-01", "alpine:3.24.2": "2028-05-01",
		"alpine:3.2": "", "alpine:3.200.1": "", "alpine:latest": "", "alpine": "", "docker.io/library/alpine:3.20": "", "busybox": "",
	} {
		got := ""
		if end, ok := SupportEnd(name); ok {
			got = end.Format(time.DateOnly)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestSameImage(t *testing.T) {
	for _, test := range []struct {
		ref, name string
		want      bool
	}{
		{"alpine", "alpine:3.20.3", true},
		{"alpine", "alpine:3.24.2", true},
		{"alpine", "alpine:3.21.0", false},
		{"alpine", "busybox", false},
		{"alpine:3.24.2", "alpine:3.20.3", false},
		{"python", "python:latest", true},
		{"docker://python:3", "python:3", true},
		{"mine", "mine", true},
		{"mine", "other", false},
		{"", "alpine:3.20.3", false},
	} {
		if got := SameImage(test.ref, test.name); got != test.want {
			t.Errorf("SameImage(%q, %q) = %v", test.ref, test.name, got)
		}
	}
}

// TestDefaultOffline resolves the default image where no server can be reached, from a store with an earlier release and from an empty one.
func TestDefaultOffline(t *testing.T) {
	t.Setenv("AGENTVM_IMAGE", "")
	dir := t.TempDir()
	offline := openStoreIn(t, dir, "http://127.0.0.1:1")
	if image, notice, err := offline.ResolveDefault(t.Context()); err != nil || image.Name != BuiltinName || !strings.Contains(notice, "BusyBox") {
		t.Errorf("an empty store: %+v, %q, %v", image, notice, err)
	}
	if _, err := openStoreIn(t, dir, genuine(t)).Pull(t.Context(), imagestest.Alpine, nil); err != nil {
		t.Fatal(err)
	}
	if image, notice, err := offline.ResolveDefault(t.Context()); err != nil || image.Name != imagestest.Alpine || !strings.Contains(notice, "using alpine:3.20.3") {
		t.Errorf("with an earlier release: %+v, %q, %v", image, notice, err)
	}
	t.Setenv("AGENTVM_IMAGE", "alpine:3.24.2")
	if _, _, err := offline.ResolveDefault(t.Context()); !errors.Is(err, ErrUnreachable) {
		t.Errorf("the user has named another: %v", err)
	}
}

// TestImportAlpine takes the file of a pinned release without any server, under its own name only.
func TestImportAlpine(t *testing.T) {
	folder, ok := imagestest.Folder(t)
	if !ok {
		t.Skip("no genuine Alpine release here: set " + imagestest.FolderEnv)
	}
	archive, err := os.ReadFile(filepath.Join(folder, "alpine-minirootfs-3.20.3-riscv64.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	damaged := slices.Clone(archive)
	damaged[len(damaged)/2] ^= 1
	for _, test := range []struct {
		name    string
		archive []byte
		want    string // the image, or a part of the error
	}{
		{"alpine", archive, "alpine:3.20.3"},
		{"alpine:3.20.3", archive, "alpine:3.20.3"},
		{"alpine:3.24.2", archive, "not the alpine-minirootfs file"},
		{"alpine:3.21.0", archive, "no checksum for alpine:3.21.0"},
		{"alpine:latest", archive, "no checksum for alpine:latest"},
		{"alpine", damaged, "not the alpine-minirootfs file"},
		{"alpine", nil, "not the alpine-minirootfs file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := openStore(t, "http://127.0.0.1:1")
			image, err := s.Import(t.Context(), test.name, bytes.NewReader(test.archive))
			if err != nil {
				if !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want %s", err, test.want)
				}
				if left := files(t, s); len(left) != 0 {
					t.Errorf("left behind: %q", left)
				}
				return
			}
			if image.Name != test.want || !s.usable(image) {
				t.Errorf("%+v, want %s", image, test.want)
			}
			if found, err := s.Resolve(t.Context(), imagestest.Alpine); err != nil || found.RootDiskDigest != image.RootDiskDigest {
				t.Errorf("resolved: %+v, %v", found, err)
			}
		})
	}
}

// TestMirrorInFolder pulls from a directory of this host with a mirror's tree.
func TestMirrorInFolder(t *testing.T) {
	fake := newFakeRelease(t)
	root := filepath.Join(t.TempDir(), "the mirror")
	below := filepath.Join(root, "v9.9", "releases", "riscv64")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(below, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("latest-releases.yaml", []byte(fake.list("9.9.1")))
	write("alpine-minirootfs-9.9.1-riscv64.tar.gz", fake.archive)
	write("alpine-minirootfs-9.9.2-riscv64.tar.gz", fake.archive)
	write("alpine-minirootfs-9.9.2-riscv64.tar.gz.sha512", []byte(strings.Repeat("0", 128)))
	if err := os.Mkdir(filepath.Join(below, "alpine-minirootfs-9.9.3-riscv64.tar.gz.sha512"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.ToSlash(root)
	s := openStore(t, "file:///"+strings.TrimPrefix(strings.ReplaceAll(path, " ", "%20"), "/"))
	if s.AlpineMirror() != "" {
		t.Errorf("guests are to ask %s", s.AlpineMirror())
	}
	for ref, want := range map[string]string{"alpine:9.9": "", "alpine:9.9.1": "", "alpine:9.9.2": "checksum is wrong", "alpine:9.9.3": "no Alpine release 9.9.3", "alpine": "there is no such file"} {
		_, err := s.Pull(t.Context(), ref, nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", ref, err, want)
		}
	}
}

// TestNoRedirectToFiles: a server cannot have files of this host read.
func TestNoRedirectToFiles(t *testing.T) {
	server := httptest.NewServer(http.RedirectHandler("file:///etc/hostname", http.StatusFound))
	defer server.Close()
	if _, err := openStore(t, server.URL).Pull(t.Context(), "alpine:9.9", nil); err == nil || !strings.Contains(err.Error(), "unsupported protocol scheme") {
		t.Errorf("error %v", err)
	}
}
