//go:build linux

package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/test/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// connect runs a supervisor in this process and returns a client of it. Both are gone when the test ends.
func connect(t testing.TB) *guestrpc.Client {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	host, port := net.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- guestrpc.Serve(ctx, port, s, nil) }()
	client, err := guestrpc.Dial(testContext(t), host, guestrpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close client: %v", err)
		}
		stop()
		<-served
		if err := s.Close(); err != nil {
			t.Errorf("close supervisor: %v", err)
		}
	})
	return client
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // also of commands in a machine, on a busy host
	t.Cleanup(cancel)
	return ctx
}

type result struct {
	Stdout, Stderr string
	Code, Signal   int
}

func run(t testing.TB, c *guestrpc.Client, p guestrpc.ExecParams) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	p.Stdout, p.Stderr = &stdout, &stderr
	process, err := c.Exec(testContext(t), p)
	if err != nil {
		t.Fatalf("Exec(%q): %v", p.Args, err)
	}
	status, err := process.Wait(testContext(t))
	if err != nil {
		t.Fatalf("Wait(%q): %v", p.Args, err)
	}
	return result{stdout.String(), stderr.String(), status.Code, status.Signal}
}

func TestExec(t *testing.T) {
	c := connect(t)
	sh := func(script string) []string { return []string{"/bin/sh", "-c", script} }
	for _, tt := range []struct {
		name string
		give guestrpc.ExecParams
		want result
	}{
		{"nothing", guestrpc.ExecParams{Args: []string{"true"}}, result{}},
		{"code", guestrpc.ExecParams{Args: sh("exit 42")}, result{Code: 42}},
		{"separate streams", guestrpc.ExecParams{Args: sh("echo out; echo err >&2")}, result{Stdout: "out\n", Stderr: "err\n"}},
		{"after the hold time", guestrpc.ExecParams{Args: sh("echo a; sleep 0.1; echo b; exit 3")}, result{Stdout: "a\nb\n", Code: 3}},
		{"signal", guestrpc.ExecParams{Args: sh("kill -9 $$")}, result{Code: 137, Signal: 9}},
		{"short input", guestrpc.ExecParams{Args: []string{"cat"}, Stdin: strings.NewReader("a\x00b")}, result{Stdout: "a\x00b"}},
		{"streamed input", guestrpc.ExecParams{Args: []string{"cat"}, Stdin: io.MultiReader(strings.NewReader("one "), strings.NewReader("two"))}, result{Stdout: "one two"}},
		{"no input", guestrpc.ExecParams{Args: []string{"cat"}}, result{}},
		{"empty input", guestrpc.ExecParams{Args: []string{"cat"}, Stdin: io.MultiReader()}, result{}},
		{"input not read", guestrpc.ExecParams{Args: []string{"true"}, Stdin: zeros{}}, result{}},
		{"environment", guestrpc.ExecParams{Args: sh("echo $A $HOME $USER"), Env: []string{"A=1", "HOME=/x"}}, result{Stdout: "1 /x root\n"}},
		{"directory", guestrpc.ExecParams{Args: []string{"pwd"}, Dir: "/usr"}, result{Stdout: "/usr\n"}},
		{"user", guestrpc.ExecParams{Args: sh("id -u; id -g"), User: "12:34", Dir: "/"}, result{Stdout: "12\n34\n"}},
		{"not found", guestrpc.ExecParams{Args: []string{"no-such"}}, result{Code: 127, Stderr: "agentvm: command not found: \"no-such\"\n"}},
		{"path not found", guestrpc.ExecParams{Args: []string{"/no/such"}}, result{Code: 127, Stderr: "agentvm: cannot execute \"/no/such\": no such file or directory\n"}},
		{"not executable", guestrpc.ExecParams{Args: []string{"/etc/passwd"}}, result{Code: 126, Stderr: "agentvm: cannot execute \"/etc/passwd\": permission denied\n"}},
		{"left behind", guestrpc.ExecParams{Args: sh("sleep 5 & echo hi")}, result{Stdout: "hi\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, run(t, c, tt.give)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestExecRefused(t *testing.T) {
	c := connect(t)
	for _, tt := range []struct {
		name string
		give guestrpc.ExecParams
		want error
	}{
		{"no program", guestrpc.ExecParams{}, syscall.EINVAL},
		{"missing directory", guestrpc.ExecParams{Args: []string{"true"}, Dir: "/no/such"}, fs.ErrNotExist},
		{"directory is a file", guestrpc.ExecParams{Args: []string{"true"}, Dir: "/etc/passwd"}, syscall.ENOTDIR},
		{"unknown user", guestrpc.ExecParams{Args: []string{"true"}, User: "no-such-user"}, syscall.ENOENT},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := c.Exec(testContext(t), tt.give)
			if !errors.Is(err, tt.want) || p != nil {
				t.Errorf("got %v, %v; want %v", p, err, tt.want)
			}
		})
	}
}

func TestRoundTrip(t *testing.T) {
	c := connect(t)
	data := make([]byte, 10<<20)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	got := run(t, c, guestrpc.ExecParams{Args: []string{"cat"}, Stdin: bytes.NewReader(data)})
	if sha256.Sum256([]byte(got.Stdout)) != sha256.Sum256(data) {
		t.Errorf("got %d bytes, want %d, or other ones", len(got.Stdout), len(data))
	}
}

func TestConcurrent(t *testing.T) {
	c := connect(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			got := run(t, c, guestrpc.ExecParams{Args: []string{"sh", "-c", "seq 1 20000; sleep 0.05; cat"}, Stdin: io.MultiReader(strings.NewReader("end"))})
			if !strings.HasSuffix(got.Stdout, "20000\nend") || len(got.Stdout) != 108894+3 {
				t.Errorf("got %d bytes, code %d", len(got.Stdout), got.Code)
			}
		})
	}
	wg.Wait()
}

func TestKill(t *testing.T) {
	c := connect(t)
	ctx := testContext(t)
	p, err := c.Exec(ctx, guestrpc.ExecParams{Args: []string{"sh", "-c", "sleep 1000 & sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	status, err := p.Wait(ctx)
	if err != nil || status.Signal != 9 {
		t.Errorf("got %+v, %v", status, err)
	}
	if err := p.Kill(ctx); err != nil {
		t.Errorf("second kill: %v", err)
	}
	if err := p.Signal(ctx, 15); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestSignal(t *testing.T) {
	c := connect(t)
	ctx := testContext(t)
	r, w := io.Pipe()
	p, err := c.Exec(ctx, guestrpc.ExecParams{Args: []string{"sh", "-c", "trap 'echo got it; exit 5' TERM; echo ready; while :; do sleep 0.01; done"}, Stdout: w})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	rest := make(chan string)
	go func() { b, _ := io.ReadAll(r); rest <- string(b) }()
	if err := p.Signal(ctx, 15); err != nil {
		t.Fatal(err)
	}
	status, err := p.Wait(ctx)
	_ = w.Close()
	if out := <-rest; err != nil || status.Code != 5 || out != "got it\n" {
		t.Errorf("got %+v, %v, %q", status, err, out)
	}
}

func TestTerminal(t *testing.T) {
	c := connect(t)
	ctx := testContext(t)
	in, keys := io.Pipe()
	var out bytes.Buffer
	p, err := c.Exec(ctx, guestrpc.ExecParams{
		Args: []string{"sh", "-c", "tty; stty size; read x; stty size; echo got $x; exit 7"}, Terminal: &guestrpc.Size{Columns: 80, Rows: 24},
		Stdin: in, Stdout: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Resize(ctx, 100, 50); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(keys, "hello\n"); err != nil {
		t.Fatal(err)
	}
	status, err := p.Wait(ctx)
	_ = keys.Close()
	if err != nil || status.Code != 7 {
		t.Errorf("got %+v, %v", status, err)
	}
	for _, want := range []string{"/dev/pts/", "50 100", "got hello"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q lacks %q", out.String(), want)
		}
	}
}

func TestBackPressure(t *testing.T) {
	c := connect(t)
	ctx := testContext(t)
	r, w := io.Pipe()
	p, err := c.Exec(ctx, guestrpc.ExecParams{Args: []string{"sh", "-c", "yes | head -c 5000000"}, Stdout: w})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // no output is read, so the program must be waiting now
	select {
	case <-p.Done():
		t.Fatal("ended although its output has not been read")
	default:
	}
	got := make(chan int64)
	go func() { n, _ := io.Copy(io.Discard, r); got <- n }()
	if status, err := p.Wait(ctx); err != nil || status.Code != 0 {
		t.Errorf("got %+v, %v", status, err)
	}
	_ = w.Close()
	if n := <-got; n != 5000000 {
		t.Errorf("got %d bytes", n)
	}
}
