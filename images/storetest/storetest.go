// Package storetest serves packages whose tests boot machines: a store with the image that all of them boot. It is
// for tests only, and beside package imagestest because that one serves the tests of package images too.
package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"agentvm/images"
	"agentvm/images/imagestest"
	"agentvm/internal/host/platform"
	"agentvm/internal/test/leaktest"
)

// A Store is the store of one package's tests, filled by the first that asks for its image. The zero value is ready for use
// by Main. Methods may be called by several goroutines.
type Store struct {
	mu         sync.Mutex
	dir, image string
}

// Main is the body of TestMain: it makes the store, runs the tests, which must close what they share, removes the store, and
// finds goroutines that are left. It returns the exit code.
func (s *Store) Main(run func() int) int {
	dir, err := os.MkdirTemp("", "agentvm-store-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s.mu.Lock()
	s.dir = dir
	s.mu.Unlock()
	code := WithOwnUser(run)
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, "remove the store of the tests:", err)
	}
	return leaktest.Check(code)
}

// WithOwnUser runs tests with a folder of the user's configuration that is theirs, so that they neither see what the user who runs them has
// mounted nor add to it. It returns what run does.
func WithOwnUser(run func() int) int {
	dir, err := os.MkdirTemp("", "agentvm-user-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.Mkdir(filepath.Join(dir, "Library"), 0o700) // of macOS
	}
	for name, value := range UserVariables(dir) {
		err = errors.Join(err, os.Setenv(name, value))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return run()
}

// UserVariables are the variables of the environment that place a user's configuration in a folder, with the keys and records that are not a
// store's.
func UserVariables(folder string) map[string]string {
	if runtime.GOOS == "darwin" {
		return map[string]string{"HOME": folder}
	}
	return map[string]string{"XDG_CONFIG_HOME": folder, "AppData": folder}
}

// Dir is the store's folder.
func (s *Store) Dir() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dir
}

// Image names the image that tests boot: Alpine, or images.BuiltinName, as Fill says. In short mode it skips the test.
func (s *Store) Image(tb testing.TB) string {
	tb.Helper()
	if testing.Short() {
		tb.Skip("boots machines")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.image == "" {
		s.image = Fill(tb, s.dir).Name
	}
	return s.image
}

// PlatformEnv is the platform of the image that tests boot, so that those that say nothing of a platform run on another machine.
const PlatformEnv = "AGENTVM_TEST_PLATFORM"

// Architecture is that of the image that tests boot.
func Architecture(tb testing.TB) platform.Architecture {
	tb.Helper()
	of, err := platform.ParseOptional(os.Getenv(PlatformEnv))
	if err != nil {
		tb.Fatalf("%s: %v", PlatformEnv, err)
	}
	return cmp.Or(of, platform.Default)
}

// BuildGuest compiles the Go program in a directory for VMs of the image that tests boot.
func BuildGuest(tb testing.TB, directory, output string) {
	tb.Helper()
	build := exec.CommandContext(tb.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", output, directory)
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+string(Architecture(tb)), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("%v: %s", err, out)
	}
}

// Fill puts Alpine into the store in dir, or, without its release files, the built-in root. When PlatformEnv names another platform than the
// default, the image has a name of its own, which stands for that platform alone.
func Fill(tb testing.TB, dir string) *images.Image {
	tb.Helper()
	of := Architecture(tb)
	image := FillFor(tb, dir, of)
	if of == platform.Default {
		return image
	}
	store, err := images.Open(dir)
	if err == nil {
		image, err = store.For(of).Tag(context.Background(), image.Name, "tests-"+string(of))
	}
	if err != nil {
		tb.Fatal(err)
	}
	return image
}

// FillFor is Fill with the image for an architecture.
func FillFor(tb testing.TB, dir string, architecture platform.Architecture) *images.Image {
	tb.Helper()
	config, ref := images.Config{Dir: dir}, imagestest.Alpine
	mirror, ok := imagestest.Mirror(tb)
	if config.AlpineMirror = mirror; !ok {
		tb.Log("no Alpine release files here: this runs on the built-in BusyBox root")
		ref = images.BuiltinName
	}
	store, err := config.Open()
	if err != nil {
		tb.Fatal(err)
	}
	image, err := store.For(architecture).Resolve(context.Background(), ref)
	if err != nil {
		tb.Fatal(err)
	}
	return image
}

// RawDisk writes the root disk of an image of the store in dir, as the guest reads it, to a file of the test, and returns its path.
func RawDisk(tb testing.TB, dir string, image *images.Image) string {
	tb.Helper()
	store, err := images.Open(dir)
	if err != nil {
		tb.Fatal(err)
	}
	disk, err := store.OpenRootDisk(image)
	if err != nil {
		tb.Fatal(err)
	}
	defer disk.Close()
	f, err := os.Create(filepath.Join(tb.TempDir(), "root.erofs"))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, io.NewSectionReader(disk, 0, disk.Size())); err != nil {
		tb.Fatal(err)
	}
	return f.Name()
}
