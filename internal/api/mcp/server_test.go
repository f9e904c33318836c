package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"agentvm/images/storetest"
	"agentvm/vm"
)

// kit is what the tests share: a store with the image, and one VM.
var kit struct {
	store storetest.Store

	mu sync.Mutex
	vm *vm.VM
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(kit.store.Main(func() int {
		code := m.Run()
		if kit.vm != nil {
			kit.vm.Close()
		}
		return code
	}))
}

// testVMs has the shared VM by the name dev, and notes what else it is asked for.
type testVMs struct {
	t testing.TB

	mu    sync.Mutex
	calls []string
	names []string
}

// kept is a VM that outlives its connections.
type kept struct{ *vm.VM }

func (kept) Close() error { return nil }

func (v *testVMs) Open(ctx context.Context, name string, report func(string)) (VM, error) {
	if name != "dev" {
		return nil, fmt.Errorf("VM %s: %w", name, fs.ErrNotExist)
	}
	report("boots")
	kit.mu.Lock()
	defer kit.mu.Unlock()
	if kit.vm == nil {
		made, err := vm.Start(context.WithoutCancel(ctx), vm.Config{Image: kit.store.Image(v.t), StoreDir: kit.store.Dir(), Memory: 256 << 20})
		if err != nil {
			return nil, err
		}
		kit.vm = made
	}
	return kept{kit.vm}, nil
}

func (v *testVMs) note(format string, args ...any) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.calls = append(v.calls, fmt.Sprintf(format, args...))
	return nil
}

func (v *testVMs) Names(context.Context) ([]string, error) { return slices.Clone(v.names), nil }
func (v *testVMs) Fork(_ context.Context, name string, forks []string, keep bool) error {
	return v.note("fork %s %v %t", name, forks, keep)
}
func (v *testVMs) Remove(_ context.Context, name string) error { return v.note("remove %s", name) }
func (v *testVMs) Snapshots(context.Context) ([]Snapshot, error) {
	return []Snapshot{{Name: "dev-clean"}, {Name: "private"}, {Name: "devil"}}, nil
}
func (v *testVMs) Snapshot(_ context.Context, name, snapshot, comment string) error {
	return v.note("snapshot %s %s %s", name, snapshot, comment)
}
func (v *testVMs) Restore(_ context.Context, snapshot, name string) error {
	return v.note("restore %s %s", snapshot, name)
}
func (v *testVMs) RemoveSnapshot(_ context.Context, snapshot string) error {
	return v.note("remove snapshot %s", snapshot)
}

// serve connects a client to a server with the shared VM.
func serve(t testing.TB, o *sdk.ClientOptions, connect *sdk.ClientSessionOptions) (*sdk.ClientSession, *testVMs) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a VM")
	}
	vms := &testVMs{t: t}
	s := New(Config{VMs: vms, Default: "dev", Version: "test"})
	ours, theirs := sdk.NewInMemoryTransports()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	session, err := s.sdk.Connect(ctx, ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).Connect(ctx, theirs, connect)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = session.Wait()
		_ = s.Close()
		cancel()
	})
	return c, vms
}

// call calls a tool and returns its structured content, and its text.
func call[Out any](t testing.TB, c *sdk.ClientSession, tool string, args map[string]any) (out Out, text string) {
	t.Helper()
	r := tryCall(t, c, tool, args)
	if r.IsError {
		t.Fatalf("%s %v: %s", tool, args, textOf(r))
	}
	b, err := json.Marshal(r.StructuredContent)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatalf("%s: %v in %s", tool, err, b)
	}
	return out, textOf(r)
}

func tryCall(t testing.TB, c *sdk.ClientSession, tool string, args map[string]any) *sdk.CallToolResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	r, err := c.CallTool(ctx, &sdk.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s %v: %v", tool, args, err)
	}
	if b, err := json.Marshal(r.StructuredContent); err != nil || len(b) > maxOutput+4000 || len(textOf(r)) > maxOutput+4000 {
		t.Errorf("%s %v: %d bytes of structured content, %d of text: %v", tool, args, len(b), len(textOf(r)), err)
	}
	return r
}

func textOf(r *sdk.CallToolResult) string {
	var b strings.Builder
	for _, c := range r.Content {
		b.WriteString(c.(*sdk.TextContent).Text)
	}
	return b.String()
}

// refused calls a tool that must fail, and checks a part of what it says.
func refused(t testing.TB, c *sdk.ClientSession, tool, want string, args map[string]any) {
	t.Helper()
	if r := tryCall(t, c, tool, args); !r.IsError || !strings.Contains(textOf(r), want) {
		t.Errorf("%s %v: error %t, %q, want one with %q", tool, args, r.IsError, textOf(r), want)
	}
}

// TestTools checks what clients decide by: names, schemas, hints and lengths.
func TestTools(t *testing.T) {
	s := New(Config{VMs: &testVMs{t: t}, Default: "dev", ChangesHost: true})
	defer s.Close()
	ours, theirs := sdk.NewInMemoryTransports()
	ctx := context.Background()
	session, err := s.sdk.Connect(ctx, ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(ctx, theirs, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Wait()
	defer c.Close()
	list, err := c.ListTools(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	var names, destructive, readOnly []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		a := tool.Annotations
		if a == nil || a.DestructiveHint == nil || a.OpenWorldHint == nil || a.Title == "" {
			t.Errorf("%s: annotations %+v: want all of them", tool.Name, a)
			continue
		}
		if *a.DestructiveHint {
			destructive = append(destructive, tool.Name)
		}
		if a.ReadOnlyHint {
			readOnly = append(readOnly, tool.Name)
		}
		if tool.InputSchema == nil || tool.OutputSchema == nil || len(tool.Description) > 2000 {
			t.Errorf("%s: schemas %v and %v, %d bytes of description", tool.Name, tool.InputSchema, tool.OutputSchema, len(tool.Description))
		}
	}
	slices.Sort(names)
	if got, want := strings.Join(names, " "), "edit_file exec fork list_dir net ports process read_file snapshot write_file"; got != want {
		t.Errorf("tools %s, want %s", got, want)
	}
	slices.Sort(destructive)
	if got, want := strings.Join(destructive, " "), "edit_file exec process write_file"; got != want {
		t.Errorf("destructive: %s, want %s", got, want)
	}
	if got, want := strings.Join(readOnly, " "), "list_dir read_file"; got != want {
		t.Errorf("read only: %s, want %s", got, want)
	}
	if n := len(s.instructions()); n > 2000 {
		t.Errorf("%d bytes of instructions: clients cut them at 2 KB", n)
	}
	for platform, want := range map[string]string{"": "in a Linux VM (uname -m says", "linux/arm64": "in a Linux VM (linux/arm64) that"} {
		if text := New(Config{Platform: platform}).instructions(); !strings.Contains(text, want) {
			t.Errorf("platform %q: %s", platform, text)
		}
	}
}

func TestExec(t *testing.T) {
	c, _ := serve(t, nil, nil)
	out, text := call[processOutput](t, c, "exec", map[string]any{"command": "echo out; echo err >&2; echo $A-$PWD; exit 3", "env": map[string]any{"A": "b"}, "cwd": "/tmp"})
	if out.Stdout != "out\nb-/tmp\n" || out.Stderr != "err\n" || out.ExitCode == nil || *out.ExitCode != 3 || out.Running || out.Process != "" || out.VM != "dev" {
		t.Errorf("%+v", out)
	}
	if !strings.HasPrefix(text, "[exit code 3 after ") || !strings.Contains(text, "out\n") || !strings.Contains(text, "err\n") {
		t.Errorf("text %q", text)
	}
	if out, _ := call[processOutput](t, c, "exec", map[string]any{"command": "cat", "stdin": "given\n"}); out.Stdout != "given\n" {
		t.Errorf("with input: %+v", out)
	}
	if out, _ := call[processOutput](t, c, "exec", map[string]any{"command": "cat"}); out.Stdout != "" || out.Running {
		t.Errorf("without input: %+v", out)
	}
	if out, _ := call[processOutput](t, c, "exec", map[string]any{"command": "sleep 60", "timeout_seconds": 0.2}); !out.TimedOut || out.ExitCode == nil || *out.ExitCode == 0 {
		t.Errorf("with a timeout: %+v", out)
	}
	if out, _ := call[processOutput](t, c, "exec", map[string]any{"command": "printf 'a\\377\\000b'"}); out.Stdout != "a\uFFFD\x00b" {
		t.Errorf("bytes that are no text: %q", out.Stdout)
	}
	until(t, "no process is left whose output was returned", func() bool {
		list, _ := call[processResult](t, c, "process", map[string]any{"action": "list"})
		return len(list.Processes) == 0
	})
	refused(t, c, "exec", "empty", map[string]any{"command": " "})
	refused(t, c, "exec", "max_output", map[string]any{"command": "true", "max_output": 1 << 20})
	refused(t, c, "exec", "yield_seconds", map[string]any{"command": "true", "yield_seconds": -1})
	refused(t, c, "exec", "env", map[string]any{"command": "true", "env": map[string]any{"A=B": "c"}})
	refused(t, c, "exec", "dev-other", map[string]any{"command": "true", "vm": "other"})
	refused(t, c, "exec", "comand", map[string]any{"comand": "true"})
}

// TestExecOutput: of long output the beginning and the end are returned, and the rest is read by its range.
func TestExecOutput(t *testing.T) {
	c, _ := serve(t, nil, nil)
	for _, test := range []struct {
		name, command string
		max           int
	}{
		{"plain", "seq 1 20000", 2000},
		{"largest", "seq 1 200000", maxOutput},
		{"control characters", "head -c 300000 /dev/zero", maxOutput},
		{"wide characters", "for i in $(seq 1 3000); do printf 'aß€😀'; done", 1000},
		{"both streams", "for i in $(seq 1 3000); do echo $i; echo -$i >&2; done", 1000},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, text := call[processOutput](t, c, "exec", map[string]any{"command": test.command, "max_output": test.max})
			if out.Omitted == nil || out.Process == "" || out.Running || out.Next != out.Total || !strings.Contains(text, "left out") {
				t.Fatalf("%+v", out)
			}
			if b, _ := json.Marshal(out); len(b) > test.max+1000 {
				t.Errorf("%d bytes for max_output %d", len(b), test.max)
			}
			// Every byte is had by reading on from the beginning, and what was left out is just what is missing.
			var whole processOutput
			for whole.Next < out.Total {
				r, _ := call[processResult](t, c, "process", map[string]any{"action": "read", "process": out.Process, "from": whole.Next, "max_output": maxOutput})
				if r.Output.Next <= whole.Next {
					t.Fatalf("no progress at %d", whole.Next)
				}
				whole.Stdout, whole.Stderr, whole.Next = whole.Stdout+r.Output.Stdout, whole.Stderr+r.Output.Stderr, r.Output.Next
			}
			if n := uint64(len(whole.Stdout) + len(whole.Stderr)); n != out.Total || strings.Contains(whole.Stdout, "\uFFFD") {
				t.Errorf("%d bytes were read of %d", n, out.Total)
			}
			mark := fmt.Sprintf("\n[... %d bytes left out: process read from %d ...]\n", out.Omitted.To-out.Omitted.From, out.Omitted.From)
			shown := uint64(len(out.Stdout) + len(out.Stderr) - len(mark))
			if shown+out.Omitted.To-out.Omitted.From != out.Total {
				t.Errorf("%d bytes shown, %+v left out, of %d", shown, *out.Omitted, out.Total)
			}
			// Of two streams, the beginning and the end in time may be of the other one. The mark is in the one that has the beginning.
			stream, all := out.Stdout, whole.Stdout
			if !strings.Contains(stream, mark) {
				stream, all = out.Stderr, whole.Stderr
			}
			head, tail, ok := strings.Cut(stream, mark)
			if !ok || !strings.HasPrefix(all, head) || !strings.HasSuffix(all, tail) || out.Stderr == "" && (head == "" || tail == "") {
				t.Errorf("what is shown is not the beginning and the end: %.40q...%q", head, tail[max(0, len(tail)-40):])
			}
		})
	}
}

func TestProcess(t *testing.T) {
	c, _ := serve(t, nil, nil)
	out, _ := call[processOutput](t, c, "exec", map[string]any{"command": "echo begun; read x; echo got $x; read y; echo end $y; exit 4", "interactive": true, "yield_seconds": 1})
	more := func(o *processOutput, size int) { // reads on until there is so much
		for end := time.Now().Add(time.Minute); o.Running && len(o.Stdout) < size && time.Now().Before(end); {
			r, _ := call[processResult](t, c, "process", map[string]any{"action": "read", "process": o.Process, "from": o.Next, "yield_seconds": 1})
			r.Output.Stdout = o.Stdout + r.Output.Stdout
			*o = *r.Output
		}
	}
	more(&out, len("begun\n"))
	if !out.Running || out.Stdout != "begun\n" || out.Process == "" || out.ExitCode != nil {
		t.Fatalf("%+v", out)
	}
	id := out.Process
	list, _ := call[processResult](t, c, "process", map[string]any{"action": "list"})
	if i := slices.IndexFunc(list.Processes, func(p listedProcess) bool { return p.Process == id }); i < 0 || !list.Processes[i].Running || !strings.HasPrefix(list.Processes[i].Command, "echo begun") {
		t.Errorf("list %+v", list)
	}
	r, _ := call[processResult](t, c, "process", map[string]any{"action": "write", "process": id, "input": "one\n", "from": out.Next})
	more(r.Output, len("got one\n"))
	if r.Output == nil || r.Output.Stdout != "got one\n" || !r.Output.Running {
		t.Errorf("after a line: %+v", r.Output)
	}
	r, text := call[processResult](t, c, "process", map[string]any{"action": "write", "process": id, "input": "two\n", "from": r.Output.Next, "yield_seconds": 20})
	if r.Output.Stdout != "end two\n" || r.Output.Running || *r.Output.ExitCode != 4 || !strings.HasPrefix(text, "[exit code 4") {
		t.Errorf("at the end: %+v", r.Output)
	}
	refused(t, c, "process", "reads no input", map[string]any{"action": "write", "process": id, "input": "late"})
	refused(t, c, "process", "has written 22 bytes", map[string]any{"action": "read", "process": id, "from": 1000})
	refused(t, c, "process", "list shows", map[string]any{"action": "read", "process": "nosuch"})
	refused(t, c, "process", "want the id", map[string]any{"action": "read"})
	refused(t, c, "process", "enum", map[string]any{"action": "reboot", "process": id})

	out, _ = call[processOutput](t, c, "exec", map[string]any{"command": "sleep 1000", "background": true})
	if !out.Running {
		t.Fatalf("%+v", out)
	}
	if r, _ := call[processResult](t, c, "process", map[string]any{"action": "read", "process": out.Process}); !r.Output.Running || r.Output.Stdout != "" {
		t.Errorf("a process that prints nothing: %+v", r.Output)
	}
	if r, _ := call[processResult](t, c, "process", map[string]any{"action": "kill", "process": out.Process, "signal": 15, "yield_seconds": 20}); r.Output.Running || r.Output.Signal != 15 {
		t.Errorf("after SIGTERM: %+v", r.Output)
	}
}

// TestCancel: a cancelled call leaves nothing running, neither what it has waited for nor what that has started.
func TestCancel(t *testing.T) {
	c, _ := serve(t, nil, nil)
	ctx, cancel := context.WithCancel(context.Background())
	began := make(chan error, 1)
	go func() {
		_, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "exec", Arguments: map[string]any{"command": "(sleep 4711 & sleep 4711)"}})
		began <- err
	}()
	count := func() string {
		out, _ := call[processOutput](t, c, "exec", map[string]any{"command": "ps | grep -c '[s]leep 4711$'"})
		return strings.TrimSpace(out.Stdout)
	}
	until(t, "the command runs", func() bool { return count() == "2" })
	cancel()
	if err := <-began; !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled call: %v", err)
	}
	until(t, "the command is gone", func() bool { return count() == "0" })
	until(t, "its record is gone", func() bool {
		list, _ := call[processResult](t, c, "process", map[string]any{"action": "list"})
		return !slices.ContainsFunc(list.Processes, func(p listedProcess) bool { return strings.Contains(p.Command, "4711") })
	})
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after 30 s: %s", what)
		}
	}
}

// TestProgress: a client that wants to know learns that the VM boots and that the command runs.
func TestProgress(t *testing.T) {
	var mu sync.Mutex
	var texts []string
	c, _ := serve(t, &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
		mu.Lock()
		defer mu.Unlock()
		texts = append(texts, r.Params.Message)
	}}, nil)
	p := &sdk.CallToolParams{Name: "exec", Arguments: map[string]any{"command": "echo x; sleep 2.5"}}
	p.SetProgressToken("t")
	if r, err := c.CallTool(context.Background(), p); err != nil || r.IsError {
		t.Fatal(r, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(texts) < 2 || texts[0] != "dev: boots" || !slices.Contains(texts, "runs, 2 bytes of output") {
		t.Errorf("%q", texts)
	}
}
