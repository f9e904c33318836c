package client_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/images/storetest"
	"agentvm/internal/daemon"
	"agentvm/nat"
	"agentvm/vm"
)

// TestMain also is the daemons: Store.Start runs this program with their arguments.
func TestMain(m *testing.M) {
	if len(os.Args) == 6 && os.Args[1] == "daemon" {
		if err := daemon.Run(context.Background(), daemon.Store{Dir: os.Args[4]}, os.Args[5]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(storetest.WithOwnUser(m.Run))
}

// identities are the errors that callers branch on.
var identities = []error{
	vm.ErrStopped, vm.ErrNoNetwork, context.Canceled, context.DeadlineExceeded, fs.ErrNotExist, fs.ErrExist, fs.ErrInvalid, fs.ErrPermission,
	syscall.ECONNREFUSED, syscall.EADDRNOTAVAIL, syscall.EINVAL, syscall.EISDIR, syscall.ENOTDIR, syscall.ENOTEMPTY, syscall.ESRCH, syscall.EACCES, syscall.EPIPE, syscall.EBUSY,
}

func identityOf(err error) (list []string) {
	if err == nil {
		return []string{"nil"}
	}
	for _, is := range identities {
		if errors.Is(err, is) {
			list = append(list, is.Error())
		}
	}
	return list
}

// operation is one thing done with a VM, whatever kind it is. What it returns must be the same with each kind.
type operation struct {
	name string
	do   func(ctx context.Context, t *testing.T, v client.AnyVM) (any, error)
}

// ran is what of a Result is comparable.
type ran struct {
	Stdout, Stderr       string
	Code, Signal         int
	TimedOut             bool
	StdoutGap, StderrGap vm.Truncation
}

func of(r *vm.Result, err error) (any, error) {
	if r == nil {
		return nil, err
	}
	return ran{string(r.Stdout), string(r.Stderr), r.ExitCode, r.Signal, r.TimedOut, r.StdoutTruncated, r.StderrTruncated}, err
}

func run(name string, c vm.Command) operation {
	return operation{name, func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		if c.Stdin != nil {
			c.Stdin = strings.NewReader("from here\n")
		}
		return of(v.Run(ctx, c))
	}}
}

func dial(network, address string) operation {
	return operation{"dial " + network + " " + address, func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		conn, err := v.DialContext(ctx, network, address)
		if err == nil {
			err = conn.Close()
		}
		return nil, err
	}}
}

func files(name string, do func(ctx context.Context, f *vm.Files) (any, error)) operation {
	return operation{name, func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) { return do(ctx, v.Files()) }}
}

func changes(name string, do func(ctx context.Context, c *vm.Changes) ([]vm.Change, error)) operation {
	return operation{name, func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		list, err := do(ctx, v.Changes())
		b, jsonErr := json.Marshal(list)
		return string(b), errors.Join(err, jsonErr)
	}}
}

// jobs starts a job, does something with it, and removes it.
func jobs(name string, c vm.Command, o vm.JobOptions, do func(ctx context.Context, j vm.Job) (any, error)) operation {
	return operation{name, func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		if c.Stdin != nil {
			c.Stdin = strings.NewReader("from here\n")
		}
		j, err := v.StartJob(ctx, c, o)
		if err != nil {
			return nil, err
		}
		got, err := do(ctx, j)
		if _, waitErr := j.Wait(ctx); err == nil {
			err = waitErr
		}
		return got, errors.Join(err, j.Remove(ctx), j.Close())
	}}
}

// readJob reads a job to its end.
func readJob(ctx context.Context, j vm.Job) (any, error) {
	var streams [3]bytes.Buffer
	for next := vm.Cursor(0); ; {
		o, err := j.Output(ctx, next, 5)
		if err != nil {
			return nil, err
		}
		for _, c := range o.Chunks {
			streams[c.Stream].Write(c.Data)
		}
		if next = o.Next; o.End != nil {
			info, err := j.Info(ctx)
			return []any{
				streams[1].String(), streams[2].String(), next, o.Lost, o.End.Code, o.End.Signal, o.End.TimedOut, o.End.Ended.Equal(info.Ended),
				info.Label, info.Args[len(info.Args)-1], info.Durable, info.Terminal, info.OutputBytes, info.Exit, info.Error,
			}, errors.Join(err, o.Err)
		}
	}
}

// forkOf makes a fork of either kind of VM, and returns what ends it.
func forkOf(ctx context.Context, v client.AnyVM) (fork client.AnyVM, end func(), err error) {
	switch v := v.(type) {
	case *vm.VM:
		list, err := v.Fork(ctx, 1, vm.ForkOptions{})
		if err != nil {
			return nil, nil, err
		}
		return list[0], func() { _ = list[0].Close() }, nil
	case *client.VM:
		if err := v.Fork(ctx, []string{"fork"}, client.ForkOptions{}); err != nil {
			return nil, nil, err
		}
		fork, err := store.Open(ctx, "fork")
		if err != nil {
			return nil, nil, err
		}
		return fork, func() {
			_ = errors.Join(fork.Stop(context.Background()), fork.Close(), store.Remove(context.Background(), "fork"))
		}, nil
	}
	return nil, nil, errors.ErrUnsupported
}

// serve starts a server in the VM that answers each connection with a line of HTTP.
func serve(ctx context.Context, t *testing.T, v client.AnyVM, port string) {
	t.Helper()
	// Alpine's BusyBox has no httpd, that of the built-in root no nc that listens at an address.
	server := `mkdir -p /tmp/served; printf served >/tmp/served/index.html
cat >/tmp/answer <<'end'
while read -r line && [ ${#line} -gt 1 ]; do :; done
printf 'HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nserved'
end
busybox httpd -f -p 127.0.0.1:` + port + ` -h /tmp/served 2>/dev/null || while :; do nc -l -p ` + port + ` -s 127.0.0.1 -e sh /tmp/answer; done`
	p, err := v.Start(ctx, vm.Command{Line: server})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill(context.Background()) })
	for ctx.Err() == nil {
		list, err := v.Sockets(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(list, func(s vm.Socket) bool { return fmt.Sprint(s.Local.Port()) == port }) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("nothing listens at port %s of the VM", port)
}

// snapshots is a directory to which a confined daemon can write, and store the store of the VM that a daemon owns.
var (
	snapshots string
	store     *client.Store
)

var operations = []operation{
	run("output", vm.Command{Line: "echo out; echo err >&2"}),
	run("exit code", vm.Command{Line: "exit 3"}),
	run("not found", vm.Command{Args: []string{"no-such-program"}}),
	run("not executable", vm.Command{Args: []string{"/etc/passwd"}}),
	run("ended by a signal", vm.Command{Line: "kill -9 $$"}),
	run("arguments", vm.Command{Args: []string{"echo", "a b", "$HOME"}}),
	run("standard input", vm.Command{Line: "cat; echo end", Stdin: strings.NewReader("")}),
	run("no standard input", vm.Command{Line: "cat; echo end"}),
	run("environment", vm.Command{Line: "echo $A $HOME", Env: []string{"A=x y"}}),
	run("bad environment", vm.Command{Line: "true", Env: []string{"A"}}),
	run("directory", vm.Command{Line: "pwd", Dir: "/tmp"}),
	run("default directory", vm.Command{Line: "pwd"}),
	run("no such directory", vm.Command{Line: "pwd", Dir: "/none"}),
	run("user", vm.Command{Line: "id -u; id -g", User: "65534:65534"}),
	run("no such user", vm.Command{Line: "id -u", User: "no-such-user"}),
	run("time-out", vm.Command{Line: "echo begun; exec sleep 100", Timeout: 3 * time.Second}),
	run("terminal", vm.Command{Line: "test -t 0 && test -t 1 && stty size", Terminal: &vm.Size{Columns: 70, Rows: 20}}),
	run("nothing", vm.Command{}),
	run("line and arguments", vm.Command{Line: "true", Args: []string{"true"}}),
	run("NUL", vm.Command{Line: "echo \x00"}),
	run("long line", vm.Command{Line: ": " + strings.Repeat("x", 200<<10) + "; echo done"}),
	run("much output", vm.Command{Line: "seq 1 10000", MaxOutput: 100}),
	{"writers", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		var out, err bytes.Buffer
		_, runErr := v.Run(ctx, vm.Command{Line: "seq 1 1000; echo e >&2", Stdout: &out, Stderr: &err})
		return out.String() + err.String(), runErr
	}},
	{"signal", func(ctx context.Context, t *testing.T, v client.AnyVM) (any, error) {
		out, lines := io.Pipe()
		p, err := v.Start(ctx, vm.Command{Line: `trap 'echo got; exit 9' TERM; echo ready; while :; do sleep 0.05; done`, Stdout: lines})
		if err != nil {
			return nil, err
		}
		b := make([]byte, len("ready\n"))
		if _, err := io.ReadFull(out, b); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, out) }()
		if err := p.Signal(ctx, 15); err != nil {
			return nil, err
		}
		return of(p.Wait(ctx))
	}},
	{"kill", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		p, err := v.Start(ctx, vm.Command{Line: "sleep 100"})
		if err == nil {
			err = p.Kill(ctx)
		}
		if err != nil {
			return nil, err
		}
		<-p.Done()
		return of(p.Wait(ctx))
	}},
	{"signal after the end", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		p, err := v.Start(ctx, vm.Command{Line: "true"})
		if err == nil {
			_, err = p.Wait(ctx)
		}
		return nil, errors.Join(err, p.Resize(ctx, vm.Size{Columns: 1, Rows: 1}), p.Kill(ctx), p.Signal(ctx, 15))
	}},
	{"wait twice", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		input, line := io.Pipe()
		p, err := v.Start(ctx, vm.Command{Line: "read x; echo later", Stdin: input})
		if err != nil {
			return nil, err
		}
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		_, early := p.Wait(short)
		go func() { _, _ = io.WriteString(line, "\n"); _ = line.Close() }()
		r, err := of(p.Wait(ctx))
		return []any{identityOf(early), r}, err
	}},
	{"given up", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		return of(v.Run(ctx, vm.Command{Line: "echo begun; exec sleep 100"}))
	}},
	{"given up before", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return of(v.Run(ctx, vm.Command{Line: "true"}))
	}},

	jobs("job", vm.Command{Line: "echo out; echo err >&2; exit 3"}, vm.JobOptions{Label: "why"}, readJob),
	jobs("job with input", vm.Command{Line: "read a; echo got $a"}, vm.JobOptions{}, func(ctx context.Context, j vm.Job) (any, error) {
		if err := j.Input(ctx, []byte("more\n"), true); err != nil {
			return nil, err
		}
		return readJob(ctx, j)
	}),
	jobs("job with a reader", vm.Command{Line: "cat; echo end", Stdin: strings.NewReader("")}, vm.JobOptions{}, readJob),
	jobs("job without input", vm.Command{Line: "cat; echo end"}, vm.JobOptions{NoInput: true}, readJob),
	jobs("job with a time-out", vm.Command{Line: "exec sleep 100", Timeout: 500 * time.Millisecond}, vm.JobOptions{}, readJob),
	jobs("kill a job", vm.Command{Line: "sleep 100"}, vm.JobOptions{}, func(ctx context.Context, j vm.Job) (any, error) {
		if err := j.Kill(ctx); err != nil {
			return nil, err
		}
		return readJob(ctx, j)
	}),
	jobs("job that runs", vm.Command{Line: "echo begun; sleep 100"}, vm.JobOptions{}, func(ctx context.Context, j vm.Job) (any, error) {
		o, err := j.Output(ctx, 0, 0)
		if err != nil {
			return nil, err
		}
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, late := j.Output(short, o.Next, 0)
		_, wait := j.Wait(short)
		info, err := j.Info(ctx)
		busy := j.Remove(ctx)
		return []any{string(o.Chunks[0].Data), identityOf(late), identityOf(wait), identityOf(busy), info.Exit, info.Ended.IsZero()}, errors.Join(err, j.Kill(ctx))
	}),
	jobs("job on a terminal", vm.Command{Line: `while [ "$(stty size)" = "20 70" ]; do sleep 0.05; done; stty size`, Terminal: &vm.Size{Columns: 70, Rows: 20}}, vm.JobOptions{},
		func(ctx context.Context, j vm.Job) (any, error) {
			if err := j.Resize(ctx, vm.Size{Columns: 90, Rows: 30}); err != nil {
				return nil, err
			}
			return readJob(ctx, j)
		}),
	jobs("job after its end", vm.Command{Line: "true"}, vm.JobOptions{}, func(ctx context.Context, j vm.Job) (any, error) {
		if _, err := j.Wait(ctx); err != nil {
			return nil, err
		}
		kept := errors.Join(j.Kill(ctx), j.Resize(ctx, vm.Size{Columns: 1, Rows: 1}))
		return []any{identityOf(kept), identityOf(j.Signal(ctx, 15)), identityOf(j.Input(ctx, []byte("x"), false))}, nil
	}),
	{"find a job", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		j, err := v.StartJob(ctx, vm.Command{Line: "echo found"}, vm.JobOptions{Label: "mine"})
		if err != nil {
			return nil, err
		}
		same, err := v.Job(ctx, j.ID())
		if err != nil {
			return nil, err
		}
		if _, err = same.Wait(ctx); err != nil {
			return nil, err
		}
		list, err := v.Jobs(ctx)
		var labels []string
		for _, i := range list {
			labels = append(labels, i.Label)
		}
		return []any{labels, same.ID() == j.ID()}, errors.Join(err, same.Remove(ctx))
	}},
	{"find no job", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) { return v.Job(ctx, "none") }},
	{"start a job that cannot be", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		return v.StartJob(ctx, vm.Command{Line: "true", Dir: "/none"}, vm.JobOptions{})
	}},
	{"follow a job", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		j, err := v.StartJob(ctx, vm.Command{Line: "read a; echo out $a; echo err >&2; exit 4"}, vm.JobOptions{})
		if err != nil {
			return nil, err
		}
		result, err := of(client.Follow(ctx, j, vm.Command{Stdin: strings.NewReader("typed\n")}, 0).Wait(ctx))
		return result, errors.Join(err, j.Remove(ctx))
	}},

	files("write and read", func(ctx context.Context, f *vm.Files) (any, error) {
		if err := f.WriteFile(ctx, "/tmp/any", []byte("written"), 0o640); err != nil {
			return nil, err
		}
		b, err := f.ReadFile(ctx, "/tmp/any")
		return string(b), err
	}),
	files("stat", func(ctx context.Context, f *vm.Files) (any, error) {
		info, err := f.Stat(ctx, "/tmp/any")
		return fmt.Sprint(info.Name, info.Size, info.Mode), err
	}),
	files("read nothing", func(ctx context.Context, f *vm.Files) (any, error) { return f.ReadFile(ctx, "/none") }),
	files("read a directory", func(ctx context.Context, f *vm.Files) (any, error) { return f.ReadFile(ctx, "/etc") }),
	files("relative path", func(ctx context.Context, f *vm.Files) (any, error) { return f.ReadFile(ctx, "etc/passwd") }),
	files("list", func(ctx context.Context, f *vm.Files) (any, error) {
		if err := errors.Join(f.MkdirAll(ctx, "/tmp/dir/sub", 0o755), f.WriteFile(ctx, "/tmp/dir/a", nil, 0o600)); err != nil {
			return nil, err
		}
		list, err := f.List(ctx, "/tmp/dir")
		var got []string
		for _, info := range list {
			got = append(got, info.Name)
		}
		return got, err
	}),
	files("list a file", func(ctx context.Context, f *vm.Files) (any, error) { return f.List(ctx, "/etc/passwd") }),
	files("link, rename and walk", func(ctx context.Context, f *vm.Files) (any, error) {
		if err := errors.Join(f.Symlink(ctx, "a", "/tmp/dir/link"), f.Rename(ctx, "/tmp/dir/a", "/tmp/dir/b")); err != nil {
			return nil, err
		}
		var got []string
		err := f.Walk(ctx, "/tmp/dir", func(path string, info vm.FileInfo, err error) error {
			got = append(got, path+" "+info.Mode.String())
			return err
		})
		return got, err
	}),
	files("remove a full directory", func(ctx context.Context, f *vm.Files) (any, error) { return nil, f.Remove(ctx, "/tmp/dir") }),
	files("remove all", func(ctx context.Context, f *vm.Files) (any, error) {
		if err := f.RemoveAll(ctx, "/tmp/dir"); err != nil {
			return nil, err
		}
		return f.Stat(ctx, "/tmp/dir")
	}),
	run("change a copy-on-write mount", vm.Command{Line: "cd /src && echo two >>file && rm gone && echo new >new && echo x >other"}),
	changes("list changes", func(ctx context.Context, c *vm.Changes) ([]vm.Change, error) { return c.List(ctx) }),
	changes("list changes of a path", func(ctx context.Context, c *vm.Changes) ([]vm.Change, error) { return c.List(ctx, "/src/new") }),
	changes("list changes elsewhere", func(ctx context.Context, c *vm.Changes) ([]vm.Change, error) { return c.List(ctx, "/etc") }),
	{"write a patch", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		var patch bytes.Buffer
		_, err := v.Changes().WriteDiff(ctx, &patch)
		return patch.String(), err
	}},
	changes("apply some changes", func(ctx context.Context, c *vm.Changes) ([]vm.Change, error) {
		applied, err := c.Apply(ctx, vm.ApplyOptions{Paths: []string{"file", "gone"}})
		return applied.Done, err
	}),
	changes("discard a change", func(ctx context.Context, c *vm.Changes) ([]vm.Change, error) { return nil, c.Discard(ctx, "other") }),
	changes("discard no change", func(ctx context.Context, c *vm.Changes) ([]vm.Change, error) { return nil, c.Discard(ctx, "none") }),
	changes("list what is left", func(ctx context.Context, c *vm.Changes) ([]vm.Change, error) { return c.List(ctx) }),
	run("see what was discarded and applied", vm.Command{Line: "cat /src/file /src/other /src/new; ls /src"}),
	{"copy", func(ctx context.Context, t *testing.T, v client.AnyVM) (any, error) {
		from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
		if err := errors.Join(os.MkdirAll(filepath.Join(from, "sub"), 0o700), os.WriteFile(filepath.Join(from, "sub/f"), []byte("copied"), 0o600)); err != nil {
			t.Fatal(err)
		}
		in, err := v.Files().CopyTo(ctx, from, "/tmp/copy", vm.CopyOptions{})
		if err != nil {
			return nil, err
		}
		out, err := v.Files().CopyFrom(ctx, "/tmp/copy", to, vm.CopyOptions{})
		b, readErr := os.ReadFile(filepath.Join(to, "sub/f"))
		return []any{in.Skipped, out.Skipped, string(b)}, errors.Join(err, readErr)
	}},
	files("archive", func(ctx context.Context, f *vm.Files) (any, error) {
		var archive, back bytes.Buffer
		w := tar.NewWriter(&archive)
		err := errors.Join(w.WriteHeader(&tar.Header{Name: "in/f", Mode: 0o600, Size: 2}), func() error { _, err := w.Write([]byte("ab")); return err }(), w.Close())
		if err == nil {
			err = f.ExtractTar(ctx, "/tmp/tar", &archive)
		}
		if err == nil {
			_, err = f.CreateTar(ctx, []string{"/tmp/tar"}, &back)
		}
		var got []string
		for r := tar.NewReader(&back); err == nil; {
			h, end := r.Next()
			if end != nil {
				break
			}
			got = append(got, h.Name)
		}
		return got, err
	}),

	dial("tcp", "127.0.0.1:9"),
	dial("tcp", "localhost:9"),
	dial("tcp6", "[::1]:9"),
	dial("tcp", "192.0.2.1:80"),
	dial("tcp4", "[::1]:80"),
	dial("udp", "127.0.0.1:80"),
	dial("tcp", "127.0.0.1"),
	dial("tcp", "localhost:100000"),
	{"dial and fetch", func(ctx context.Context, t *testing.T, v client.AnyVM) (any, error) {
		serve(ctx, t, v, "4000")
		request, err := http.NewRequestWithContext(ctx, "GET", "http://localhost:4000/", nil)
		if err != nil {
			return nil, err
		}
		response, err := v.Fetch(request)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		b, err := io.ReadAll(response.Body)
		return []any{response.StatusCode, string(b)}, err
	}},
	{"fetch from elsewhere", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		request, err := http.NewRequestWithContext(ctx, "GET", "http://192.0.2.1/", nil)
		if err != nil {
			return nil, err
		}
		_, err = v.HTTPClient().Do(request)
		return nil, err
	}},

	{"policy", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		p, err := v.Policy(ctx)
		return p.String(), err
	}},
	{"explain", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		return v.Explain(ctx, "10.0.0.1", 80, "tcp")
	}},
	{"denials", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		if _, err := v.Run(ctx, vm.Command{Line: "wget -q -T 5 -O /dev/null http://10.1.2.3/"}); err != nil {
			return nil, err
		}
		for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			list, err := v.Denials(ctx)
			if err != nil || len(list) > 0 {
				return fmt.Sprint(list[0].Verdict, list[0].Reason, list[0].Target()), err
			}
		}
		return nil, ctx.Err()
	}},
	{"set the policy", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		cut, err := v.SetPolicy(ctx, egress.Policy{Mode: egress.None})
		if err != nil {
			return nil, err
		}
		d, err := v.Explain(ctx, "93.184.216.34", 443, "tcp")
		return []any{cut, d}, err
	}},
	{"replace a policy that another has replaced", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		before, err := v.Policy(ctx)
		if err != nil {
			return nil, err
		}
		_, err = v.ReplacePolicy(ctx, before.Version(), egress.Policy{Mode: egress.None})
		if err != nil {
			return nil, err
		}
		_, err = v.ReplacePolicy(ctx, egress.Policy{Mode: egress.Open}.Version(), egress.Policy{})
		return errors.Is(err, egress.ErrPolicyChanged), nil
	}},
	{"change the policy by many at one time", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		var changes sync.WaitGroup
		failed := make(chan error, 8)
		for port := range 8 {
			changes.Go(func() {
				rule, err := egress.ParseRule(fmt.Sprint("*:", 1000+port))
				if err == nil {
					_, _, err = client.ChangePolicy(ctx, v, func(p egress.Policy) (egress.Policy, error) { return p.Denying(rule), nil })
				}
				failed <- err
			})
		}
		changes.Wait()
		for range 8 {
			if err := <-failed; err != nil {
				return nil, err
			}
		}
		p, err := v.Policy(ctx)
		return len(p.Deny), err
	}},
	{"set a policy that makes no sense", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		cut, err := v.SetPolicy(ctx, egress.Policy{Mode: "sometimes"})
		return []any{cut, err != nil}, nil
	}},
	{"flows", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		list, err := v.Flows(ctx)
		return len(list), err
	}},
	{"counters", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		s, err := v.NetworkStats(ctx)
		var limits []string
		for _, l := range s.Limits {
			limits = append(limits, l.Limit)
		}
		return []any{limits, s.Egress.Denied > 0, s.Link.FramesFromGuest > 0}, err
	}},
	{"ports", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		list, err := v.Forwards(ctx)
		var got []string
		for _, at := range list {
			host, _, _ := net.SplitHostPort(at.String())
			got = append(got, at.Network()+" "+host)
		}
		return got, err
	}},
	{"forward", func(ctx context.Context, t *testing.T, v client.AnyVM) (any, error) {
		serve(ctx, t, v, "4001")
		at, err := v.Forward(ctx, nat.Forward{Protocol: "tcp", GuestPort: 4001})
		if err != nil {
			return nil, err
		}
		response, err := http.Get("http://" + at.String() + "/")
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		b, err := io.ReadAll(response.Body)
		return []any{at.Network(), response.StatusCode, string(b)}, err
	}},
	{"forward to no port", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		at, err := v.Forward(ctx, nat.Forward{Protocol: "tcp"})
		return []any{at == nil, err != nil}, nil
	}},
	{"statistics", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		s, err := v.Stats(ctx)
		return []bool{s.Uptime > 0, s.MemoryTotal > 64<<20, s.Processes > 0}, err
	}},
	{"console", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		b, err := v.Console(ctx)
		return len(b) > 0, err
	}},
	{"pause and resume", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		if err := errors.Join(v.Pause(ctx), v.Pause(ctx), v.Resume(ctx), v.Resume(ctx)); err != nil {
			return nil, err
		}
		return of(v.Run(ctx, vm.Command{Line: "echo resumed"}))
	}},
	{"snapshot", func(ctx context.Context, t *testing.T, v client.AnyVM) (any, error) {
		path := filepath.Join(snapshots, fmt.Sprintf("%T.snap", v))
		m, err := v.Snapshot(ctx, path, vm.SnapshotOptions{Comment: "why"})
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
		return []any{m.Comment, m.Memory, m.Image}, err
	}},
	{"snapshot of the name of a file", func(ctx context.Context, t *testing.T, v client.AnyVM) (any, error) {
		path := filepath.Join(snapshots, fmt.Sprintf("%T.file", v))
		if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
			return nil, err
		}
		_, err := v.Snapshot(ctx, path, vm.SnapshotOptions{})
		if text, _ := os.ReadFile(path); string(text) != "kept" {
			t.Errorf("the file has become %q", text)
		}
		if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("error %v", err)
		}
		return nil, nil
	}},
	{"fork", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		p, err := v.Start(ctx, vm.Command{Line: "sleep 1000"})
		if err != nil {
			return nil, err
		}
		fork, end, err := forkOf(ctx, v)
		if err != nil {
			return nil, err
		}
		defer end()
		a, errA := v.Run(ctx, vm.Command{Line: "cat /etc/machine-id; hostname"})
		b, errB := fork.Run(ctx, vm.Command{Line: "cat /etc/machine-id; hostname"})
		if err := errors.Join(errA, errB, p.Kill(ctx)); err != nil {
			return nil, err
		}
		same, err := of(fork.Run(ctx, vm.Command{Line: "cat /tmp/any; head -n1 /run/agentvm/generation; pgrep -f 'sleep 1000'"}))
		return []any{bytes.Equal(a.Stdout, b.Stdout), same}, err
	}},
	run("run after the snapshot", vm.Command{Line: "cat /tmp/any"}),
	{"stop", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) { return nil, v.Stop(ctx) }},
	{"stop again", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) { return nil, v.Stop(ctx) }},
	run("run after the end", vm.Command{Line: "true"}),
	files("read after the end", func(ctx context.Context, f *vm.Files) (any, error) { return f.ReadFile(ctx, "/etc/passwd") }),
	{"statistics after the end", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) {
		_, err := v.Stats(ctx)
		return nil, err
	}},
	{"pause after the end", func(ctx context.Context, _ *testing.T, v client.AnyVM) (any, error) { return nil, v.Pause(ctx) }},
}

// TestAnyVM does the same with a VM of this process and with one that a daemon owns: results are equal, and errors have the same identity.
func TestAnyVM(t *testing.T) {
	if testing.Short() {
		t.Skip("boots machines")
	}
	dir := t.TempDir()
	image := storetest.Fill(t, dir).Name
	if snapshots = filepath.Join(dir, "snapshots"); os.Mkdir(snapshots, 0o700) != nil {
		t.Fatal("cannot make " + snapshots)
	}
	forward, err := nat.ParseForward("0:80")
	if err != nil {
		t.Fatal(err)
	}
	var copied []string // copy-on-write mounts, one for each VM
	for range 2 {
		host := t.TempDir()
		for _, name := range []string{"file", "gone", "other"} {
			if err := os.WriteFile(filepath.Join(host, name), []byte("one\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		copied = append(copied, host+":/src:cow")
	}
	var mounts []vm.Mount
	for _, text := range copied {
		mount, err := vm.ParseMount(text)
		if err != nil {
			t.Fatal(err)
		}
		mounts = append(mounts, mount)
	}
	own, err := vm.Start(t.Context(), vm.Config{
		Mounts: mounts[:1],
		Image:  image, StoreDir: dir, Memory: 128 << 20, Hostname: "dev", Network: vm.Network{Forwards: []nat.Forward{forward}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	store, err = client.OpenStore(client.StoreOptions{Dir: dir, Program: program})
	if err != nil {
		t.Fatal(err)
	}
	remote, err := store.Start(t.Context(), "dev", client.Config{
		Config: vm.Config{
			Image: image, StoreDir: dir, Memory: 128 << 20, Mounts: mounts[1:], Network: vm.Network{Forwards: []nat.Forward{{GuestPort: 80}}},
		},
		DiskSize: -1,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	for _, o := range operations {
		t.Run(o.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			want, wantErr := o.do(ctx, t, own)
			got, gotErr := o.do(ctx, t, remote)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("in this process (-), in a daemon (+):\n%s", diff)
			}
			if diff := cmp.Diff(identityOf(wantErr), identityOf(gotErr)); diff != "" {
				t.Errorf("in this process %v, in a daemon %v:\n%s", wantErr, gotErr, diff)
			}
		})
	}
	if list, err := store.List(t.Context()); err != nil || len(list) != 1 || list[0].Name != "dev" || list[0].State != daemon.Stopped {
		t.Errorf("List: %+v, %v", list, err)
	}
	if _, err := client.Open(t.Context(), dir, "dev"); !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("Open of a VM that does not run: %v", err)
	}
	if err := store.Remove(t.Context(), "dev"); err != nil {
		t.Error(err)
	}
	if _, err := client.Open(t.Context(), dir, "dev"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("Open of no VM: %v", err)
	}
}
