package bind

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// runEnv has the test program run a host command, as a VM's process does, until it is killed.
const runEnv = "AGENTVM_TEST_RUN"

func TestMain(m *testing.M) {
	if line := os.Getenv(runEnv); line != "" {
		c, err := Parse("x=sh -c")
		if err == nil {
			err = c.Run(context.Background(), Call{Args: []string{line}, Stdin: io.NopCloser(strings.NewReader("")), Stdout: os.Stdout, Stderr: os.Stderr})
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// ended waits until there is no process of this number, or it is a zombie.
func ended(t *testing.T, pid int) {
	t.Helper()
	for range 500 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if _, after, found := bytes.Cut(stat, []byte(") ")); err != nil || found && after[0] == 'Z' {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("process %d runs on", pid)
}

// TestNothingIsLeft: what a program has started in its group ends with the program.
func TestNothingIsLeft(t *testing.T) {
	c, err := Parse("x=sh -c")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	call := Call{Args: []string{"sleep 1000 >/dev/null 2>&1 & echo $!"}, Stdin: io.NopCloser(strings.NewReader("")), Stdout: &out, Stderr: io.Discard}
	if err := c.Run(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	ended(t, pid)
}

// TestEndsWithTheProcess: a program ends when the process of its VM is killed.
func TestEndsWithTheProcess(t *testing.T) {
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), runEnv+"=echo $$; exec sleep 1000")
	out, err := parent.StdoutPipe()
	if err == nil {
		err = parent.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	_ = parent.Process.Kill()
	_ = parent.Wait()
	ended(t, pid)
}
