package wasi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"agentvm/internal/test/leaktest"
)

// needTool skips a test without one of the given programs or files, except in CI, where all must be there.
func needTool(t *testing.T, path string, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("%s: %v", path, err)
	default:
		t.Skipf("%s is not installed: %v", path, err)
	}
}

// buildC compiles a program of testdata with Debian's clang, lld and wasi-libc.
func buildC(t *testing.T, source string) []byte {
	t.Helper()
	clang, err := exec.LookPath("clang-19")
	needTool(t, "clang-19", err)
	_, err = os.Stat("/usr/include/wasm32-wasi")
	needTool(t, "wasi-libc", err)
	builtins, err := filepath.Glob("/usr/lib/llvm-*/lib/clang/*/lib/wasi/libclang_rt.builtins-wasm32.a")
	if err == nil && len(builtins) == 0 {
		err = os.ErrNotExist
	}
	needTool(t, "libclang-rt-dev-wasm32", err)
	out := filepath.Join(t.TempDir(), "program.wasm")
	cmd := exec.Command(clang, "--target=wasm32-wasi", "--sysroot=/usr", "-O1", "-Wall", "-Werror", "-nodefaultlibs", "-o", out,
		source, "-lc", builtins[0])
	return readOutput(t, cmd, out)
}

// buildGo compiles a program of testdata with the go command.
func buildGo(t *testing.T, dir string) []byte {
	t.Helper()
	goTool, err := exec.LookPath("go")
	needTool(t, "go", err)
	out := filepath.Join(t.TempDir(), "program.wasm")
	cmd := exec.Command(goTool, "build", "-o", out, "./"+dir)
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	return readOutput(t, cmd, out)
}

// readOutput runs a compiler and returns what it made.
func readOutput(t *testing.T, cmd *exec.Cmd, out string) []byte {
	t.Helper()
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, msg)
	}
	wasm, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return wasm
}

// testContext ends well before the test binary's own limit.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestCommandInC(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code, err := RunCommand(testContext(t), CommandConfig{
		Module: buildC(t, "testdata/c/files.c"), Args: []string{"files", "an arg"}, Env: []string{"KEY=value=x"},
		Dirs: []Dir{{Host: t.TempDir(), Guest: "/"}}, Stdin: strings.NewReader("line\n"), Stdout: &stdout, Stderr: &stderr,
		Cache: compilationCache,
	})
	if code != 7 || err != nil || stdout.String() != "done\n" || stderr.Len() != 0 {
		t.Errorf("exit code %d, %v\n%s%s", code, err, &stdout, &stderr)
	}
}

// Both outputs go to one writer, which sees the writes in their order; every byte passes, and so does a wide exit code.
func TestSurroundingsInC(t *testing.T) {
	var input, want, got bytes.Buffer
	for i := range 1000 {
		input.WriteByte(byte(i))
		want.WriteByte(byte(i))
		if i%100 == 99 {
			want.WriteByte('|')
		}
	}
	code, err := RunCommand(testContext(t), CommandConfig{
		Module: buildC(t, "testdata/c/surroundings.c"), Args: []string{"surroundings", "--dir", "ünï \"q\"\n", ""},
		Env: []string{"ÄÖ=a=b\nc", "EMPTY="}, Dirs: []Dir{{Host: t.TempDir(), Guest: "."}},
		Stdin: bytes.NewReader(input.Bytes()), Stdout: &got, Stderr: &got, Cache: compilationCache,
	})
	if uint32(code) != 1<<32-1 || err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("exit code %d, %v\n%q", code, err, &got)
	}
}

func TestCommandInGo(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles a Go program for WASI")
	}
	var stdout, stderr bytes.Buffer
	code, err := RunCommand(testContext(t), CommandConfig{
		Module: buildGo(t, "testdata/go"), Args: []string{"main", "/work"}, Env: []string{"KEY=value"},
		Dirs:  []Dir{{Host: t.TempDir(), Guest: "/other"}, {Host: t.TempDir(), Guest: "/work"}},
		Stdin: strings.NewReader("input\n"), Stdout: &stdout, Stderr: &stderr, Cache: compilationCache,
	})
	if code != 9 || err != nil || stdout.Len() != 0 || stderr.String() != "done value\n" {
		t.Errorf("exit code %d, %v\n%s%s", code, err, &stdout, &stderr)
	}
}

// command assembles a module with a _start of the given instructions; function 0 is proc_exit, 1 is sched_yield.
func command(memory, export bool, body ...byte) []byte {
	module := []byte{0, 'a', 's', 'm', 1, 0, 0, 0}
	module = append(module, wasmSection(1, [][]byte{{0x60, 1, 0x7f, 0}, {0x60, 0, 1, 0x7f}, {0x60, 0, 0}})...)
	module = append(module, wasmSection(2, [][]byte{
		append(append(wasmName(ModuleName), wasmName("proc_exit")...), 0, 0),
		append(append(wasmName(ModuleName), wasmName("sched_yield")...), 0, 1),
	})...)
	module = append(module, wasmSection(3, [][]byte{{2}})...)
	module = append(module, wasmSection(5, [][]byte{{0, 1}})...)
	var exports [][]byte
	if memory {
		exports = append(exports, append(wasmName("memory"), 2, 0))
	}
	if export {
		exports = append(exports, append(wasmName("_start"), 0, 2))
	}
	module = append(module, wasmSection(7, exports)...)
	body = append(append([]byte{0}, body...), 0x0b)
	return append(module, wasmSection(10, [][]byte{append([]byte{byte(len(body))}, body...)})...)
}

func TestCommandEnds(t *testing.T) {
	exit42 := []byte{0x41, 42, 0x10, 0}
	trap := []byte{0x00}
	loop := []byte{0x03, 0x40, 0x0c, 0, 0x0b}
	tailCall := []byte{0x12, 2} // itself
	yield := []byte{0x03, 0x40, 0x10, 1, 0x1a, 0x0c, 0, 0x0b}
	for _, c := range []struct {
		name    string
		module  []byte
		dirs    []Dir
		code    int
		err     string // part of the message, empty for none
		timeout bool
	}{
		{name: "returns", module: command(true, true)},
		{name: "exits", module: command(true, true, exit42...), code: 42},
		{name: "exit code above 125", module: command(true, true, 0x41, 0xff, 0x01, 0x10, 0), code: 255},
		{name: "traps", module: command(true, true, trap...), err: "command trapped: wasm error: unreachable"},
		{name: "no wasm", module: []byte("#!/bin/sh"), err: "it does not begin as one"},
		{name: "empty", err: "compile module"},
		{name: "no start", module: command(true, false), err: "exports no _start"},
		{name: "no memory", module: command(false, true), err: "exports no memory"},
		{name: "no directory", module: command(true, true), dirs: []Dir{{Host: "/does/not/exist", Guest: "/"}}, err: "open directory for /:"},
		{name: "sets the counter of rounds", module: command(true, true, 0x41, 0x7f, 0x24, 1), err: "compile module"},
		{name: "sets the variable that stops", module: command(true, true, 0x41, 0x00, 0x24, 0), err: "compile module"},
		{name: "endless loop", module: command(true, true, loop...), timeout: true, err: "command stopped: context deadline exceeded"},
		{name: "endless tail calls", module: command(true, true, tailCall...), timeout: true, err: "command stopped: context deadline exceeded"},
		{name: "endless yield", module: command(true, true, yield...), timeout: true, err: "command stopped: context deadline exceeded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer leaktest.None(t, goleak.IgnoreCurrent())
			limit := time.Minute
			if c.timeout {
				limit = 50 * time.Millisecond
			}
			for {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				var started bool
				code, err := RunCommand(ctx, CommandConfig{Module: c.module, Dirs: c.dirs, Started: func() { started = true }})
				if c.timeout && !started && limit < time.Minute { // compiling has taken longer
					limit *= 4
					continue
				}
				if code != c.code || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
					t.Errorf("exit code %d, %v; want %d, %q", code, err, c.code, c.err)
				}
				return
			}
		})
	}
}

// TestLoopsAreInterrupted: a garbage collection, for which all goroutines have to leave compiled code, ends while a module calls nothing.
func TestLoopsAreInterrupted(t *testing.T) {
	for name, code := range map[string][]byte{
		"loop":      {0x03, 0x40, 0x0c, 0, 0x0b},
		"tail call": {0x12, 2}, // itself
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(testContext(t))
			started, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				_, err := RunCommand(ctx, CommandConfig{Module: command(true, true, code...), Started: func() { close(started) }})
				ended <- err
			}()
			<-started
			for range 10 {
				runtime.GC()
			}
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
}

// A standard input that never has anything blocks no other descriptor, and does not keep a goroutine when it is a pipe.
func TestBlockedInput(t *testing.T) {
	defer leaktest.None(t, goleak.IgnoreCurrent())
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	g := newGuest(t, Config{})
	g.sys.SetFile(0, NewInput(r))
	timer := sub{userdata: 2, event: eventClock, clock: clockMonotonic, timeout: 10 * time.Millisecond}
	got, errno := g.poll(sub{userdata: 1, event: EventRead}, timer)
	if len(got) != 1 || got[0].Userdata != 2 || errno != ErrnoSuccess {
		t.Errorf("poll of a blocked input: %v, %v", got, errno)
	}
	if _, err := io.WriteString(w, "now"); err != nil {
		t.Fatal(err)
	}
	if got, errno := g.read(0, 8); got != "now" || errno != ErrnoSuccess {
		t.Errorf("read %q, %v", got, errno)
	}
	if err := g.sys.Close(); err != nil {
		t.Error(err)
	}
	if _, err := r.Stat(); err != nil {
		t.Errorf("the pipe is the caller's and must stay open: %v", err)
	}
}

func TestInputFromFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(path, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	g := newGuest(t, Config{})
	g.sys.SetFile(0, NewInput(f))
	g.want(ErrnoSpipe, "fd_seek", 0, 0, 1, 16)
	g.sys.SetFile(1, NewOutput(f))
	for fd := range uint64(2) { // neither the size nor the times of the host's file
		st := g.alloc(filestatSize)
		g.want(ErrnoSuccess, "fd_filestat_get", fd, st)
		if diff := cmp.Diff(Filestat{Nlink: 1}, decodeFilestat(g.bytes(st, filestatSize))); diff != "" {
			t.Errorf("descriptor %d (-want +got):\n%s", fd, diff)
		}
	}
	if got, errno := g.read(0, 64); got != "from a file" || errno != ErrnoSuccess {
		t.Errorf("read %q, %v", got, errno)
	}
	if got, errno := g.read(0, 64); got != "" || errno != ErrnoSuccess {
		t.Errorf("read %q, %v at the end", got, errno)
	}
	if err := g.sys.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.Stat(); errors.Is(err, os.ErrClosed) {
		t.Error("the caller's file was closed")
	}
}
