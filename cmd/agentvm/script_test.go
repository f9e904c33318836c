package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/rogpeppe/go-internal/testscript"

	"agentvm/images"
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
	once sync.Once
	dir  string
	err  error
}

// TestScript runs the scripts of testdata/script. They boot VMs, on Alpine where its release files are to be had,
// else on the built-in BusyBox root; the condition [alpine] tells them which.
func TestScript(t *testing.T) {
	if testing.Short() {
		t.Skip("boots VMs")
	}
	store, mirror, alpine := testStore(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("AGENTVM_STORE", store)
			env.Setenv("MODULE", strings.TrimSuffix(reflect.TypeFor[images.Config]().PkgPath(), "/images"))
			for name, value := range placeOfKeys(store) {
				env.Setenv(name, value)
			}
			env.Setenv("AGENTVM_ALPINE_MIRROR", mirror)
			env.Setenv("AGENTVM_REGISTRY_MIRRORS", "docker.io=http://127.0.0.1:1") // tests reach only loopback
			env.Setenv("AGENTVM_DEBUG", "")
			env.Setenv("FORKS", "20")
			env.Setenv("DEPTH", "15") // `go test` ends a package's tests after ten minutes
			if os.Getenv("CI") == "true" {
				env.Setenv("DEPTH", "50")
			}
			if raceDetector {
				env.Setenv("FORKS", "3")
				env.Setenv("DEPTH", "5")
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
			"dockerimage": dockerImage, "foreign": foreignSnapshot, "servetls": serveTLS, "serveunix": serveUnix, "ownstore": ownStore, "killdaemon": killDaemon, "until": until, "together": together, "capture": capture,
		},
	})
}

// placeOfKeys has the variables that name a home beside a store, for the key of compiled code: a script's own home is not there.
func placeOfKeys(store string) map[string]string {
	if runtime.GOOS == "darwin" {
		return map[string]string{"HOME": store + ".home"}
	}
	return map[string]string{"XDG_CONFIG_HOME": store + ".home", "AppData": store + ".home"}
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
		return shared.dir, url, true
	}
	t.Log("no Alpine release files here: this runs on the built-in BusyBox root")
	return shared.dir, "http://127.0.0.1:1", false
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

// dockerImage writes an archive of docker save of the built-in root, with a file more and another hidden: dockerimage FILE NAME.
func dockerImage(ts *testscript.TestScript, _ bool, args []string) {
	root, err := filepath.Abs("../../images/busybox/root.tar.gz")
	ts.Check(err)
	layer := ts.MkAbs("layer.tar")
	f, err := os.Create(layer)
	ts.Check(err)
	w := tar.NewWriter(f)
	const program = "#!/bin/sh\necho \"$@\" $GREETING $(id -un) $(pwd)\n"
	for _, h := range []tar.Header{
		{Name: "app/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "app/run", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program))},
		{Name: "bin/.wh.mktemp", Typeflag: tar.TypeReg},
	} {
		ts.Check(w.WriteHeader(&h))
		if h.Size > 0 {
			_, err := io.WriteString(w, program)
			ts.Check(err)
		}
	}
	ts.Check(errors.Join(w.Close(), f.Close()))
	config := v1.Config{
		Entrypoint: []string{"/app/run", "hello"}, Cmd: []string{"world"}, Env: []string{"PATH=/bin:/sbin", "GREETING=from"}, WorkingDir: "/app", User: "1000",
		ExposedPorts: map[string]struct{}{"80/tcp": {}}, StopSignal: "SIGUSR1", Volumes: map[string]struct{}{"/var/data": {}},
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD-SHELL", "test -e /tmp/well"}, Interval: time.Second, Retries: 2},
	}
	ts.Check(imagestest.WriteDockerArchive(ts.MkAbs(args[0]), args[1], config, root, layer))
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

// wasmFile writes a WASI program that exits with a code, traps, or prints its arguments: wasm FILE CODE|trap|args.
func wasmFile(ts *testscript.TestScript, _ bool, args []string) {
	imports, body := wasmImport("proc_exit", 0), ""
	switch args[1] {
	case "trap":
		body = "\x00" // unreachable
	case "args":
		imports = wasmImport("args_sizes_get", 2) + wasmImport("args_get", 2) + wasmImport("fd_write", 3)
		body = "\x41\x00\x41\x0c\x10\x00\x1a" + // args_sizes_get(0, 12): the length of a vector at 8
			"\x41\x10\x41\x80\x08\x10\x01\x1a" + // args_get(16, 1024)
			"\x41\x08\x41\x80\x08\x36\x02\x00" + // its pointer, 1024
			"\x41\x01\x41\x08\x41\x01\x41\x00\x10\x02\x1a" // fd_write(1, 8, 1, 0)
	default:
		code, err := strconv.ParseInt(args[1], 0, 32)
		ts.Check(err)
		bits := func(shift int) byte { return byte(code>>shift)&0x7f | 0x80 }
		body = "\x41" + string([]byte{bits(0), bits(7), bits(14), bits(21), byte(code>>28) & 0x7f}) + "\x10\x00"
	}
	count := strings.Count(imports, "wasi_")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte("\x00asm\x01\x00\x00\x00"+
		wasmSection(1, 4, "\x60\x01\x7f\x00\x60\x00\x00\x60\x02\x7f\x7f\x01\x7f\x60\x04\x7f\x7f\x7f\x7f\x01\x7f")+
		wasmSection(2, count, imports)+
		wasmSection(3, 1, "\x01")+wasmSection(5, 1, "\x00\x01")+ // one function, one page of memory
		wasmSection(7, 2, "\x06memory\x02\x00\x06_start\x00"+string(rune(count)))+
		wasmSection(10, 1, string(rune(len(body)+2))+"\x00"+body+"\x0b")), 0o600))
}

// wasmImport imports a function of preview 1; its type is a number in wasmFile's first section.
func wasmImport(name string, typ byte) string {
	return "\x16wasi_snapshot_preview1" + string(rune(len(name))) + name + "\x00" + string(rune(typ))
}

// wasmSection encodes a section of less than 128 bytes.
func wasmSection(id, count int, items string) string {
	return string(rune(id)) + string(rune(len(items)+1)) + string(rune(count)) + items
}

// elfFile writes a bare program that reports a failure's code to the finisher, 0 for none, or with -1 does nothing for
// ever: elf FILE CODE.
func elfFile(ts *testscript.TestScript, _ bool, args []string) {
	code, err := strconv.Atoi(args[1])
	ts.Check(err)
	upper, lower := uint32(5), uint32(0x555) // 0x5555: passed
	if code != 0 {
		upper, lower = uint32(code)<<4|3, 0x333 // code<<16 | 0x3333
	}
	program := []uint32{
		0x001002b7,            // lui t0, 0x100
		upper<<12 | 0x337,     // lui t1, upper
		lower<<20 | 0x0030313, // addi t1, t1, lower
		0x0062a023,            // sw t1, 0(t0)
		0x0000006f,            // j .
	}
	if code < 0 {
		program = program[len(program)-1:]
	}
	const base, headers = 0x8000_0000, 64 + 56
	size := uint64(4 * len(program))
	var file bytes.Buffer
	file.WriteString("\x7fELF\x02\x01\x01" + string(make([]byte, 9)))
	for _, field := range []any{
		// the file's header: executable, RISC-V, version, entry, program headers, section headers, flags, sizes
		uint16(2), uint16(243), uint32(1), uint64(base), uint64(64), uint64(0), uint32(0),
		uint16(64), uint16(56), uint16(1), uint16(64), uint16(0), uint16(0),
		// its segment: to load, readable and executable, offset, addresses, sizes, alignment
		uint32(1), uint32(5), uint64(headers), uint64(base), uint64(base), size, size, uint64(4),
		program,
	} {
		ts.Check(binary.Write(&file, binary.LittleEndian, field))
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), file.Bytes(), 0o600))
}
