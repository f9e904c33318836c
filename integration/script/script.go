// Package script runs scripts of the command line in the format of testscript, for the packages beside this one. There are several so that
// their tests run side by side.
package script

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"agentvm/images"
	"agentvm/images/imagestest"
	"agentvm/images/storetest"
)

// Main builds the program, runs a package's tests with it, and ends the process.
func Main(m *testing.M) {
	os.Exit(withProgram(m.Run))
}

// withProgram is Main without its end. The program is found in PATH, as the scripts and their commands call it, and all scripts have one store, so that the image
// is fetched and the module compiled once.
func withProgram(run func() int) int {
	dir, err := os.MkdirTemp("", "agentvm-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := prepare(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return run()
}

func prepare(dir string) error {
	for _, name := range []string{"bin", "store", filepath.Join("home", "Library")} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			return err
		}
	}
	program := filepath.Join(dir, "bin", "agentvm")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, modulePath()+"/cmd/agentvm").CombinedOutput(); err != nil {
		return fmt.Errorf("go build of the program: %w\n%s", err, out)
	}
	return errors.Join(
		os.Setenv("PATH", filepath.Dir(program)+string(os.PathListSeparator)+os.Getenv("PATH")),
		os.Setenv("AGENTVM_STORE", filepath.Join(dir, "store")),
	)
}

// modulePath is this module's, whatever it has been renamed to.
func modulePath() string {
	return strings.TrimSuffix(reflect.TypeFor[images.Config]().PkgPath(), "/images")
}

// Run runs the scripts of testdata. They boot VMs, on Alpine where its release files are to be had, else on the built-in BusyBox root;
// the condition [alpine] tells them which.
func Run(t *testing.T) {
	if testing.Short() {
		t.Skip("boots VMs")
	}
	store := os.Getenv("AGENTVM_STORE")
	mirror, alpine := imagestest.Mirror(t)
	image := imagestest.Alpine // of the release files; the default is another
	if !alpine {
		image, mirror = "", "http://127.0.0.1:1"
		t.Log("no Alpine release files here: this runs on the built-in BusyBox root")
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("AGENTVM_STORE", store)
			env.Setenv("MODULE", modulePath())
			for name, value := range storetest.UserVariables(filepath.Join(filepath.Dir(store), "home")) { // a script's own home is not there
				env.Setenv(name, value)
			}
			env.Setenv("AGENTVM_ALPINE_MIRROR", mirror)
			env.Setenv("AGENTVM_IMAGE", image)
			env.Setenv("AGENTVM_REGISTRY_MIRRORS", "docker.io=http://127.0.0.1:1") // tests reach only loopback
			env.Setenv("AGENTVM_DEBUG", "")
			env.Setenv("FORKS", "20")
			env.Setenv("DEPTH", "15")
			if os.Getenv("CI") == "true" {
				env.Setenv("DEPTH", "50")
			}
			return nil
		},
		Condition: func(condition string) (bool, error) {
			switch condition {
			case "alpine":
				return alpine, nil
			case "namespaces":
				return namespaces()
			}
			return false, fmt.Errorf("unknown condition %q", condition)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "random": random, "sha256": sha256File, "wasm": wasmFile, "elf": elfFile,
			"serve": serve, "freeport": freePort, "fetch": fetch, "datagram": datagram, "pcap": pcapFile,
			"dockerimage": dockerImage, "dockerhub": dockerHub, "foreign": foreignSnapshot, "servetls": serveTLS, "serveunix": serveUnix, "ownstore": ownStore, "killdaemon": killDaemon, "until": until, "together": together, "capture": capture,
		},
	})
}

// namespaces says whether this user can mount things in a namespace of its own.
func namespaces() (bool, error) {
	err := exec.Command("unshare", "-rm", "true").Run()
	if err != nil && os.Getenv("CI") == "true" {
		return false, fmt.Errorf("unshare: %w (Debian package util-linux)", err)
	}
	return err == nil, nil
}

// exits runs a command and checks its exit code: exits CODE COMMAND [ARGS...].
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARGS...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// random writes random bytes, the same each time: random FILE SIZE.
func random(ts *testscript.TestScript, _ bool, args []string) {
	size, err := strconv.Atoi(args[1])
	ts.Check(err)
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(data)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), data, 0o600))
}

// sha256File puts the digest of a file into a variable: sha256 VARIABLE FILE.
func sha256File(ts *testscript.TestScript, _ bool, args []string) {
	data, err := os.ReadFile(ts.MkAbs(args[1]))
	ts.Check(err)
	sum := sha256.Sum256(data)
	ts.Setenv(args[0], hex.EncodeToString(sum[:]))
}
