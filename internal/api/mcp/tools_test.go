package mcp

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"agentvm/egress"
)

func TestFiles(t *testing.T) {
	c, _ := serve(t, nil, nil)
	file := func(name string) map[string]any { return map[string]any{"path": "/tmp/mcp-files/" + name} }
	with := func(args map[string]any, more map[string]any) map[string]any {
		for k, v := range more {
			args[k] = v
		}
		return args
	}
	if out, _ := call[writeOutput](t, c, "write_file", with(file("deep/a.txt"), map[string]any{"content": "one\ntwo\nthree\n"})); !out.Created || out.Bytes != 14 {
		t.Errorf("write: %+v", out)
	}
	if out, text := call[readOutput](t, c, "read_file", file("deep/a.txt")); out.Content != "one\ntwo\nthree\n" || out.More || out.Size != 14 || text != out.Content {
		t.Errorf("read: %+v %q", out, text)
	}
	if out, _ := call[readOutput](t, c, "read_file", with(file("deep/a.txt"), map[string]any{"line": 2, "lines": 1})); out.Content != "two\n" || out.Offset != 4 || out.Next != 8 || !out.More {
		t.Errorf("a line: %+v", out)
	}
	if out, text := call[readOutput](t, c, "read_file", with(file("deep/a.txt"), map[string]any{"offset": 9})); out.Content != "hree\n" || out.More || !strings.HasPrefix(text, "[bytes 9 to 14 of 14]\n") {
		t.Errorf("from a byte: %+v %q", out, text)
	}
	refused(t, c, "read_file", "ends before that", with(file("deep/a.txt"), map[string]any{"line": 9}))
	refused(t, c, "read_file", "ends before that", with(file("deep/a.txt"), map[string]any{"offset": 15}))
	refused(t, c, "read_file", "no such file", file("none"))
	refused(t, c, "read_file", "absolute", map[string]any{"path": "tmp"})
	refused(t, c, "write_file", "is a directory", with(file("deep"), map[string]any{"content": ""}))
	refused(t, c, "write_file", "octal", with(file("x"), map[string]any{"content": "", "mode": "4755"}))

	// Edits, which keep permissions and links.
	call[processOutput](t, c, "exec", map[string]any{"command": "cd /tmp/mcp-files && chmod 751 deep/a.txt && ln -s deep/a.txt link"})
	if out, _ := call[writeOutput](t, c, "edit_file", with(file("link"), map[string]any{"old_string": "two", "new_string": "2"})); out.Replaced != 1 {
		t.Errorf("edit: %+v", out)
	}
	refused(t, c, "edit_file", "does not contain", with(file("link"), map[string]any{"old_string": "two", "new_string": "2"}))
	refused(t, c, "edit_file", "3 times", with(file("link"), map[string]any{"old": "e", "new": "E"})) // as they were called once
	refused(t, c, "edit_file", "both needed", with(file("link"), map[string]any{"old_string": "one"}))
	refused(t, c, "edit_file", "one of each", with(file("link"), map[string]any{"old_string": "e", "new_string": "E", "old": "x"}))
	call[writeOutput](t, c, "edit_file", with(file("link"), map[string]any{"old": "e", "new": "x", "all": true}))
	call[writeOutput](t, c, "edit_file", with(file("link"), map[string]any{"old_string": "x", "new_string": "E", "replace_all": true}))
	call[writeOutput](t, c, "write_file", with(file("link2"), map[string]any{"content": "x", "mode": "700"}))
	out, _ := call[processOutput](t, c, "exec", map[string]any{"command": "cd /tmp/mcp-files && cat deep/a.txt && stat -c %a deep/a.txt link2 && readlink link"})
	if out.Stdout != "onE\n2\nthrEE\n751\n700\ndeep/a.txt\n" {
		t.Errorf("after the edits: %q", out.Stdout)
	}

	// Bytes that are no text, and a file that is longer than a result.
	bytes := strings.Repeat("\x00\xff\xfe", 20000)
	call[writeOutput](t, c, "write_file", with(file("bin"), map[string]any{"content": base64.StdEncoding.EncodeToString([]byte(bytes)), "base64": true}))
	var read strings.Builder
	for more := true; more; {
		out, _ := call[readOutput](t, c, "read_file", with(file("bin"), map[string]any{"base64": true, "offset": read.Len(), "max_output": maxOutput}))
		b, err := base64.StdEncoding.DecodeString(out.Content)
		if err != nil || len(b) == 0 {
			t.Fatal(err, len(b))
		}
		read.Write(b)
		more = out.More
	}
	if read.String() != bytes {
		t.Error("the bytes that were read are not those that were written")
	}
	refused(t, c, "read_file", "set base64", file("bin"))
	call[writeOutput](t, c, "write_file", with(file("latin1"), map[string]any{"content": base64.StdEncoding.EncodeToString([]byte("caf\xe9, na\xefve\n")), "base64": true}))
	if out, text := call[readOutput](t, c, "read_file", file("latin1")); !out.Replace || out.Content != "caf\uFFFD, na\uFFFDve\n" || !strings.HasPrefix(text, "[not UTF-8") {
		t.Errorf("text that is not UTF-8: %+v %q", out, text)
	}
	wide := strings.Repeat("€😀", 3000)
	call[writeOutput](t, c, "write_file", with(file("wide"), map[string]any{"content": wide}))
	read.Reset()
	for more := true; more; {
		out, _ := call[readOutput](t, c, "read_file", with(file("wide"), map[string]any{"offset": read.Len(), "max_output": 1001}))
		if out.Next == out.Offset {
			t.Fatal("no progress")
		}
		read.WriteString(out.Content)
		more = out.More
	}
	if read.String() != wide {
		t.Error("text of wide characters is not what was written")
	}
	refused(t, c, "read_file", "not a regular file", map[string]any{"path": "/dev/zero"})
}

func TestListDir(t *testing.T) {
	c, _ := serve(t, nil, nil)
	call[processOutput](t, c, "exec", map[string]any{"command": "mkdir -p /tmp/mcp-list/d && cd /tmp/mcp-list && printf abc > f && chmod 640 f && ln -s f l && mkfifo p"})
	out, _ := call[listOutput](t, c, "list_dir", map[string]any{"path": "/tmp/mcp-list"})
	var got []string
	for _, e := range out.Entries {
		got = append(got, fmt.Sprintf("%s %s %d %s", e.Name, e.Type, e.Size, e.Target))
	}
	if want := "[d dir 0  f file 3  l link 0 f p other 0 ]"; fmt.Sprint(got) != want || out.Entries[1].Mode != "640" {
		t.Errorf("%v, want %s", got, want)
	}
	call[processOutput](t, c, "exec", map[string]any{"command": "mkdir -p /tmp/mcp-many && cd /tmp/mcp-many && touch $(seq 1000 2199)"})
	seen := 0
	for after, pages := "", 0; ; pages++ {
		out, _ := call[listOutput](t, c, "list_dir", map[string]any{"path": "/tmp/mcp-many", "after": after})
		if seen += len(out.Entries); out.Total != 1200 || pages > 100 {
			t.Fatalf("%d entries in all, page %d", out.Total, pages)
		}
		if after = out.Next; after == "" {
			break
		}
	}
	if seen != 1200 {
		t.Errorf("%d entries on all pages", seen)
	}
	refused(t, c, "list_dir", "no such file", map[string]any{"path": "/nowhere"})
}

// TestNet: an agent can narrow the policy by itself; the user decides about more, and about exactly what was shown.
func TestNet(t *testing.T) {
	for _, version := range []string{"2025-06-18", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			action, shown := "decline", ""
			c, _ := serve(t, &sdk.ClientOptions{ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
				shown = r.Params.Message
				return &sdk.ElicitResult{Action: action}, nil
			}}, &sdk.ClientSessionOptions{ProtocolVersion: version})
			v, _ := (&testVMs{t: t}).Open(t.Context(), "dev", func(string) {})
			if _, err := v.SetPolicy(t.Context(), egress.Policy{Mode: egress.Allowlist}); err != nil {
				t.Fatal(err)
			}
			defer v.SetPolicy(t.Context(), egress.Policy{})

			if out, _ := call[netOutput](t, c, "net", map[string]any{"action": "explain", "host": "example.org"}); out.Decision == nil || out.Decision.Allowed {
				t.Errorf("explain: %+v", out.Decision)
			}
			ask := map[string]any{"action": "ask", "rules": []string{"example.org:443"}, "reason": "tests\nof \x1b[31mthis"}
			out, _ := call[netOutput](t, c, "net", ask)
			if out.Granted == nil || *out.Granted || len(out.Allow) != 0 {
				t.Errorf("declined: %+v", out)
			}
			if !strings.Contains(shown, "then: mode allowlist; allow example.org:443") || strings.Contains(shown, "\x1b") || !strings.Contains(shown, `tests\nof`) {
				t.Errorf("shown %q", shown)
			}
			action = "cancel"
			if out, _ := call[netOutput](t, c, "net", ask); *out.Granted {
				t.Errorf("cancelled: %+v", out)
			}
			if p, err := v.Policy(t.Context()); err != nil || len(p.Allow) != 0 {
				t.Errorf("the policy that the user has not allowed: %v %v", p, err)
			}
			action = "accept"
			if out, _ := call[netOutput](t, c, "net", ask); !*out.Granted || fmt.Sprint(out.Allow) != "[example.org:443]" {
				t.Errorf("accepted: %+v", out)
			}
			if p, err := v.Policy(t.Context()); err != nil || p.String() != "mode allowlist; allow example.org:443" {
				t.Errorf("the policy that the user has allowed: %v %v", p, err)
			}
			action, shown = "accept", ""
			if out, _ := call[netOutput](t, c, "net", map[string]any{"action": "deny", "rules": []string{"*:25"}}); shown != "" || fmt.Sprint(out.Deny) != "[*:25]" {
				t.Errorf("denied: %+v, shown %q", out, shown)
			}
			refused(t, c, "net", "rule", map[string]any{"action": "ask", "rules": []string{"no rule at all"}})
			refused(t, c, "net", "mode", map[string]any{"action": "ask", "mode": "everything"})
			refused(t, c, "net", "want rules", map[string]any{"action": "ask"})
			refused(t, c, "net", "are for deny and ask", map[string]any{"action": "policy", "rules": []string{"a.org"}})
		})
	}
}

// TestNetAnswerIsSealed: an answer that was not given to this question changes nothing.
func TestNetAnswerIsSealed(t *testing.T) {
	c, _ := serve(t, &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{Elicitation: &sdk.ElicitationCapabilities{}}, MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true},
	}, nil)
	v, _ := (&testVMs{t: t}).Open(t.Context(), "dev", func(string) {})
	before, err := v.Policy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer v.SetPolicy(t.Context(), before)
	ask := func(rule, state string, answers sdk.InputResponseMap) *sdk.CallToolResult {
		r, err := c.CallTool(t.Context(), &sdk.CallToolParams{
			Name: "net", Arguments: map[string]any{"action": "ask", "mode": "allowlist", "rules": []string{rule}}, RequestState: state, InputResponses: answers,
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	yes := sdk.InputResponseMap{answer: &sdk.ElicitResult{Action: "accept"}}
	first := ask("a.example.org", "", nil)
	if !first.NeedsInput() || first.RequestState == "" {
		t.Fatalf("%+v", first)
	}
	for name, r := range map[string]*sdk.CallToolResult{
		"no seal":           ask("a.example.org", "", yes),
		"another question":  ask("b.example.org", first.RequestState, yes),
		"an invented seal":  ask("a.example.org", strings.Repeat("A", len(first.RequestState)), yes),
		"no answer":         ask("a.example.org", first.RequestState, nil),
		"another's answers": ask("a.example.org", first.RequestState, sdk.InputResponseMap{"x": yes[answer]}),
	} {
		if !r.NeedsInput() {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if now, err := v.Policy(t.Context()); err != nil || now.String() != before.String() {
		t.Errorf("policy %s, was %s: %v", now, before, err)
	}
	if r := ask("a.example.org", first.RequestState, yes); r.NeedsInput() || r.IsError {
		t.Errorf("the answer to the question: %+v", r)
	}
	if r := ask("a.example.org", first.RequestState, yes); !r.NeedsInput() {
		t.Errorf("the same answer again, to a policy that has changed: %+v", r)
	}
}

// TestNetWithoutElicitation: a client that cannot ask its user gets no more network.
func TestNetWithoutElicitation(t *testing.T) {
	c, _ := serve(t, nil, nil)
	refused(t, c, "net", "cannot ask its user", map[string]any{"action": "ask", "mode": "open"})
}

func TestPorts(t *testing.T) {
	c, _ := serve(t, nil, nil)
	out, _ := call[processOutput](t, c, "exec", map[string]any{"command": "nc -l -p 8123 -e echo hello", "background": true})
	until(t, "the server listens", func() bool {
		list, _ := call[portsOutput](t, c, "ports", map[string]any{"action": "list"})
		for _, l := range list.Listens {
			if strings.HasSuffix(l.Address, ":8123") && l.Protocol == "tcp" {
				return true
			}
		}
		return false
	})
	forward, _ := call[portsOutput](t, c, "ports", map[string]any{"action": "forward", "port": 8123})
	if !strings.HasPrefix(forward.Address, "127.0.0.1:") {
		t.Fatalf("%+v", forward)
	}
	conn, err := net.DialTimeout("tcp", forward.Address, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	b := make([]byte, 6)
	if n, err := conn.Read(b); string(b[:n]) != "hello\n" {
		t.Errorf("%q %v", b[:n], err)
	}
	refused(t, c, "ports", "want 1 to 65535", map[string]any{"action": "forward"})
	call[processResult](t, c, "process", map[string]any{"action": "kill", "process": out.Process})
}

// TestReach: VMs and snapshots that are not the server's do not exist for its tools.
func TestReach(t *testing.T) {
	c, vms := serve(t, nil, nil)
	vms.names = []string{"dev", "dev-try", "devil", "prod"}
	if out, _ := call[forkOutput](t, c, "fork", map[string]any{"action": "list"}); fmt.Sprint(out.Names) != "[dev dev-try]" {
		t.Errorf("VMs %v", out.Names)
	}
	if out, _ := call[snapshotOutput](t, c, "snapshot", map[string]any{"action": "list"}); len(out.Snapshots) != 1 || out.Snapshots[0].Name != "dev-clean" {
		t.Errorf("snapshots %+v", out.Snapshots)
	}
	call[forkOutput](t, c, "fork", map[string]any{"action": "create", "names": []string{"a", "dev-b"}, "keep_programs": true})
	call[forkOutput](t, c, "fork", map[string]any{"action": "create", "vm": "a", "names": []string{"prod"}})
	call[forkOutput](t, c, "fork", map[string]any{"action": "remove", "names": []string{"prod"}})
	call[snapshotOutput](t, c, "snapshot", map[string]any{"action": "create", "name": "s", "comment": "c"})
	call[snapshotOutput](t, c, "snapshot", map[string]any{"action": "restore", "name": "private", "vm": "again"})
	call[snapshotOutput](t, c, "snapshot", map[string]any{"action": "remove", "name": "private"})
	want := []string{
		"fork dev [dev-a dev-b] true", "fork dev-a [dev-prod] false", "remove dev-prod",
		"snapshot dev dev-s c", "restore dev-private dev-again", "remove snapshot dev-private",
	}
	if got := strings.Join(vms.calls, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("calls:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
	refused(t, c, "fork", "which is not dev", map[string]any{"action": "remove", "names": []string{"dev"}})
	refused(t, c, "fork", "given twice", map[string]any{"action": "create", "names": []string{"a", "dev-a"}})
	refused(t, c, "fork", "want 1 to 20", map[string]any{"action": "create"})
	refused(t, c, "fork", "name", map[string]any{"action": "create", "names": []string{"../x"}})
	refused(t, c, "snapshot", "name", map[string]any{"action": "create", "name": "../../x"})
	refused(t, c, "snapshot", "want one for the new VM", map[string]any{"action": "restore", "name": "s"})
}

// TestSessionsAreBounded: clients that open sessions and drop them take a bounded number.
func TestSessionsAreBounded(t *testing.T) {
	s := New(Config{VMs: &testVMs{t: t}, Default: "dev"})
	defer s.Close()
	h := s.handler("0123456789abcdefghij")
	open := func(session string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "http://127.0.0.1"+Path, strings.NewReader(
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`))
		r.Header = http.Header{
			"Authorization": {"Bearer 0123456789abcdefghij"}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		}
		if session != "" {
			r.Method = "DELETE"
			r.Header.Set("Mcp-Session-Id", session)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	var ids []string
	for range 10_000 {
		if w := open(""); w.Code == http.StatusOK {
			ids = append(ids, w.Header().Get("Mcp-Session-Id"))
		} else if w.Code != http.StatusServiceUnavailable {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
	}
	if len(ids) != maxSessions {
		t.Errorf("%d sessions, want %d", len(ids), maxSessions)
	}
	if w := open(ids[0]); w.Code != http.StatusNoContent {
		t.Errorf("DELETE: %d %s", w.Code, w.Body)
	}
	if w := open(""); w.Code != http.StatusOK {
		t.Errorf("after one has ended: %d %s", w.Code, w.Body)
	}
	for session := range s.sdk.Sessions() {
		_ = session.Close()
	}
}

// TestHTTPAttacks: pages of other names and origins, bodies that are too long or too deep, and bodies that never come get an error, and the next
// client is served.
func TestHTTPAttacks(t *testing.T) {
	defer func(was time.Duration) { bodyTime = was }(bodyTime)
	bodyTime = 500 * time.Millisecond
	s := New(Config{VMs: &testVMs{t: t}, Default: "dev", Logger: slog.New(slog.DiscardHandler)})
	defer s.Close()
	const token = "0123456789abcdefghij"
	ctx, cancel := context.WithCancel(t.Context())
	urls, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- s.Serve(ctx, "127.0.0.1:0", token, func(url string) { urls <- url }) }()
	var address string
	select {
	case url := <-urls:
		address = strings.TrimSuffix(strings.TrimPrefix(url, "http://"), Path)
	case err := <-ended:
		t.Fatal(err)
	}
	send := func(host, key, headers, body string, length int) int {
		t.Helper()
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		go fmt.Fprintf(c, "POST "+Path+" HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
			"Accept: application/json, text/event-stream\r\n%sContent-Length: %d\r\n\r\n%s", host, key, headers, length, body)
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("no answer: %v", err)
			return 0
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	deep := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exec","arguments":` + strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000) + `}}`
	stateless := "Mcp-Protocol-Version: " + statelessRevision + "\r\n"
	for name, a := range map[string]struct {
		host, key, headers, body string
		length, want             int
	}{
		"a rebound name":             {"evil.example", token, "", ping, len(ping), http.StatusMisdirectedRequest},
		"a rebound name, stateless":  {"evil.example", token, stateless, ping, len(ping), http.StatusMisdirectedRequest},
		"another origin":             {address, token, "Origin: https://evil.example\r\n", ping, len(ping), http.StatusForbidden},
		"no origin":                  {address, token, "Origin: null\r\n", ping, len(ping), http.StatusForbidden},
		"deep JSON":                  {address, token, "", deep, len(deep), http.StatusBadRequest},
		"deep JSON, stateless":       {address, token, stateless, deep, len(deep), http.StatusBadRequest},
		"a long body":                {address, token, "", strings.Repeat(" ", 64<<20), 64 << 20, http.StatusRequestEntityTooLarge},
		"a body that does not come":  {address, token, "", "{", 100, http.StatusBadRequest},
		"a stranger's does not come": {address, "wrong", "", "{", 100, http.StatusUnauthorized},
	} {
		if got := send(a.host, a.key, a.headers, a.body, a.length); got != a.want {
			t.Errorf("%s: %d, want %d", name, got, a.want)
		}
	}
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	if got := send(address, token, "", initialize, len(initialize)); got != http.StatusOK {
		t.Errorf("after the attacks: %d", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
