package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/work/headtail"
)

// runShell has a real shell of this host run what RunModule has a guest's shell run.
func runShell(t *testing.T, c Config, command Command, shell ...string) (string, int) {
	t.Helper()
	script, err := moduleScript(c, command)
	if err != nil {
		t.Fatal(err)
	}
	s := newModuleShell(command, script)
	s.console = headtail.New(moduleTail)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	input, feed := io.Pipe()
	process := exec.CommandContext(ctx, shell[0], append(shell[1:], "-c", s.prelude())...)
	process.Stdin, process.Stdout, process.Stderr = input, s, s
	process.WaitDelay = time.Second
	fed := make(chan struct{})
	go func() { defer close(fed); s.feed(ctx, feed) }()
	if err := process.Start(); err != nil {
		t.Skip(err)
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		t.Fatalf("%q: the shell did not answer: %q", command.Line, s.held)
	}
	cancel()
	_ = input.Close()
	_ = process.Wait() // it has been killed, or has ended
	<-fed
	kept, _ := s.kept.Take()
	return string(kept), s.exitCode
}

// TestModuleShell: real shells read the script line by line and mark what the command writes.
func TestModuleShell(t *testing.T) {
	long := strings.Repeat("ä'\\ \t$x\"%s\n", 2000)
	dir := t.TempDir()
	tests := []struct {
		name    string
		env     []string
		command Command
		want    string
		code    int
	}{
		{name: "a line", command: Command{Line: "echo a; echo b >&2"}, want: "a\nb\n"},
		{name: "without a newline", command: Command{Line: "printf a"}, want: "a"},
		{name: "nothing", command: Command{Line: "true"}},
		{name: "exit code", command: Command{Line: "echo x; exit 3"}, want: "x\n", code: 3},
		{name: "kills its shell", command: Command{Line: "kill -9 $$"}, want: "", code: 137},
		{name: "newlines around", command: Command{Line: "echo; echo; printf '\\n\\n'"}, want: "\n\n\n\n"},
		{name: "arguments", command: Command{Args: []string{"printf", "<%s>", "", "a b", "'", "\\", "\n", "$HOME", "-n", "ü"}}, want: "<><a b><'><\\><\n><$HOME><-n><ü>"},
		{name: "long", command: Command{Args: []string{"printf", "%s", long}}, want: long},
		{name: "environment", env: []string{"A=1 2'", "B=\\"}, command: Command{Line: `echo "$A$B"`, Env: []string{"A=3\n4"}}, want: "3\n4\\\n"},
		{name: "directory", command: Command{Line: "pwd", Dir: dir}, want: dir + "\n"},
		{name: "no terminal", command: Command{Line: "test -t 1 || test -t 2 || echo pipe"}, want: "pipe\n"},
		{name: "in the background", command: Command{Line: "echo a; sleep 40 & echo b; exit 5"}, want: "a\nb\n", code: 5},
		{name: "input is empty", command: Command{Line: "cat; echo end"}, want: "end\n"},
	}
	terminal := []string{"python3", "-c", "import pty, sys; pty.spawn(sys.argv[1:])", "sh"} // as the console of a guest is one
	for _, shell := range [][]string{{"sh"}, {"bash"}, {"busybox", "sh"}, terminal} {
		if _, err := exec.LookPath(shell[0]); err != nil {
			continue
		}
		for _, test := range tests {
			t.Run(shell[0]+"/"+test.name, func(t *testing.T) {
				out, code := runShell(t, Config{Env: test.env}, test.command, shell...)
				if !strings.HasSuffix(out, test.want) || len(out) != len(test.want) && test.code != 137 || code != test.code {
					t.Errorf("%.200q, %d, want %.200q, %d", out, code, test.want, test.code)
				}
			})
		}
	}
	for _, input := range []string{"", "a\nb\n", "a\nb", strings.Repeat("0123456789 line\n", 4000)} {
		if _, err := exec.LookPath(terminal[0]); err != nil {
			break
		}
		out, code := runShell(t, Config{}, Command{Line: "cat; exit 4", Stdin: strings.NewReader(input)}, terminal...)
		if out != input || code != 4 {
			t.Errorf("input of %d bytes: %.100q of %d bytes, %d", len(input), out, len(out), code)
		}
	}
}

// TestModuleShellMarks: whatever way the console's bytes are cut, the output is what is between the marks, and nothing else counts as one.
func TestModuleShellMarks(t *testing.T) {
	for _, crlf := range []string{"\n", "\r\n"} {
		for size := 1; size < 120; size++ {
			s := newModuleShell(Command{Line: "x"}, "x")
			s.console = io.Discard
			m := s.marker
			console := strings.ReplaceAll("boot "+m+"x "+m+"\n"+m+">0\n"+m+"=\n"+m+"<\n"+m+"+\n"+m+"+\n"+m+"=\n"+
				"a\n\n"+m+">999\n"+m+">1\n\n"+m+">x\nb\n\n"+m+"<\n\n"+m+">7\nlater"+m+">8\n", "\n", crlf)
			for rest := []byte(console); len(rest) > 0; {
				n := min(size, len(rest))
				_, _ = s.Write(rest[:n])
				rest = rest[n:]
			}
			got, _ := s.kept.Take()
			want := "a\n\n" + m + ">999"
			if s.exitCode != 1 || string(got) != want {
				t.Fatalf("in pieces of %d: %q, %d, want %q, 1", size, got, s.exitCode, want)
			}
		}
	}
}

// standIns are programs that do as modules of container2wasm do: one in Go, which blocks in each of its calls, and one in C, which polls as
// TinyEMU does and is compiled by what TinyEMU is compiled by.
func standIns(t *testing.T, run func(t *testing.T, image string)) {
	if testing.Short() {
		t.Skip("compiles modules")
	}
	for _, language := range []string{"Go", "C"} {
		t.Run(language, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "image.wasm")
			build := exec.Command("go", "build", "-o", out, "./testdata/module")
			if language == "C" {
				builtins, _ := filepath.Glob("/usr/lib/llvm-*/lib/clang/*/lib/wasi/libclang_rt.builtins-wasm32.a")
				if _, err := exec.LookPath("clang-19"); os.Getenv("CI") != "true" && (err != nil || len(builtins) == 0) {
					t.Skip("clang-19 and libclang-rt-dev-wasm32 are not installed")
				}
				build = exec.Command("clang-19", append(builtins, "--target=wasm32-wasi", "--sysroot=/usr", "-O1", "-Wall", "-Werror", "-nodefaultlibs",
					"-o", out, "testdata/tinyemu.c", "-lc")...)
			}
			build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
			if text, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			run(t, out)
		})
	}
}

func TestRunModule(t *testing.T) { standIns(t, testRunModule) }

func testRunModule(t *testing.T, image string) {
	dir, store := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hello"), []byte("from the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	quiet := Network{Disabled: true}
	readOnly := []Mount{{HostPath: dir, GuestPath: "/data", ReadOnly: true}}
	writable := []Mount{{HostPath: dir, GuestPath: "/data", Unprotected: []string{"."}}}
	tests := []struct {
		name    string
		config  Config
		command Command
		want    string
		code    int
	}{
		{name: "lines", config: Config{Network: quiet}, command: Command{Line: "lines"}, want: "one\n\nMARKER two\n\rthree"},
		{name: "exit code", config: Config{Network: quiet}, command: Command{Line: "exit 5"}, code: 5},
		{name: "environment", config: Config{Network: quiet, Env: []string{"A=b c"}}, command: Command{Line: "script"}, want: "export A='b c'\n"},
		{name: "read", config: Config{Network: quiet, Mounts: readOnly}, command: Command{Line: "size /data/hello"}, want: "13 bytes"},
		{name: "read only", config: Config{Network: quiet, Mounts: readOnly}, command: Command{Line: "write /data/x"}, want: "/data/x", code: 1},
		{name: "read with a network", config: Config{Mounts: writable}, command: Command{Line: "cat /data/hello"}, want: "from the host"},
		{name: "write", config: Config{Network: quiet, Mounts: writable}, command: Command{Line: "write /data/new"}},
		{name: "input", config: Config{Network: quiet}, command: Command{Line: "input", Stdin: strings.NewReader("a\nb\n")}, want: `"a\nb\n\x04" <nil>`},
		{name: "input without a newline", config: Config{Network: quiet}, command: Command{Line: "input", Stdin: strings.NewReader("ab")}, want: `"ab\x04" <nil>`},
		{name: "network", command: Command{Line: "gateway"}, want: "option 53: 2 for abcd"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.config.Image, test.config.StoreDir = image, store
			r, err := RunModule(t.Context(), test.config, test.command)
			if err != nil {
				t.Fatal(err)
			}
			before, after, _ := strings.Cut(test.want, "MARKER")
			if out := string(r.Stdout); !strings.Contains(out, before) || !strings.HasSuffix(out, after) && test.name == "lines" || r.ExitCode != test.code {
				t.Errorf("%q, %d, want %q, %d", out, r.ExitCode, test.want, test.code)
			}
		})
	}
	if text, err := os.ReadFile(filepath.Join(dir, "new")); string(text) != "written" {
		t.Errorf("the module wrote %q, %v", text, err)
	}
}

// TestRunModuleEnds: a command or module that hangs, spins or ends is ended, and the next call works.
func TestRunModuleEnds(t *testing.T) { standIns(t, testRunModuleEnds) }

func testRunModuleEnds(t *testing.T, image string) {
	c := Config{Image: image, StoreDir: t.TempDir(), Network: Network{Disabled: true}}
	for line, limit := range map[string]time.Duration{"hang": 2 * time.Second, "spin": 100 * time.Millisecond} {
		r, err := RunModule(t.Context(), c, Command{Line: line, Timeout: limit})
		if err != nil || !r.TimedOut || line == "hang" && string(r.Stdout) != "before" {
			t.Errorf("%s: %+v, %v, want a time-out", line, r, err)
		}
	}
	if _, err := RunModule(t.Context(), c, Command{Line: "die"}); err == nil || !strings.Contains(err.Error(), "exit code 9 before the command had ended") {
		t.Errorf("a module that ended: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stop := Command{Line: "hang", Stdout: writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })}
	if _, err := RunModule(ctx, c, stop); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	broken := Command{Line: "hang", Stdout: writerFunc(func([]byte) (int, error) { return 0, io.ErrShortWrite })}
	if _, err := RunModule(t.Context(), c, broken); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("a writer that fails: %v", err)
	}
	for name, input := range map[string]io.Reader{
		"byte 0x01": strings.NewReader("a\n\x01x"), "4094 bytes": strings.NewReader(strings.Repeat("x", 4095)), "broken pipe": brokenReader{},
	} {
		if _, err := RunModule(t.Context(), c, Command{Line: "input", Stdin: input}); err == nil || !strings.Contains(err.Error(), "standard input: ") || !strings.Contains(err.Error(), name) {
			t.Errorf("input that no console passes on: %v, want one with %q", err, name)
		}
	}
	if r, err := RunModule(t.Context(), c, Command{Line: "exit 0"}); err != nil || r.ExitCode != 0 {
		t.Errorf("afterwards: %+v, %v", r, err)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, syscall.EPIPE }

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// emptyModule is a module with an import of a name and a _start function that loops for ever or returns.
func emptyModule(module, body string) []byte {
	text := "\x00asm\x01\x00\x00\x00" + "\x01\x04\x01\x60\x00\x00"
	imports := fmt.Sprintf("\x01%c%s\x01f\x00\x00", len(module), module)
	text += fmt.Sprintf("\x02%c%s", len(imports), imports) + "\x03\x02\x01\x00" + "\x05\x03\x01\x00\x01" + "\x07\x13\x02\x06memory\x02\x00\x06_start\x00\x01"
	return []byte(text + fmt.Sprintf("\x0a%c\x01%c\x00%s", len(body)+3, len(body)+1, body))
}

func TestRunModuleRefuses(t *testing.T) {
	dir, line := t.TempDir(), Command{Line: "true"}
	file := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// sched_yield would have a result; random names stand for what is unknown.
	unknown := file("unknown.wasm", emptyModule("nowhere", "\x0b"))
	whole := emptyModule("nowhere", "\x0b")
	tests := []struct {
		name    string
		config  Config
		command Command
		want    string
	}{
		{"missing", Config{Image: filepath.Join(dir, "missing.wasm")}, line, "missing.wasm"},
		{"a folder", Config{Image: dir + ".wasm"}, line, ".wasm"},
		{"no module", Config{Image: file("text.wasm", []byte("#!/bin/sh\necho hello"))}, line, "does not begin with"},
		{"empty", Config{Image: file("empty.wasm", nil)}, line, "does not begin with"},
		{"a component", Config{Image: file("component.wasm", []byte("\x00asm\x0d\x00\x01\x00"))}, line, "component"},
		{"truncated", Config{Image: file("cut.wasm", whole[:len(whole)-2])}, line, "compile module"},
		{"unknown imports", Config{Image: unknown}, line, "nowhere"},
		{"no command", Config{Image: unknown}, Command{}, "the command is empty"},
		{"user", Config{Image: unknown}, Command{Line: "x", User: "me"}, "another user"},
		{"terminal", Config{Image: unknown}, Command{Line: "x", Terminal: &Size{80, 25}}, "a terminal"},
		{"disk", Config{Image: unknown, Disk: "x"}, line, "a disk"},
		{"writable mount", Config{Image: unknown, Mounts: []Mount{{HostPath: dir, GuestPath: "/x"}}}, line, "--unprotected ."},
		{"masked mount", Config{Image: unknown, Mounts: []Mount{{HostPath: dir, GuestPath: "/x", ReadOnly: true, Masks: []string{"a"}}}}, line, "cannot be hidden"},
		{"variable", Config{Image: unknown, Env: []string{"A-B=1"}}, line, "A-B"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.config.StoreDir, test.config.Network.Disabled = t.TempDir(), true
			_, err := RunModule(t.Context(), test.config, test.command)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want one with %q", err, test.want)
			}
		})
	}
	if _, err := Start(t.Context(), Config{Image: unknown, StoreDir: t.TempDir()}); !errors.Is(err, ErrModule) {
		t.Errorf("a VM of a module: %v", err)
	}
}

// TestSilentModule: a module that never answers, or ends at once, is an error that says so.
func TestSilentModule(t *testing.T) {
	c := Config{StoreDir: t.TempDir(), Network: Network{Disabled: true}}
	for body, want := range map[string]string{
		"\x03\x40\x0c\x00\x0b\x0b": "no shell answered within 200ms",
		"\x0b":                     "ended by itself with exit code 0",
	} {
		if c.BootTimeout = time.Minute; strings.Contains(want, "200ms") {
			c.BootTimeout = 200 * time.Millisecond
		}
		c.Image = filepath.Join(t.TempDir(), "silent.wasm")
		module := bytes.Replace(emptyModule("x", body), []byte("\x02\x07\x01\x01x\x01f\x00\x00"), nil, 1) // no import
		module = bytes.Replace(module, []byte("_start\x00\x01"), []byte("_start\x00\x00"), 1)
		if err := os.WriteFile(c.Image, module, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := RunModule(t.Context(), c, Command{Line: "true"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want one with %q", err, want)
		}
	}
}
