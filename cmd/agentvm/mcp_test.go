package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"agentvm/client"
	"agentvm/images/storetest"
	"agentvm/internal/daemon"
	"agentvm/tools"
	"agentvm/vm"
)

// mcpKit is a store of its own, whose VMs are removed at the end, with the images of the shared one.
func mcpKit(t testing.TB) (dir string, env []string) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots VMs")
	}
	store, mirror, _ := testStore(t)
	dir = t.TempDir()
	own := filepath.Join(dir, "store")
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"blobs", "compiled", "disks", "images", "locks"} {
		from := filepath.Join(store, part)
		if err := os.MkdirAll(from, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(from, filepath.Join(own, part)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		vms := daemon.Store{Dir: filepath.Join(own, "vms")}
		list, err := vms.List(ctx)
		for _, v := range list {
			if _, stopErr := vms.Stop(ctx, v.Name, 0); err == nil {
				err = stopErr
			}
			if removeErr := vms.Remove(ctx, v.Name); err == nil {
				err = removeErr
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
	env = append(os.Environ(), "AGENTVM_STORE="+own, "AGENTVM_ALPINE_MIRROR="+mirror, "AGENTVM_REGISTRY_MIRRORS=docker.io=http://127.0.0.1:1", "HOME="+dir)
	for name, value := range storetest.UserVariables(store + ".home") {
		env = append(env, name+"="+value)
	}
	return dir, env
}

// mcpSession starts agentvm mcp in a directory and connects to its standard streams. hangUp ends its input, and waits for its end.
func mcpSession(t testing.TB, dir string, env []string, args ...string) (c *sdk.ClientSession, hangUp func()) {
	t.Helper()
	command := exec.Command("agentvm", append([]string{"mcp"}, args...)...)
	command.Dir, command.Env, command.Stderr = dir, env, os.Stderr
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err = sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(ctx, &sdk.IOTransport{Reader: out, Writer: in}, nil)
	if err != nil {
		t.Fatal(err)
	}
	hangUp = sync.OnceFunc(func() {
		_ = in.Close()
		ended := make(chan error, 1)
		go func() { ended <- c.Wait(); ended <- command.Wait() }()
		for range 2 {
			select {
			case err := <-ended:
				if err != nil {
					t.Logf("the end of the session: %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Error("agentvm mcp does not end with its input")
				_ = command.Process.Kill()
			}
		}
	})
	t.Cleanup(hangUp)
	return c, hangUp
}

func mcpCall(t testing.TB, c *sdk.ClientSession, tool string, args map[string]any) (map[string]any, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r, err := c.CallTool(ctx, &sdk.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s %v: %v", tool, args, err)
	}
	text := ""
	for _, content := range r.Content {
		text += content.(*sdk.TextContent).Text
	}
	if r.IsError {
		return nil, text
	}
	out, _ := r.StructuredContent.(map[string]any)
	return out, text
}

// TestMCP is an agent's session with the program: a VM that is made for the directory, its mount, forks and snapshots, and a second session that
// finds all of it.
func TestMCP(t *testing.T) {
	dir, env := mcpKit(t)
	work := filepath.Join(dir, "My Project")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"--mount", ".", "--memory", "256M", "--net", "allowlist"}
	c, hangUp := mcpSession(t, work, env, args...)
	out, text := mcpCall(t, c, "exec", map[string]any{"command": "pwd; echo from the guest > file; echo data > /root/kept; id -u"})
	if out == nil || out["stdout"] != "/mnt/host\n0\n" {
		t.Fatalf("%v %s", out, text)
	}
	name, _ := out["vm"].(string)
	if !regexp.MustCompile(`^mcp-my-project-[0-9a-f]{8}$`).MatchString(name) {
		t.Errorf("VM %q", name)
	}
	if b, err := os.ReadFile(filepath.Join(work, "file")); err != nil || string(b) != "from the guest\n" {
		t.Errorf("the mounted file: %q %v", b, err)
	}
	for _, path := range []string{".mcp.json", ".claude/settings.json", ".claude/hooks", ".codex", ".cursor/hooks.json", ".vscode/mcp.json"} {
		out, text := mcpCall(t, c, "exec", map[string]any{"command": fmt.Sprintf("mkdir -p $(dirname %[1]s) && echo x > %[1]s", path)})
		if out == nil || out["exit_code"] == 0.0 {
			t.Errorf("the guest could make %s: %v %s", path, out, text)
		}
	}

	// A fork and a restored snapshot have the files, and cannot change the VM's.
	if out, text := mcpCall(t, c, "snapshot", map[string]any{"action": "create", "name": "clean", "comment": "before"}); out == nil || out["name"] != name+"-clean" {
		t.Fatalf("%v %s", out, text)
	}
	if out, text := mcpCall(t, c, "fork", map[string]any{"action": "create", "names": []string{"try"}}); out == nil || fmt.Sprint(out["names"]) != "["+name+"-try]" {
		t.Fatalf("%v %s", out, text)
	}
	if out, text := mcpCall(t, c, "exec", map[string]any{"vm": "try", "command": "cat /root/kept; echo changed > /root/kept"}); out == nil || out["stdout"] != "data\n" {
		t.Errorf("in the fork: %v %s", out, text)
	}
	if _, text := mcpCall(t, c, "net", map[string]any{"action": "deny", "rules": []string{"*:25"}}); !strings.Contains(text, "*:25") {
		t.Errorf("deny: %s", text)
	}
	if out, text := mcpCall(t, c, "snapshot", map[string]any{"action": "restore", "name": "clean", "vm": "again"}); out == nil {
		t.Fatal(text)
	}
	if out, text := mcpCall(t, c, "exec", map[string]any{"vm": "again", "command": "cat /root/kept"}); out == nil || out["stdout"] != "data\n" {
		t.Errorf("in the restored VM: %v %s", out, text)
	}
	if _, text := mcpCall(t, c, "net", map[string]any{"action": "policy", "vm": "again"}); !strings.Contains(text, "*:25") {
		t.Errorf("the restored VM reaches more than the one that was saved may now: %s", text)
	}
	if out, text := mcpCall(t, c, "fork", map[string]any{"action": "remove", "names": []string{"try", "again"}}); out == nil {
		t.Error(text)
	}
	if out, _ := mcpCall(t, c, "fork", map[string]any{"action": "list"}); fmt.Sprint(out["names"]) != "["+name+"]" {
		t.Errorf("VMs %v", out)
	}

	// What exec has left running continues without the session; a call that waits does not.
	background, text := mcpCall(t, c, "exec", map[string]any{"command": "sleep 4711", "background": true})
	if background == nil {
		t.Fatal(text)
	}
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		_, _ = c.CallTool(context.Background(), &sdk.CallToolParams{Name: "exec", Arguments: map[string]any{"command": "sleep 4712"}})
	}()
	second, _ := mcpSession(t, work, env, args...) // the same flags, while the VM runs
	sleeps := func() string {
		out, text := mcpCall(t, second, "exec", map[string]any{"command": "ps | grep -o '[s]leep 471.' | sort -u | tr '\\n' ' '"})
		if out == nil {
			t.Fatal(text)
		}
		return fmt.Sprint(out["stdout"])
	}
	awaitText(t, sleeps, "sleep 4711 sleep 4712 ")
	hangUp()
	<-waiting
	awaitText(t, sleeps, "sleep 4711 ")

	// Flags that a running VM does not have are no silent promise. Once it has stopped, they hold for whatever comes of its snapshots and forks, too.
	narrower := []string{"--mount", ".", "--memory", "256M", "--net", "none"}
	refusing := exec.Command("agentvm", append([]string{"mcp"}, narrower...)...)
	refusing.Dir, refusing.Env = work, env
	if b, err := refusing.CombinedOutput(); err == nil || !strings.Contains(string(b), "runs already, and otherwise") {
		t.Errorf("%v: %s", err, b)
	}
	if out, text := mcpCall(t, second, "fork", map[string]any{"action": "create", "names": []string{"stopped"}}); out == nil {
		t.Fatal(text)
	}
	stop := exec.Command("agentvm", "stop", name, name+"-stopped")
	stop.Env = env
	if b, err := stop.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	third, _ := mcpSession(t, work, env, narrower...)
	if out, text := mcpCall(t, third, "snapshot", map[string]any{"action": "restore", "name": "clean", "vm": "later"}); out == nil {
		t.Fatal(text)
	}
	for _, name := range []string{"later", "stopped", ""} {
		if out, text := mcpCall(t, third, "net", map[string]any{"action": "policy", "vm": name}); out["mode"] != "none" {
			t.Errorf("%q: %s", name, text)
		}
	}
	if out, text := mcpCall(t, third, "exec", map[string]any{"command": "cat /root/kept"}); out == nil || out["stdout"] != "data\n" {
		t.Errorf("after a stop: %v %s", out, text)
	}
}

func awaitText(t *testing.T, get func() string, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if got = get(); got == want {
			return
		}
	}
	t.Fatalf("%q, want %q", got, want)
}

// TestMCPHTTP: only who has the token is served, only from this host's own pages, with and without sessions.
func TestMCPHTTP(t *testing.T) {
	dir, env := mcpKit(t)
	const token = "0123456789abcdefghij"
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("agentvm", "mcp", "--vm", "web", "--memory", "256M", "--http", "127.0.0.1:0", "--token-file", "token")
	command.Dir, command.Env = dir, env
	stderr, err := command.StderrPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	defer func() {
		_ = command.Process.Kill()
		<-ended
	}()
	lines := bufio.NewReader(stderr)
	line, err := lines.ReadString('\n')
	go func() { _, _ = io.Copy(io.Discard, lines); ended <- command.Wait() }()
	url := regexp.MustCompile(`http://127\.0\.0\.1:\d+/mcp`).FindString(line)
	if url == "" {
		t.Fatalf("%q %v", line, err)
	}

	for name, test := range map[string]struct {
		header http.Header
		want   int
	}{
		"no token":        {http.Header{}, 401},
		"a wrong token":   {http.Header{"Authorization": {"Bearer " + token + "x"}}, 401},
		"a page's origin": {http.Header{"Authorization": {"Bearer " + token}, "Origin": {"https://evil.example"}}, 403},
		"a rebound name":  {http.Header{"Authorization": {"Bearer " + token}, "Host": {"evil.example"}}, 421},
		"no media type":   {http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"text/plain"}}, 415},
	} {
		r, err := http.NewRequest("POST", url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		for key, value := range test.header {
			r.Header[key] = value
		}
		r.Host = test.header.Get("Host")
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != test.want {
			t.Errorf("%s: %s, want %d", name, response.Status, test.want)
		}
	}

	for _, version := range []string{"2025-06-18", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			transport := &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: withToken{token}}}
			c, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(ctx, transport, &sdk.ClientSessionOptions{ProtocolVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if got := c.InitializeResult().ProtocolVersion; got != version {
				t.Errorf("revision %s", got)
			}
			if out, text := mcpCall(t, c, "exec", map[string]any{"command": "echo $((6 * 7))"}); out == nil || out["stdout"] != "42\n" {
				t.Errorf("%v %s", out, text)
			}
			// A cancelled call is cancelled in the VM.
			calling, stop := context.WithCancel(ctx)
			called := make(chan error, 1)
			go func() {
				_, err := c.CallTool(calling, &sdk.CallToolParams{Name: "exec", Arguments: map[string]any{"command": "sleep 4713"}})
				called <- err
			}()
			sleeps := func() string {
				out, _ := mcpCall(t, c, "exec", map[string]any{"command": "ps | grep -c '[s]leep 4713$'"})
				return fmt.Sprint(out["stdout"])
			}
			awaitText(t, sleeps, "1\n")
			stop()
			if err := <-called; err == nil {
				t.Error("a cancelled call succeeded")
			}
			awaitText(t, sleeps, "0\n")
		})
	}

	if runtime.GOOS == "windows" {
		return
	}
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if ended <- err; err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it does not end by SIGTERM")
	}
}

type withToken struct{ token string }

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+w.token)
	return http.DefaultTransport.RoundTrip(r)
}

// TestMCPEndsBySignal: a client that ends its server by a signal does not wait for its standard input.
func TestMCPEndsBySignal(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no SIGTERM")
	}
	dir, env := mcpKit(t)
	command := exec.Command("agentvm", "mcp")
	command.Dir, command.Env = dir, env
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	answer, err := bufio.NewReader(out).ReadBytes('\n')
	var message struct {
		Result struct{ Instructions string }
	}
	if err == nil {
		err = json.Unmarshal(answer, &message)
	}
	if err != nil || !strings.Contains(message.Result.Instructions, "mcp-") {
		t.Errorf("%s %v", answer, err)
	}
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	select {
	case err := <-ended:
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 143 {
			t.Errorf("after SIGTERM: %v", err)
		}
	case <-time.After(20 * time.Second):
		_ = command.Process.Kill()
		t.Error("it does not end by SIGTERM")
	}
}

// TestMCPEndsWithItsClient: a client that dies while another process holds the other end of standard input does not leave its server behind.
func TestMCPEndsWithItsClient(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("wants a shell")
	}
	dir, env := mcpKit(t)
	// The shell is the client, and this test holds both pipes. What it writes says that the server runs.
	client := exec.Command("sh", "-c", "agentvm mcp <&3 & wait")
	client.Dir, client.Env = dir, env
	in, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	client.ExtraFiles = []*os.File{in}
	out, err := client.StdoutPipe()
	if err == nil {
		err = client.Start()
	}
	_ = in.Close()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(held, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	lines := bufio.NewReader(out)
	if answer, err := lines.ReadBytes('\n'); err != nil {
		t.Errorf("%s %v", answer, err)
	}
	if err := client.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { _, err := lines.ReadByte(); ended <- err }() // the server's end closes its standard output
	select {
	case err := <-ended:
		if err != io.EOF {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it runs on without its client")
	}
	_ = held.Close()
	_ = client.Wait()
}

// TestMCPInstallFollowsNoLink: in a directory that a guest could change, links lead nowhere.
func TestMCPInstallFollowsNoLink(t *testing.T) {
	dir, env := mcpKit(t)
	work, outside := filepath.Join(dir, "work"), filepath.Join(dir, "outside")
	for _, d := range []string{work, outside} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c, _ := mcpSession(t, work, env, "--mount", ".", "--memory", "256M", "--unprotected", ".")
	if out, text := mcpCall(t, c, "exec", map[string]any{"command": "ln -s ../outside .cursor && ln -s ../outside/config .mcp.json && mkdir .vscode && ln -s ../../outside/config .vscode/mcp.json"}); out == nil || out["exit_code"] != 0.0 {
		t.Fatalf("%v %s", out, text)
	}
	for _, program := range []string{"cursor", "claude-code", "vscode"} {
		command := exec.Command("agentvm", "mcp", "install", program, "-y")
		command.Dir, command.Env = work, env
		if b, err := command.CombinedOutput(); err == nil || !strings.Contains(string(b), "link") {
			t.Errorf("%s: %v: %s", program, err, b)
		}
	}
	if list, err := os.ReadDir(outside); err != nil || len(list) > 0 {
		t.Errorf("written through a link: %v %v", list, err)
	}
}

// TestToolsOfNamedVM: the tools that models are trained on work in a VM that a daemon owns.
func TestToolsOfNamedVM(t *testing.T) {
	dir, env := mcpKit(t)
	c, _ := mcpSession(t, dir, env, "--vm", "dev", "--memory", "256M")
	mcpCall(t, c, "exec", map[string]any{"command": "true"})
	store, err := client.OpenStore(client.StoreOptions{Dir: filepath.Join(dir, "store")})
	if err != nil {
		t.Fatal(err)
	}
	v, err := store.Open(t.Context(), "dev")
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	set := tools.New(v, tools.Options{})
	for _, call := range []struct{ tool, input, want string }{
		{tools.BashName, `{"command":"cd /usr; x=1"}`, ``},
		{tools.BashName, `{"command":"pwd; echo $x >&2"}`, `^/usr\n1\n$`},
		{tools.BashName, `{"command":"echo end; exit 4"}`, `^end\nthe shell has ended with exit code 4`},
		{tools.BashName, `{"restart":true}`, `restarted`},
		{tools.BashName, `{"command":"sleep 4731 & echo $x"}`, `^\n$`},
		{tools.EditorName, `{"command":"create","path":"/root/f","file_text":"a"}`, `created`},
		{tools.ShellName, `{"commands":["cat /root/f"]}`, `"stdout":"a"`},
		{tools.ExecCommandName, `{"cmd":"read a; echo got $a; sleep 4732","tty":true,"yield_time_ms":100}`, `session ID 1\n`},
		{tools.WriteStdinName, `{"session_id":1,"chars":"it\n","yield_time_ms":2000}`, `got it\r\n`},
	} {
		r, err := set.Call(t.Context(), call.tool, json.RawMessage(call.input))
		want := regexp.MustCompile(call.want)
		for end := time.Now().Add(time.Minute); call.tool == tools.WriteStdinName && err == nil && !want.MatchString(r.Text) && time.Now().Before(end); {
			text := r.Text
			r, err = set.Call(t.Context(), call.tool, json.RawMessage(`{"session_id":1,"yield_time_ms":1000}`))
			r.Text = text + r.Text
		}
		if err != nil || !want.MatchString(r.Text) {
			t.Errorf("%s %s: %+v %v", call.tool, call.input, r, err)
		}
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	awaitText(t, func() string {
		out, _ := mcpCall(t, c, "exec", map[string]any{"command": "ps | grep -c '[s]leep 473.$'"})
		return fmt.Sprint(out["stdout"])
	}, "0\n")
}

// BenchmarkMCPExec is what a tool's call takes beside the same command by the library, which keeps its connection and no output.
func BenchmarkMCPExec(b *testing.B) {
	dir, env := mcpKit(b)
	c, _ := mcpSession(b, dir, env, "--vm", "bench", "--memory", "256M")
	mcpCall(b, c, "exec", map[string]any{"command": "true"})
	store, err := client.OpenStore(client.StoreOptions{Dir: filepath.Join(dir, "store")})
	if err != nil {
		b.Fatal(err)
	}
	v, err := store.Open(b.Context(), "bench")
	if err != nil {
		b.Fatal(err)
	}
	defer v.Close()
	var library, tool []time.Duration
	for b.Loop() { // by turns, so that a busy host slows both
		began := time.Now()
		if r, err := v.Run(b.Context(), vm.Command{Line: "true"}); err != nil || r.ExitCode != 0 {
			b.Fatal(r, err)
		}
		library = append(library, time.Since(began))
		began = time.Now()
		if out, text := mcpCall(b, c, "exec", map[string]any{"command": "true"}); out == nil || out["exit_code"] != 0.0 {
			b.Fatal(text)
		}
		tool = append(tool, time.Since(began))
	}
	median := func(list []time.Duration) float64 {
		slices.Sort(list)
		return list[len(list)/2].Seconds() * 1e3
	}
	b.ReportMetric(median(library), "library-ms")
	b.ReportMetric(median(tool), "stdio-ms")
}
