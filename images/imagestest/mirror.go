// Package imagestest serves genuine Alpine releases over loopback HTTP, so that tests get them through the same code as
// a download, and has the program of the built-in root. It is for tests only.
package imagestest

import (
	"archive/tar"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"

	"agentvm/internal/host/platform"
)

// FolderEnv names the folder with the release files. Without it the folder shared/images beside the repository is used.
// With "none", for a computer without release files, tests run on the built-in root, also when CI is "true".
const FolderEnv = "AGENTVM_TEST_IMAGES"

// Alpine is the image of the release files that tests have. What is pinned newest has other files.
const Alpine = "alpine:3.20.3"

// Mirror serves the folder of release files as an Alpine mirror until the test ends, and returns its base URL. It returns false when there is
// no such folder; with the environment variable CI set to "true" that fails the test instead.
func Mirror(tb testing.TB) (url string, ok bool) {
	tb.Helper()
	folder, ok := Folder(tb)
	if !ok {
		return "", false
	}
	server := httptest.NewServer(Handler(folder))
	tb.Cleanup(server.Close)
	return server.URL, true
}

// Handler maps /v3.20/releases/ARCH/FILE to FILE in folder.
func Handler(folder string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		dir, file := path.Split(r.URL.Path)
		if ok, _ := path.Match("/v*/releases/*/", dir); !ok || !strings.HasPrefix(file, "alpine-") {
			http.NotFound(w, r)
			return
		}
		http.ServeFile(w, r, filepath.Join(folder, file))
	})
}

// Folder finds the folder of release files.
func Folder(tb testing.TB) (string, bool) {
	tb.Helper()
	folder := os.Getenv(FolderEnv)
	switch folder {
	case "none":
		return "", false
	case "":
		folder = beside()
	}
	if info, err := os.Stat(folder); folder != "" && err == nil && info.IsDir() {
		return folder, true
	}
	if os.Getenv("CI") == "true" {
		tb.Fatalf("no folder of Alpine releases: set %s", FolderEnv)
	}
	return "", false
}

// beside is shared/images next to the repository, or "" outside of one.
func beside() string {
	repository := repository()
	if repository == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(repository), "shared", "images")
}

// repository is the folder of the repository that the working directory is in, or "" outside of one.
func repository() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}

// BuiltinArchive is the file of the built-in root for an architecture: a tar archive, compressed with zstd.
func BuiltinArchive(architecture platform.Architecture) string {
	return filepath.Join(repository(), "images", "busybox", string(architecture)+".tar.zst")
}

// Busybox is the program of the built-in root for an architecture.
func Busybox(tb testing.TB, architecture platform.Architecture) []byte {
	tb.Helper()
	file, err := os.Open(BuiltinArchive(architecture))
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	unpacked, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1))
	if err != nil {
		tb.Fatal(err)
	}
	defer unpacked.Close()
	for archive := tar.NewReader(unpacked); ; {
		header, err := archive.Next()
		if err != nil {
			tb.Fatalf("bin/busybox in %s: %v", file.Name(), err)
		}
		if header.Name != "./bin/busybox" {
			continue
		}
		program, err := io.ReadAll(archive)
		if err != nil {
			tb.Fatal(err)
		}
		return program
	}
}

// MakeImage makes an image for a platform, with a configuration, of layers that are tar archives, compressed or not.
func MakeImage(of v1.Platform, config v1.Config, layers ...string) (v1.Image, error) {
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: of.OS, Architecture: of.Architecture, Variant: of.Variant, Config: config})
	if err != nil {
		return nil, err
	}
	for _, path := range layers {
		layer, err := tarball.LayerFromFile(path)
		if err != nil {
			return nil, err
		}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{CreatedBy: "COPY " + path}}); err != nil {
			return nil, err
		}
	}
	return image, nil
}

// WriteDockerArchive writes what docker save writes of an image that is called ref: for linux/riscv64, with a configuration, of layers
// that are tar archives, compressed or not.
func WriteDockerArchive(file, ref string, config v1.Config, layers ...string) error {
	image, err := MakeImage(v1.Platform{OS: "linux", Architecture: string(platform.RISCV64)}, config, layers...)
	if err != nil {
		return err
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file, tag, image)
}
