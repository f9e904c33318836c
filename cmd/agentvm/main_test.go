package main

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"agentvm/images/imagestest"
)

func TestMain(m *testing.M) {
	testscript.Main(tidy{m}, map[string]func(){"agentvm": main})
}

// tidy removes the store that the tests have shared.
type tidy struct{ m *testing.M }

func (t tidy) Run() int {
	defer func() {
		os.RemoveAll(shared.dir)
		if shared.dir != "" {
			os.RemoveAll(shared.dir + ".home")
		}
	}()
	return t.m.Run()
}

// shared is the store of all tests here, so that the image is fetched and the module compiled once.
var shared struct {
	once  sync.Once
	image sync.Once
	dir   string
	err   error
}

// testStore is the shared store, and a mirror for it that is not there when there are no Alpine files.
func testStore(t testing.TB) (dir, mirror string, alpine bool) {
	t.Helper()
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "agentvm-test-"); shared.err == nil {
			shared.err = os.MkdirAll(filepath.Join(shared.dir+".home", "Library"), 0o700)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	if url, ok := imagestest.Mirror(t); ok {
		shared.image.Do(func() { shared.err = os.Setenv("AGENTVM_IMAGE", imagestest.Alpine) }) // of the release files; the default is another
		return shared.dir, url, shared.err == nil
	}
	t.Log("no Alpine release files here: this runs on the built-in BusyBox root")
	return shared.dir, "http://127.0.0.1:1", false
}
