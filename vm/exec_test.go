package vm_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"agentvm/vm"
)

func TestResults(t *testing.T) {
	v := sharedVM(t)
	tests := []struct {
		name    string
		command vm.Command
		want    vm.Result
	}{
		{"output", vm.Command{Line: "echo out; echo err >&2"}, vm.Result{Stdout: []byte("out\n"), Stderr: []byte("err\n")}},
		{"exit code", vm.Command{Line: "exit 37"}, vm.Result{ExitCode: 37}},
		{"killed by a signal", vm.Command{Line: "kill -9 $$"}, vm.Result{ExitCode: 137, Signal: 9}},
		{"terminated", vm.Command{Line: "kill -TERM $$"}, vm.Result{ExitCode: 143, Signal: 15}},
		{"bytes of all values", vm.Command{Line: `printf '\000\001\377\n\r'`}, vm.Result{Stdout: []byte("\x00\x01\xff\n\r")}},
		{"arguments are not a shell's", vm.Command{Args: []string{"echo", "$HOME", "a  b", "*"}}, vm.Result{Stdout: []byte("$HOME a  b *\n")}},
		{"environment", vm.Command{Line: `echo "$A $B"`, Env: []string{"A=1 2", "B=é"}}, vm.Result{Stdout: []byte("1 2 é\n")}},
		{"directory", vm.Command{Line: "pwd", Dir: "/tmp"}, vm.Result{Stdout: []byte("/tmp\n")}},
		{"default directory", vm.Command{Line: "pwd"}, vm.Result{Stdout: []byte("/\n")}},
		{"user by number", vm.Command{Line: "id -u; id -g", User: "1234:567"}, vm.Result{Stdout: []byte("1234\n567\n")}},
		{"user by name", vm.Command{Line: "id -u", User: "nobody"}, vm.Result{Stdout: []byte("65534\n")}},
		{"no input", vm.Command{Line: "cat; echo end"}, vm.Result{Stdout: []byte("end\n")}},
		{"input", vm.Command{Line: "tr a-z A-Z", Stdin: strings.NewReader("text")}, vm.Result{Stdout: []byte("TEXT")}},
		{"terminal", vm.Command{Line: "stty size; test -t 0 && test -t 1 && test -t 2", Terminal: &vm.Size{Columns: 101, Rows: 33}}, vm.Result{Stdout: []byte("33 101\r\n")}},
		{
			"truncated", vm.Command{Line: "echo abcdefghijklm", MaxOutput: 6},
			vm.Result{Stdout: []byte("abclm\n"), StdoutTruncated: vm.Truncation{Offset: 3, Dropped: 8}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := mustRun(t, v, test.command)
			if diff := cmp.Diff(&test.want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(vm.Result{}, "Duration")); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCommandsThatCannotBeRun(t *testing.T) {
	v := sharedVM(t)
	tests := []struct {
		name    string
		command vm.Command
		code    int
		stderr  string
	}{
		{"unknown to the shell", vm.Command{Line: "no-such-command"}, 127, "not found"},
		{"unknown program", vm.Command{Args: []string{"no-such-command", "x"}}, 127, "not found"},
		{"not executable", vm.Command{Args: []string{"/etc/passwd"}}, 126, "/etc/passwd"},
		{"not executable for the shell", vm.Command{Line: "/etc/passwd"}, 126, "denied"},
		{"a directory", vm.Command{Args: []string{"/etc"}}, 126, "/etc"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := mustRun(t, v, test.command)
			if r.ExitCode != test.code || !strings.Contains(strings.ToLower(string(r.Stderr)), test.stderr) {
				t.Errorf("exit %d, stderr %q; want %d and %q", r.ExitCode, r.Stderr, test.code, test.stderr)
			}
		})
	}
}

func TestRequestsThatMakeNoSense(t *testing.T) {
	v := sharedVM(t)
	tests := []struct {
		name    string
		command vm.Command
		want    string
	}{
		{"nothing", vm.Command{}, "empty"},
		{"empty program", vm.Command{Args: []string{""}}, "empty"},
		{"line and arguments", vm.Command{Line: "a", Args: []string{"b"}}, "not both"},
		{"NUL", vm.Command{Line: "echo \x00"}, "NUL"},
		{"environment", vm.Command{Line: "true", Env: []string{"nonsense"}}, "KEY=VALUE"},
		{"unknown user", vm.Command{Line: "true", User: "unknown-name"}, "unknown-name"},
		{"unknown directory", vm.Command{Line: "true", Dir: "/no/such"}, "/no/such"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := v.Run(limited(t), test.command)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

// slowReader hides how long its input is, so that it goes piece by piece.
type slowReader struct{ r io.Reader }

func (s slowReader) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), 30_000)]) }

func TestTenMegabytesThereAndBack(t *testing.T) {
	v := sharedVM(t)
	data := randomBytes(10 << 20)
	began := time.Now()
	var back bytes.Buffer
	r := mustRun(t, v, vm.Command{Line: "cat", Stdin: slowReader{bytes.NewReader(data)}, Stdout: &back})
	if r.ExitCode != 0 || !bytes.Equal(back.Bytes(), data) {
		t.Errorf("exit %d, %d bytes came back, equal: %v", r.ExitCode, back.Len(), bytes.Equal(back.Bytes(), data))
	}
	t.Logf("10 MiB there and back in %v", time.Since(began))
	sum := sha256.Sum256(data)
	r = mustRun(t, v, vm.Command{Line: "sha256sum", Stdin: bytes.NewReader(data)})
	if want := hex.EncodeToString(sum[:]) + "  -\n"; string(r.Stdout) != want {
		t.Errorf("sha256sum in the guest: %q, want %q", r.Stdout, want)
	}
}

func randomBytes(n int) []byte {
	data := make([]byte, n)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(data)
	return data
}

func TestInputNobodyReads(t *testing.T) {
	v := sharedVM(t)
	r := mustRun(t, v, vm.Command{Line: "head -c 3", Stdin: slowReader{bytes.NewReader(make([]byte, 4<<20))}})
	if r.ExitCode != 0 || len(r.Stdout) != 3 {
		t.Errorf("exit %d, stdout %q", r.ExitCode, r.Stdout)
	}
}

func TestLargeOutputIsCapped(t *testing.T) {
	v := sharedVM(t)
	r := mustRun(t, v, vm.Command{Line: "seq 1 200000", MaxOutput: 1000})
	if len(r.Stdout) != 1000 || !bytes.HasPrefix(r.Stdout, []byte("1\n2\n3\n")) || !bytes.HasSuffix(r.Stdout, []byte("\n200000\n")) {
		t.Errorf("%d bytes: %q", len(r.Stdout), clip(r.Stdout))
	}
	if want := (vm.Truncation{Offset: 500, Dropped: 1288895 - 1000}); r.StdoutTruncated != want {
		t.Errorf("truncation %+v, want %+v", r.StdoutTruncated, want)
	}
}

func TestTimeout(t *testing.T) {
	v := sharedVM(t)
	began := time.Now()
	// The child in a session of its own has to go too.
	r := mustRun(t, v, vm.Command{Line: "echo before; setsid sleep 4321 & sleep 4321; echo after", Timeout: 2 * time.Second})
	if !r.TimedOut || string(r.Stdout) != "before\n" || r.ExitCode != 137 {
		t.Errorf("timed out %v, exit %d, stdout %q", r.TimedOut, r.ExitCode, r.Stdout)
	}
	if took := time.Since(began); took > 30*time.Second { // the program's time would be over an hour
		t.Errorf("it took %v", took)
	}
	wantOutput(t, v, "ps | grep -c '[s]leep 4321' || true", "0\n")
}

func TestTimeoutShorterThanTheAnswer(t *testing.T) {
	v := sharedVM(t)
	r := mustRun(t, v, vm.Command{Line: "echo before; sleep 30", Timeout: time.Nanosecond})
	if !r.TimedOut {
		t.Errorf("result %+v", r)
	}
	wantOutput(t, v, "echo alive", "alive\n")
}

func TestCancellation(t *testing.T) {
	v := sharedVM(t)
	ctx, cancel := context.WithTimeout(limited(t), 300*time.Millisecond)
	defer cancel()
	_, err := v.Exec(ctx, "sleep 5432; echo after")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	wantOutput(t, v, "ps | grep -c '[s]leep 5432' || true", "0\n")
}

func TestConcurrentCommands(t *testing.T) {
	v := sharedVM(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 5 {
				want := fmt.Sprintf("%d-%d", i, j)
				r, err := v.Run(limited(t), vm.Command{Line: "sleep 0.05; cat; echo e >&2; exit $N", Stdin: strings.NewReader(want), Env: []string{fmt.Sprintf("N=%d", i)}})
				if err != nil || string(r.Stdout) != want || r.ExitCode != i || string(r.Stderr) != "e\n" {
					t.Errorf("%s: %+v, %v", want, r, err)
				}
			}
		})
	}
	all.Wait()
}

func TestProcess(t *testing.T) {
	v := sharedVM(t)
	out, in := io.Pipe()
	p, err := v.Start(limited(t), vm.Command{
		Line:   `trap 'echo usr1' USR1; trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.01; done`,
		Stdout: in,
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, step := range []struct {
		line   string
		signal int
	}{{"ready", 10}, {"usr1", 15}, {"bye", 0}} {
		if !lines.Scan() || lines.Text() != step.line {
			t.Fatalf("line %q, want %q", lines.Text(), step.line)
		}
		if step.signal == 0 {
			break
		}
		if err := p.Signal(limited(t), step.signal); err != nil {
			t.Fatal(err)
		}
	}
	r, err := p.Wait(limited(t))
	if err != nil || r.ExitCode != 5 || r.Signal != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := p.Kill(limited(t)); err != nil {
		t.Errorf("kill after the end: %v", err)
	}
	if err := p.Signal(limited(t), 15); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("signal after the end: %v", err)
	}
}

// TestLongLine runs a line that is longer than Linux lets one argument be.
func TestLongLine(t *testing.T) {
	v := ownVM(t, nil)
	line := "set -u; echo $#\n: '" + strings.Repeat("Größe $1 \\n\n", 20_000) + "'; a='x  y'; echo \"$a\"; for w in $a; do echo $w; done; exit 7"
	r, err := v.Run(limited(t), vm.Command{Line: line})
	if err != nil || r.ExitCode != 7 || string(r.Stdout) != "0\nx  y\nx\ny\n" {
		t.Fatalf("%+v, %v", r, err)
	}
}
