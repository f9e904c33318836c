package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// hookRun calls the hook with a recorded call of Claude Code, in a directory.
func hookRun(t *testing.T, dir string, env []string, call string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "hook", call))
	if err != nil {
		t.Fatal(err)
	}
	return run(t, dir, env, text, "agentvm", append([]string{"mcp", "hook"}, args...)...)
}

func run(t *testing.T, dir string, env []string, stdin []byte, program string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	command := exec.Command(program, args...)
	command.Dir, command.Env = dir, env
	if stdin != nil {
		command.Stdin = bytes.NewReader(stdin)
	}
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	if err := command.Run(); err != nil {
		exit, ended := err.(*exec.ExitError)
		if !ended {
			t.Fatal(err)
		}
		code = exit.ExitCode()
	}
	return out.String(), errs.String(), code
}

// TestMCPHookAnswers: what the hook does not send to the VM does not run on the host either, and what is not its affair gets no answer.
func TestMCPHookAnswers(t *testing.T) {
	dir := t.TempDir()
	env := append(os.Environ(), "AGENTVM_STORE="+filepath.Join(dir, "store"), "HOME="+dir, "CLAUDE_PROJECT_DIR=")
	for _, test := range []struct {
		call     string
		args     []string
		decision string // empty: none
		reason   string // a part of it, or of standard error
		code     int
	}{
		{"bash.json", nil, "allow", "runs in the VM mcp-", 0},
		{"bash.json", []string{"--mount", "."}, "ask", "can change files of the user's computer", 0},
		{"bash.json", []string{"--mount", ".", "-y"}, "allow", "can change files", 0},
		{"bash.json", []string{"--mount", ".:ro", "--mount", ".:/b:cow"}, "allow", "runs in the VM", 0},
		{"bash.json", []string{"--vm", "dev"}, "allow", "runs in the VM dev,", 0},
		{"empty.json", nil, "deny", "empty", 0},
		{"nul.json", nil, "deny", "NUL", 0},
		{"powershell.json", nil, "deny", "PowerShell runs commands on the user's computer", 0},
		{"monitor.json", nil, "deny", "Monitor", 0},
		{"read.json", nil, "", "", 0},
		{"mcp.json", nil, "", "", 0},
		{"missing.json", nil, "", "has no command", 2},
		{"post.json", nil, "", "configure it for PreToolUse", 2},
		{"bash.json", []string{"--vm", "A B"}, "", "A B", 2},
		{"bash.json", []string{"--nosuch"}, "", "unknown flag", 2},
		{"bash.json", []string{"--http", "127.0.0.1:0"}, "", "leave them out", 2},
		{"bash.json", []string{"--project", "nosuch"}, "", "--project", 2},
		{"bash.json", []string{"ls"}, "", "behind --", 2},
		{"bash.json", []string{"--"}, "", "behind --", 2},
		{"bash.json", []string{"--mount", ".", "--net", "everything"}, "", "everything", 2},
	} {
		stdout, stderr, code := hookRun(t, dir, env, test.call, test.args...)
		var a hookAnswer
		if stdout != "" {
			if err := json.Unmarshal([]byte(stdout), &a); err != nil {
				t.Errorf("%s: %v", stdout, err)
			}
		}
		if a.Output.Decision != test.decision || !strings.Contains(a.Output.Reason+stderr, test.reason) || code != test.code {
			t.Errorf("%s %v: %q %q, exit code %d; want %+v", test.call, test.args, stdout, stderr, code, test)
		}
	}
	for name, text := range map[string]string{"nothing": "", "no JSON": "{", "an array": "[]", "no tool": `{"hook_event_name":"PreToolUse"}`,
		"too much": `{"x":"` + strings.Repeat("x", maxHookCall) + `"}`, "a number as command": `{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{"command":1}}`} {
		if stdout, stderr, code := run(t, dir, env, []byte(text), "agentvm", "mcp", "hook"); code != hookBlocks || stdout != "" || stderr == "" {
			t.Errorf("%s: %q %q %d", name, stdout, stderr, code)
		}
	}
	if list, err := os.ReadDir(filepath.Join(dir, "store", "vms")); err == nil && len(list) > 0 {
		t.Errorf("the hook made VMs: %v", list)
	}
}

// TestMCPHook runs what the hook answers as Claude Code does: by a shell of the host, in the directory of the session.
func TestMCPHook(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("wants a POSIX shell on the host")
	}
	dir, env := mcpKit(t)
	project := filepath.Join(dir, "it's my $project")
	sub := filepath.Join(project, "sub dir")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	env = append(env, "CLAUDE_PROJECT_DIR="+project)
	flags := []string{"--mount", ".:/work:cow", "--memory", "256M", "--net", "none"}
	answer := func(call string) map[string]any {
		t.Helper()
		stdout, stderr, code := hookRun(t, sub, env, call, flags...)
		var a struct {
			Output struct {
				Decision string         `json:"permissionDecision"`
				Input    map[string]any `json:"updatedInput"`
			} `json:"hookSpecificOutput"`
		}
		if err := json.Unmarshal([]byte(stdout), &a); err != nil || code != 0 || a.Output.Decision != "allow" {
			t.Fatalf("%s: %q %q %d", call, stdout, stderr, code)
		}
		return a.Output.Input
	}
	rewritten := answer("bash.json")
	line, _ := rewritten["command"].(string)
	if delete(rewritten, "command"); !reflect.DeepEqual(rewritten, map[string]any{"description": "Print where this runs", "timeout": 120000.0}) {
		t.Errorf("the other arguments: %v", rewritten)
	}
	stdout, stderr, code := run(t, sub, env, nil, "sh", "-c", line)
	if stdout != "riscv64|it's|/work/sub dir|" || stderr != "err\n" || code != 3 {
		t.Fatalf("%q %q %d of %s", stdout, stderr, code, line)
	}

	rewritten = answer("sandbox.json")
	line, _ = rewritten["command"].(string)
	if delete(rewritten, "command"); !reflect.DeepEqual(rewritten, map[string]any{"dangerouslyDisableSandbox": true, "new_field": map[string]any{"a": []any{1.0, 2.5}}}) {
		t.Errorf("the other arguments: %v", rewritten)
	}
	if stdout, stderr, code := run(t, sub, env, nil, "sh", "-c", line); stdout != "$HOME `ID` \"X\"\n" || code != 0 {
		t.Errorf("%q %q %d", stdout, stderr, code)
	}
	if list, err := os.ReadDir(sub); err != nil || len(list) > 0 {
		t.Errorf("the host's directory: %v %v", list, err)
	}

	// What the server of the same flags has is the same VM.
	c, _ := mcpSession(t, project, env, flags...)
	if out, text := mcpCall(t, c, "exec", map[string]any{"command": "ls '/work/sub dir'"}); out == nil || out["stdout"] != "made-by-agent\n" {
		t.Errorf("%v %s", out, text)
	}

	// Standard input is passed on; a call that Claude Code ends is ended in the VM.
	if stdout, stderr, code := run(t, dir, env, []byte("input"), "agentvm", append(append([]string{"mcp", "hook"}, flags...), "--", "cat; pwd")...); stdout != "input/work\n" || code != 0 {
		t.Errorf("%q %q %d", stdout, stderr, code)
	}
	line, _ = answer("background.json")["command"].(string)
	command := exec.Command("sh", "-c", "exec "+line)
	command.Dir, command.Env = sub, env
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	sleeps := func() string {
		out, _ := mcpCall(t, c, "exec", map[string]any{"command": "ps | grep -c '[s]leep 4721$'"})
		return fmt.Sprint(out["stdout"])
	}
	awaitText(t, sleeps, "1\n")
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a call that was ended succeeded")
		}
	case <-time.After(20 * time.Second):
		_ = command.Process.Kill()
		t.Error("the call does not end by SIGTERM")
	}
	awaitText(t, sleeps, "0\n")

	// Flags that the running VM does not have are refused before the call is made.
	if _, stderr, code := hookRun(t, sub, env, "bash.json", "--mount", "."); code != hookBlocks || !strings.Contains(stderr, "runs already, and otherwise") {
		t.Errorf("%q %d", stderr, code)
	}
	// Its own failures are no exit codes of commands.
	if _, stderr, code := run(t, sub, env, nil, "agentvm", append(append([]string{"mcp", "hook"}, flags...), "--mount", "nosuch", "--", "true")...); code != exitOwnFailure {
		t.Errorf("%q %d", stderr, code)
	}
}
