package vm_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentvm/vm"
)

func TestShellRemembers(t *testing.T) {
	sh, err := sharedVM(t).Shell(limited(t), vm.ShellConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer sh.Close()
	steps := []struct {
		name, line, stdout string
		code               int
	}{
		{"directory", "cd /tmp", "", 0},
		{"is kept", "pwd", "/tmp\n", 0},
		{"variable", "x='a b'; export y=2", "", 0},
		{"is kept too", `echo "$x"; sh -c 'echo $y'`, "a b\n2\n", 0},
		{"function", "double() { echo $1$1; return 3; }", "", 0},
		{"is called", "double ab", "abab\n", 3},
		{"syntax error", "if then", "", 2},
		{"next command", "echo on", "on\n", 0},
		{"several lines", "for i in 1 2\ndo\necho $i\ndone", "1\n2\n", 0},
		{"no newline", "printf text", "text", 0},
	}
	for _, step := range steps {
		r, err := sh.Exec(limited(t), step.line)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if string(r.Stdout) != step.stdout || r.ExitCode != step.code || r.ShellEnded {
			t.Errorf("%s: exit %d, stdout %q, stderr %q, ended %v", step.name, r.ExitCode, r.Stdout, r.Stderr, r.ShellEnded)
		}
	}
}

func TestShellInput(t *testing.T) {
	sh, err := sharedVM(t).Shell(limited(t), vm.ShellConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer sh.Close()
	for _, want := range []string{"short", strings.Repeat("long ", 40_000)} {
		r, err := sh.Run(limited(t), vm.Command{Line: "cat", Stdin: strings.NewReader(want)})
		if err != nil || string(r.Stdout) != want {
			t.Errorf("%d bytes came back of %d, %v", len(r.Stdout), len(want), err)
		}
	}
}

func TestShellHang(t *testing.T) {
	sh, err := sharedVM(t).Shell(limited(t), vm.ShellConfig{Env: []string{"KEPT=yes"}, Dir: "/tmp"})
	if err != nil {
		t.Fatal(err)
	}
	defer sh.Close()
	r, err := sh.Run(limited(t), vm.Command{Line: "echo before; sleep 6543", Timeout: 2 * time.Second})
	if err != nil || !r.TimedOut || !r.ShellEnded || string(r.Stdout) != "before\n" {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := sh.Exec(limited(t), "true"); !errors.Is(err, vm.ErrShellEnded) {
		t.Errorf("command in a shell that has ended: %v", err)
	}
	if err := sh.Restart(limited(t)); err != nil {
		t.Fatal(err)
	}
	r, err = sh.Exec(limited(t), "pwd; echo $KEPT")
	if err != nil || string(r.Stdout) != "/tmp\nyes\n" {
		t.Errorf("after the restart: %+v, %v", r, err)
	}
	wantOutput(t, sharedVM(t), "ps | grep -c '[s]leep 6543' || true", "0\n")
}

func TestShellThatExits(t *testing.T) {
	sh, err := sharedVM(t).Shell(limited(t), vm.ShellConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer sh.Close()
	r, err := sh.Exec(limited(t), "exit 9")
	if err != nil || r.ExitCode != 9 || !r.ShellEnded {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := sh.Exec(limited(t), "true"); !errors.Is(err, vm.ErrShellEnded) {
		t.Errorf("error %v", err)
	}
}

func TestShellIsBusy(t *testing.T) {
	sh, err := sharedVM(t).Shell(limited(t), vm.ShellConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer sh.Close()
	input, begin := io.Pipe()
	ended := make(chan error)
	go func() {
		_, err := sh.Run(limited(t), vm.Command{Line: "cat", Stdin: input})
		ended <- err
	}()
	if _, err := begin.Write([]byte("x")); err != nil { // returns when the command has taken it
		t.Fatal(err)
	}
	if _, err := sh.Exec(limited(t), "true"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("second command: %v", err)
	}
	begin.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestShellIsInLargePieces asks the kernel what kind of pages the shell's code is on: every command maps and unmaps what is near it,
// and that costs about as much for a large folio as for a single page.
func TestShellIsInLargePieces(t *testing.T) {
	v := sharedVM(t)
	const ( // Documentation/admin-guide/mm/pagemap.rst
		frame, present = 1<<55 - 1, 1 << 63
		compound       = 3 << 15 // the first page of a folio with several, or another one of it
	)
	var mapped []uint64
	for _, entry := range guestWords(t, v, `dd if=/proc/$$/pagemap bs=8 skip=$((0x$(sed -n '/busybox/{s/-.*//p;q}' /proc/$$/maps) / 4096)) count=190 2>/dev/null; true`) {
		if entry&present != 0 {
			mapped = append(mapped, entry&frame)
		}
	}
	if len(mapped) < 4 {
		t.Fatalf("%d of the shell's pages are mapped", len(mapped))
	}
	for _, page := range []int{len(mapped) / 4, len(mapped) / 2, len(mapped) * 3 / 4} {
		flags := guestWords(t, v, fmt.Sprintf("dd if=/proc/kpageflags bs=8 skip=%d count=1 2>/dev/null", mapped[page]))
		if len(flags) != 1 || flags[0]&compound == 0 {
			t.Errorf("page %d of %d that the shell has mapped is a folio of its own: flags %#x", page, len(mapped), flags)
		}
	}
}

// guestWords is what a command writes, eight bytes each.
func guestWords(t testing.TB, v *vm.VM, line string) (words []uint64) {
	t.Helper()
	r := mustRun(t, v, vm.Command{Line: line})
	for b := r.Stdout; len(b) >= 8; b = b[8:] {
		words = append(words, binary.LittleEndian.Uint64(b))
	}
	return words
}
