//go:build linux

package guest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/guest/guestrpc"
)

// shells are what /bin/sh may be in a guest; BusyBox's is tested in the machine.
func shells(t *testing.T) map[string]string {
	list := map[string]string{"sh": "/bin/sh"}
	for _, name := range []string{"dash", "bash"} {
		if path, err := exec.LookPath(name); err == nil {
			list[name] = path
		}
	}
	if len(list) < 3 && os.Getenv("CI") == "true" {
		t.Fatalf("CI must have dash and bash; found %v", list)
	}
	return list
}

func TestShell(t *testing.T) {
	shellRoot = t.TempDir()
	for name, path := range shells(t) {
		t.Run(name, func(t *testing.T) { testShell(t, connect(t), path) })
	}
}

func testShell(t *testing.T, c *guestrpc.Client, path string) {
	sh, err := c.OpenShell(testContext(t), guestrpc.ExecParams{Args: []string{path}, Env: []string{"GIVEN=1"}, Dir: "/usr"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sh.Close() }()
	for _, tt := range []struct {
		name string
		give guestrpc.Command
		want result
	}{
		{"start", guestrpc.Command{Line: "pwd; echo $GIVEN"}, result{Stdout: "/usr\n1\n"}},
		{"streams", guestrpc.Command{Line: "echo o; echo e >&2; (exit 3)"}, result{Stdout: "o\n", Stderr: "e\n", Code: 3}},
		{"change", guestrpc.Command{Line: "cd /; X='a  b'; export Y=2\nf() { echo \"f:$1\"; }"}, result{}},
		{"kept", guestrpc.Command{Line: "pwd; echo \"$X$Y\"; f 1"}, result{Stdout: "/\na  b2\nf:1\n"}},
		{"positional", guestrpc.Command{Line: "set -- 1 2 3"}, result{}},
		{"positional kept", guestrpc.Command{Line: "echo $#"}, result{Stdout: "3\n"}},
		{"return", guestrpc.Command{Line: "return 7; echo no"}, result{Code: 7}},
		{"false", guestrpc.Command{Line: "false"}, result{Code: 1}},
		{"after", guestrpc.Command{Line: "echo on"}, result{Stdout: "on\n"}},
		{"short input", guestrpc.Command{Line: "cat", Stdin: strings.NewReader("in")}, result{Stdout: "in"}},
		{"streamed input", guestrpc.Command{Line: "cat", Stdin: io.MultiReader(strings.NewReader("str"), strings.NewReader("eam"))}, result{Stdout: "stream"}},
		{"no input", guestrpc.Command{Line: "cat"}, result{}},
		{"input not read", guestrpc.Command{Line: "true", Stdin: zeros{}}, result{}},
		{"looks like a status", guestrpc.Command{Line: "echo 0; echo '' ; echo o"}, result{Stdout: "0\n\no\n"}},
		{"descriptors", guestrpc.Command{Line: "exec 3>/dev/null; exec 9>/dev/null"}, result{}},
		{"here document", guestrpc.Command{Line: "cat <<E\nx $X\nE"}, result{Stdout: "x a  b\n"}},
		{"left behind", guestrpc.Command{Line: "sleep 5 & echo hi"}, result{Stdout: "hi\n"}},
		{"long", guestrpc.Command{Line: "seq 1 50000 | tail -n 1"}, result{Stdout: "50000\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, runIn(t, sh, tt.give)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	got := runIn(t, sh, guestrpc.Command{Line: "if then"})
	if got.Code == 0 || got.Stderr == "" {
		t.Errorf("a syntax error gives %+v", got)
	}
	if got := runIn(t, sh, guestrpc.Command{Line: "echo alive $X"}); got.Stdout != "alive a b\n" {
		t.Errorf("after the syntax error: %+v", got)
	}
	testShellEnd(t, sh)
}

func testShellEnd(t *testing.T, sh *guestrpc.Shell) {
	ctx := testContext(t)
	p, err := sh.Run(ctx, guestrpc.Command{Line: "exit 9"})
	if err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(ctx); err != nil || status.Code != 9 || !status.ShellEnded {
		t.Errorf("exit 9 gives %+v, %v", status, err)
	}
	if _, err := sh.Run(ctx, guestrpc.Command{Line: "true"}); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("run after the end: %v", err)
	}
}

func runIn(t *testing.T, sh *guestrpc.Shell, command guestrpc.Command) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	p, err := sh.Run(testContext(t), command)
	if err != nil {
		t.Fatalf("Run(%q): %v", command.Line, err)
	}
	status, err := p.Wait(testContext(t))
	if err != nil || status.ShellEnded {
		t.Fatalf("Wait(%q): %+v %v", command.Line, status, err)
	}
	return result{stdout.String(), stderr.String(), status.Code, status.Signal}
}

func TestShellHangs(t *testing.T) {
	shellRoot = t.TempDir()
	c := connect(t)
	ctx := testContext(t)
	sh, err := c.OpenShell(ctx, guestrpc.ExecParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sh.Close() }()
	p, err := sh.Run(ctx, guestrpc.Command{Line: "sleep 1000"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sh.Run(ctx, guestrpc.Command{Line: "true"}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("second command: %v", err)
	}
	for running := true; running; { // the shell may not have started it yet
		if err := p.Signal(ctx, 15); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
		select {
		case <-p.Done():
			running = false
		case <-time.After(10 * time.Millisecond):
		}
	}
	if status, err := p.Wait(ctx); err != nil || status.Code != 143 || status.ShellEnded {
		t.Errorf("TERM gives %+v, %v", status, err)
	}
	if p, err = sh.Run(ctx, guestrpc.Command{Line: "while :; do :; done"}); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(ctx); err != nil || status.Signal != 9 || !status.ShellEnded {
		t.Errorf("kill gives %+v, %v", status, err)
	}
}
