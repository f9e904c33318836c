package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"testing"
)

// startServer starts a server of the program, and returns what the first group of the pattern finds in its messages: its address. It is
// interrupted when end is called, which waits, and at the end of the test.
func startServer(t *testing.T, pattern string, env []string, args ...string) (address string, end func()) {
	t.Helper()
	command := exec.Command("agentvm", args...)
	command.Env = env
	text, err := command.StderrPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		_ = command.Process.Signal(os.Interrupt)
		_ = command.Wait()
	})
	t.Cleanup(end)
	lines, says := bufio.NewScanner(text), regexp.MustCompile(pattern)
	for address == "" && lines.Scan() {
		if m := says.FindStringSubmatch(lines.Text()); m != nil {
			address = m[1]
		} else {
			t.Log(lines.Text())
		}
	}
	go func() { _, _ = io.Copy(io.Discard, text) }()
	return address, end
}
