package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"agentvm/images/storetest"
	"agentvm/internal/work/headtail"
	"agentvm/vm"
)

var (
	kit    storetest.Store
	update = flag.Bool("update", false, "write the results of the transcripts")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(kit.Main(m.Run))
}

func start(t *testing.T) *vm.VM {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a VM")
	}
	v, err := vm.Start(t.Context(), vm.Config{Image: kit.Image(t), StoreDir: kit.Dir(), Memory: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

func call(t *testing.T, tools *Tools, name string, input any) Result {
	t.Helper()
	text, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	r, err := tools.Call(t.Context(), name, text)
	if err != nil {
		t.Fatalf("%s %s: %v", name, text, err)
	}
	return r
}

// TestTranscripts makes the calls of testdata in a VM, and gets the results that are recorded there.
func TestTranscripts(t *testing.T) {
	v := start(t)
	files, err := filepath.Glob(filepath.Join("testdata", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	// What differs from run to run.
	differs := regexp.MustCompile(`(Chunk ID: )[0-9a-f]{6}(\nWall time: )[0-9.]+`)
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".json"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var calls []struct {
				Tool   string          `json:"tool"`
				Input  json.RawMessage `json:"input"`
				Result Result          `json:"result"`
			}
			if err := json.Unmarshal(text, &calls); err != nil {
				t.Fatal(err)
			}
			// Longer than any command of the transcripts takes that is to end, on a busy host.
			tools := New(v, Options{Timeout: 10 * time.Second, MaxOutput: 1000})
			defer tools.Close()
			for i, c := range calls {
				got := call(t, tools, c.Tool, c.Input)
				got.Text = differs.ReplaceAllString(got.Text, "${1}ID${2}TIME")
				if diff := cmp.Diff(c.Result, got); diff != "" && !*update {
					t.Errorf("call %d, %s %s (-want +got):\n%s", i, c.Tool, c.Input, diff)
				}
				calls[i].Result = got
			}
			if *update {
				var b bytes.Buffer
				encoder := json.NewEncoder(&b)
				encoder.SetEscapeHTML(false)
				encoder.SetIndent("", "  ")
				if err := encoder.Encode(calls); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// runs says whether a program runs in the VM.
func runs(t *testing.T, v *vm.VM, program string) bool {
	t.Helper()
	r, err := v.Run(t.Context(), vm.Command{Line: "ps -o args"})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(r.Stdout), program)
}

// TestEnds: what a call or the tools have started ends with a cancelled call, and with the tools.
func TestEnds(t *testing.T) {
	v := start(t)
	tools := New(v, Options{})
	for name, one := range map[string]struct{ input, program string }{
		BashName:        {`{"command":"sleep 5001 & sleep 5002"}`, "sleep 5002"},
		ShellName:       {`{"commands":["sleep 5003"]}`, "sleep 5003"},
		ExecCommandName: {`{"cmd":"sleep 5004"}`, "sleep 5004"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if r, err := tools.Call(ctx, name, json.RawMessage(one.input)); err == nil || ctx.Err() == nil {
				t.Errorf("%s: %+v %v", name, r, err)
			}
		}()
		for end := time.Now().Add(time.Minute); !runs(t, v, one.program) && time.Now().Before(end); {
			time.Sleep(50 * time.Millisecond)
		}
		cancel()
		<-ended
	}
	if r := call(t, tools, BashName, BashInput{Command: "true"}); !r.IsError || !strings.Contains(r.Text, "cancelled") {
		t.Errorf("%+v", r)
	}
	call(t, tools, BashName, BashInput{Restart: true})
	call(t, tools, BashName, BashInput{Command: "sleep 5005 &"})
	var none int64
	call(t, tools, ExecCommandName, ExecCommandInput{Cmd: "sleep 5006", YieldTimeMillis: &none})
	if !runs(t, v, "sleep 5005") || !runs(t, v, "sleep 5006") {
		t.Error("what is left running does not")
	}
	if err := tools.Close(); err != nil {
		t.Error(err)
	}
	if runs(t, v, "sleep 500") {
		t.Error("something runs on")
	}
	if list, err := v.Jobs(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("jobs %v %v", list, err)
	}
	if r, err := tools.Exec.Command(t.Context(), ExecCommandInput{Cmd: "true"}); err == nil {
		t.Errorf("after Close: %+v", r)
	}
}

// TestSessionsBounded: an agent leaves no more commands running than it may.
func TestSessionsBounded(t *testing.T) {
	v := start(t)
	tools := New(v, Options{})
	defer tools.Close()
	var none int64
	in := ExecCommandInput{Cmd: "exec sleep 5010", YieldTimeMillis: &none}
	for range maxSessions {
		if _, err := tools.Exec.Command(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
	if r := call(t, tools, ExecCommandName, in); !r.IsError || !strings.Contains(r.Text, "let one end") {
		t.Errorf("%+v", r)
	}
}

// TestBashTogether: calls that come together run one after the other, in one session.
func TestBashTogether(t *testing.T) {
	tools := New(start(t), Options{})
	defer tools.Close()
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if r := call(t, tools, BashName, BashInput{Command: "n=${n:-0}; sleep 0.05; n=$((n + 1))"}); r != (Result{}) {
				t.Errorf("%+v", r)
			}
		})
	}
	calls.Wait()
	if r := call(t, tools, BashName, BashInput{Command: "echo $n"}); r.Text != "8\n" {
		t.Errorf("%+v", r)
	}
}

// TestBashMistakes: source that the shell cannot read does not end the session.
func TestBashMistakes(t *testing.T) {
	tools := New(start(t), Options{Env: []string{"A=a b"}, Dir: "/usr"})
	defer tools.Close()
	for _, source := range []string{"if", "echo 'unterminated", "nosuchprogram", "x=$("} {
		r := call(t, tools, BashName, BashInput{Command: source})
		if r.IsError || !regexp.MustCompile(`(syntax error|not found|unexpected|unterminated)(.|\n)*\[exit code \d+\]$`).MatchString(r.Text) {
			t.Errorf("%s: %+v", source, r)
		}
	}
	if r := call(t, tools, BashName, BashInput{Command: "echo $A; pwd; yes | head -c 100000"}); !strings.HasPrefix(r.Text, "a b\n/usr\ny\n") || len(r.Text) > defaultMaxOutput+100 {
		t.Errorf("%d bytes, %.100q", len(r.Text), r.Text)
	}
}

// FuzzShorten: a shortened text has its beginning and its end, says how much is left out, and is as short as was wanted.
func FuzzShorten(f *testing.F) {
	f.Add("plain", 0, 100)
	f.Add("aß€😀aß€😀", 7, 9)
	f.Add("\xff\xff\xff", 0, 1)
	f.Fuzz(func(t *testing.T, text string, missing, limit int) {
		if limit < 0 || limit > 1000 || missing < 0 || missing > 1<<30 || missing > 0 && len(text) < limit {
			return
		}
		short := shorten(text, missing, limit)
		if missing == 0 && len(text) <= limit {
			if short != strings.ToValidUTF8(text, "\uFFFD") {
				t.Fatalf("%q", short)
			}
			return
		}
		head, tail, found := strings.Cut(short, "\n[... ")
		count, tail, _ := strings.Cut(tail, " bytes left out ...]\n")
		n, err := strconv.Atoi(count)
		if !found || err != nil || !utf8.ValidString(short) || n < missing+len(text)-limit {
			t.Fatalf("%q of %q", short, text)
		}
		if utf8.ValidString(text) && (!strings.HasPrefix(text, head) || !strings.HasSuffix(text, tail) || len(head)+len(tail)+n != len(text)+missing) {
			t.Fatalf("%q of %q, %d missing", short, text, missing)
		}
	})
}

// FuzzSessionOutput: whatever a shell writes, in whatever pieces, what is before the mark is the command's output and what is behind it is the next one's.
func FuzzSessionOutput(f *testing.F) {
	f.Add("output\n", "later", 3, 1)
	f.Add("\nabc", "\n\nabc", 0, 2)
	f.Add("\nabcd", "", 255, 100)
	f.Fuzz(func(t *testing.T, before, after string, code, size int) {
		const mark = "\nabcdefgh "
		if len(before)+len(after) > 1000 || strings.Contains(before+after, "abcdefgh") || code < 0 || code > 255 || size < 1 {
			return
		}
		o := &sessionOutput{kept: headtail.New(4096), limit: 4096}
		got := o.expect(mark)
		text := []byte(before + mark + strconv.Itoa(code) + "\n" + after)
		for len(text) > 0 {
			n := min(size, len(text))
			if _, err := o.Write(text[:n]); err != nil {
				t.Fatal(err)
			}
			text = text[n:]
		}
		if n := <-got; n != code {
			t.Fatalf("exit code %d, want %d", n, code)
		}
		if text, want := o.take(), strings.ToValidUTF8(before, "\uFFFD"); text != want {
			t.Fatalf("%q, want %q", text, want)
		}
		o.expect("\nnext ")
		if text, want := o.take(), strings.ToValidUTF8(after, "\uFFFD"); text != want {
			t.Fatalf("then %q, want %q", text, want)
		}
	})
}
