// Package harness has adapters by which agents' harnesses use VMs of agentvm serve, in Python and JavaScript, and the test that runs them.
package harness

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// serve starts agentvm serve with a store of its own, and returns the environment that says where it is.
func serve(t *testing.T) []string {
	t.Helper()
	if testing.Short() {
		t.Skip("boots VMs")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "agentvm")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "agentvm/cmd/agentvm").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const key = "0123456789abcdef-harness"
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "store"), 0o700); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "AGENTVM_STORE="+filepath.Join(dir, "store"), "AGENTVM_IMAGE=busybox", "AGENTVM_KEY="+key)
	command := exec.Command(program, "serve", "--listen", "127.0.0.1:0", "--key-file", filepath.Join(dir, "key"))
	command.Env = env
	stderr, err := command.StderrPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(os.Interrupt)
		_ = command.Wait()
		list := exec.Command(program, "ps", "-a", "-q")
		list.Env = env
		names, _ := list.Output()
		for name := range strings.FieldsSeq(string(names)) { // of a check that has failed
			remove := exec.Command(program, "rm", "-f", name)
			remove.Env = env
			_ = remove.Run()
		}
	})
	lines := bufio.NewScanner(stderr)
	url := ""
	for url == "" && lines.Scan() {
		url = regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(lines.Text())
	}
	if url == "" {
		t.Fatal("agentvm serve does not say where it is")
	}
	go func() {
		for lines.Scan() {
		}
	}()
	return append(env, "AGENTVM_URL="+url)
}

func check(t *testing.T, env []string, program string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, program, args...)
	command.Env = append(env, "PYTHONDONTWRITEBYTECODE=1")
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestPython: the adapters for Inspect and Harbor do what those want, as their documentation says it.
func TestPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil || exec.Command(python, "-c", "import sys, tarfile; assert sys.version_info >= (3, 10) and tarfile.data_filter").Run() != nil {
		t.Skip("wants Python 3.10 or later")
	}
	check(t, serve(t), python, filepath.Join("testdata", "driver.py"))
}

// TestPythonClient: the client in clients/python does what its test wants.
func TestPythonClient(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil || exec.Command(python, "-c", "import sys; assert sys.version_info >= (3, 10)").Run() != nil {
		t.Skip("wants Python 3.10 or later")
	}
	check(t, serve(t), python, filepath.Join("..", "..", "clients", "python", "test.py"))
}

// TestTypeScriptClient: the client in clients/typescript does what its test wants, in a Node that reads TypeScript.
func TestTypeScriptClient(t *testing.T) {
	node := "node"
	if modules := os.Getenv("AGENTVM_TEST_NODE_MODULES"); modules != "" {
		node = filepath.Join(modules, "node", "bin", "node")
	}
	if exec.Command(node, "-e", "process.exit(process.features.typescript ? 0 : 1)").Run() != nil {
		t.Skip("wants Node 22.18 or later: make harness gets it")
	}
	check(t, serve(t), node, filepath.Join("..", "..", "clients", "typescript", "test.ts"))
}

// TestJavaScript: the adapters for deepagents and the OpenAI Agents SDK work with those packages, of the folder that AGENTVM_TEST_NODE_MODULES names.
func TestJavaScript(t *testing.T) {
	modules := os.Getenv("AGENTVM_TEST_NODE_MODULES")
	if modules == "" {
		t.Skip("make harness gets the packages, and says by AGENTVM_TEST_NODE_MODULES where they are")
	}
	dir := t.TempDir() // programs find packages above their own place
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"*.mjs", "testdata/*.mjs"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err == nil {
				err = os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	env := serve(t)
	for _, name := range []string{"deepagents_test.mjs", "openai_agents_test.mjs"} {
		t.Run(name, func(t *testing.T) {
			check(t, env, filepath.Join(modules, "node", "bin", "node"), filepath.Join(dir, "testdata", name))
		})
	}
}
