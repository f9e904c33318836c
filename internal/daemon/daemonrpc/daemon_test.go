package daemonrpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/egress"
	"agentvm/internal/daemon/confine"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/rpctest"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
	"agentvm/internal/storage/journal"
	"agentvm/internal/storage/snapshot"
	"agentvm/internal/test/leaktest"
	"agentvm/vm"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fakeDaemon is a Handler without a VM: a job's input is its output.
type fakeDaemon struct {
	mu       sync.Mutex
	request  guestrpc.Request
	options  JobOptions
	grace    time.Duration
	job      *fakeJob
	released chan string
}

func newFakeDaemon() *fakeDaemon { return &fakeDaemon{released: make(chan string, 100)} }

var daemonStarted = time.Unix(1234567890, 987654321)

func (d *fakeDaemon) Info() Info {
	return Info{
		Name: "dev", Pid: 7, Version: "v", Image: "alpine", Kernel: "6.12", State: Failed, Error: "broken", Started: daemonStarted,
		Memory: 1 << 40, Mounts: []string{"/a:/b:ro"}, Ports: []string{"1 -> 2"}, Policy: "public", Labels: []string{"a=b"},
		Clients: 3, Jobs: 4, Config: []byte(`{}`),
	}
}

func (d *fakeDaemon) AwaitReady(_ context.Context, progress func(slog.Level, string)) error {
	progress(slog.LevelWarn, "slow")
	progress(slog.LevelInfo, "ready")
	return fmt.Errorf("boot: %w", syscall.ENOSPC)
}

func (d *fakeDaemon) StartJob(_ context.Context, r guestrpc.Request, o JobOptions) (JobHandler, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(r.Args) == 0 {
		return nil, errors.New("empty")
	}
	d.request, d.options = r, o
	d.job = &fakeJob{d: d, id: r.Args[0], input: make(chan []byte, 1)}
	return d.job, nil
}

func (d *fakeDaemon) Job(id string) (JobHandler, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.job == nil || d.job.id != id {
		return nil, &fs.PathError{Op: "find", Path: id, Err: syscall.ENOENT}
	}
	return &fakeJob{d: d, id: "view of " + id}, nil
}

func (d *fakeDaemon) Jobs() []vm.JobInfo { return []vm.JobInfo{(&fakeJob{id: "a"}).Info(), {ID: "b"}} }

func (d *fakeDaemon) Stop(_ context.Context, grace time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.grace = grace
	return nil
}

func (d *fakeDaemon) Stats(context.Context) (guestrpc.Stats, error) {
	return guestrpc.Stats{MemoryTotal: 5}, nil
}

func (d *fakeDaemon) Preview(context.Context) (PreviewPlace, error) {
	return PreviewPlace{ID: "a", PreviewPort: 7, Address: "127.0.0.1:7"}, nil
}

func (d *fakeDaemon) Confinement() []confine.Layer {
	return []confine.Layer{{Name: "a", InForce: true}, {Name: "b", Note: "why"}}
}

func (d *fakeDaemon) Flows(context.Context) ([]vm.Flow, error) {
	return []vm.Flow{{Process: "curl"}}, nil
}

func (d *fakeDaemon) Denials(context.Context) ([]egress.Event, error) {
	return nil, syscall.EAGAIN
}

func (d *fakeDaemon) NetworkStats(context.Context) (vm.NetworkStats, error) {
	return vm.NetworkStats{Egress: egress.Stats{Denied: 3}}, nil
}

func (d *fakeDaemon) Policy(context.Context) (egress.Policy, error) {
	return egress.Policy{Mode: egress.Open}, nil
}

func (d *fakeDaemon) SetPolicy(_ context.Context, p egress.Policy, version string) (int, error) {
	if version == "old" {
		return 0, egress.ErrPolicyChanged
	}
	if p.Mode != egress.None {
		return 0, syscall.EINVAL
	}
	return 4, nil
}

func (d *fakeDaemon) Explain(_ context.Context, host string, port uint16, protocol string, addresses ...netip.Addr) (egress.Decision, error) {
	return egress.Decision{Reason: fmt.Sprint(host, port, protocol, addresses)}, nil
}

func (d *fakeDaemon) Forward(_ context.Context, forward string) (string, error) {
	return "at " + forward, nil
}

func (d *fakeDaemon) LendForward(_ context.Context, forward string) (string, LentForward, error) {
	if forward == "" {
		return "", nil, syscall.EACCES
	}
	return "at " + forward, fakeLent{}, nil
}

// fakeLent has been closed by another client.
type fakeLent struct{}

func (fakeLent) Ended(context.Context) error { return nil }
func (fakeLent) Release()                    {}

// VM implements Handler: the fake is its own VM.
func (d *fakeDaemon) VM(bool) (VM, error) { return d, nil }

func (d *fakeDaemon) DiskWaits() (time.Time, string) { return time.Time{}, "/d" }

func (d *fakeDaemon) Console(context.Context) ([]byte, error) { return []byte("\xffconsole"), nil }

func (d *fakeDaemon) Pause(context.Context) error { return syscall.EBUSY }

func (d *fakeDaemon) Resume(context.Context) error { return nil }

func (d *fakeDaemon) Snapshot(_ context.Context, o SnapshotRequest) (m snapshot.Meta, _ error) {
	if o.Path == "" {
		return m, &fs.PathError{Op: "create", Path: "x", Err: syscall.EEXIST}
	}
	return snapshot.Meta{Comment: fmt.Sprintf("%+v", o)}, nil
}

func (d *fakeDaemon) Mounts(context.Context) ([]MountInfo, error) {
	return []MountInfo{{Mount: vm.Mount{HostPath: "/a", GuestPath: "/b", ReadOnly: true}, Identity: vm.PathIdentity{Path: "/a", Real: "/a"}, Added: true, Error: "gone"}}, nil
}

func (d *fakeDaemon) Change(_ context.Context, c Change) error {
	if c.CloseForward != "127.0.0.1:1/tcp" || c.IdleTimeout == nil || *c.IdleTimeout != time.Minute || c.MaxLifetime != nil {
		return syscall.EINVAL
	}
	return nil
}

func (d *fakeDaemon) Files(context.Context) (*guestrpc.FilesClient, error) {
	return nil, syscall.ENOSYS
}

func (d *fakeDaemon) DialLocal(context.Context, string, uint16, LocalPurpose) (capnprpc.Stream, error) {
	return nil, syscall.ECONNREFUSED
}

func (d *fakeDaemon) Sockets(context.Context) ([]guestrpc.Socket, error) { return nil, syscall.ENOSYS }

type fakeJob struct {
	d     *fakeDaemon
	id    string
	input chan []byte
}

func (j *fakeJob) Info() vm.JobInfo {
	return vm.JobInfo{
		ID: j.id, Label: "l", Args: []string{"x", "y"}, Started: daemonStarted, Ended: daemonStarted.Add(time.Second),
		Exit: &guestrpc.ExitStatus{Code: 137, Signal: 9}, TimedOut: true, Durable: true, Terminal: true, OutputBytes: 1 << 33, Error: "e",
	}
}

func (j *fakeJob) Output(ctx context.Context, from vm.Cursor, _ int, wait time.Duration) (vm.JobOutput, error) {
	select {
	case b := <-j.input:
		return vm.JobOutput{Chunks: []vm.JobChunk{{Stream: journal.Stderr, Data: b}}, Next: from + vm.Cursor(len(b)), Lost: 2}, nil
	case <-time.After(wait):
		return vm.JobOutput{Next: from, End: &vm.JobEnd{Code: 3, TimedOut: true}}, nil
	case <-ctx.Done():
		return vm.JobOutput{}, ctx.Err()
	}
}

func (j *fakeJob) Input(ctx context.Context, data []byte, end bool) error {
	if end {
		return syscall.EPIPE
	}
	select {
	case j.input <- bytes.Clone(data):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (j *fakeJob) Signal(_ context.Context, number int) error {
	return fmt.Errorf("signal %d: %w", number, syscall.ESRCH)
}

func (j *fakeJob) Kill(context.Context) error { return nil }

func (j *fakeJob) Resize(context.Context, guestrpc.Size) error { return nil }

func (j *fakeJob) Remove() error {
	return &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.EBUSY, Message: "it runs"}
}

func (j *fakeJob) Release() { j.d.released <- j.id }

// dialFake connects a client to d over a pipe.
func dialFake(t testing.TB, d Handler) *Client {
	t.Helper()
	here, there := net.Pipe()
	served := make(chan struct{})
	go func() { defer close(served); Serve(t.Context(), there, d) }()
	c, err := Dial(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); <-served })
	return c
}

func TestDaemonClient(t *testing.T) {
	d := newFakeDaemon()
	c := dialFake(t, d)
	ctx := t.Context()
	info, err := c.Info(ctx)
	if diff := cmp.Diff(d.Info(), info); err != nil || diff != "" {
		t.Errorf("Info: %v (-want +got)\n%s", err, diff)
	}
	var lines []string
	err = c.AwaitReady(ctx, func(l slog.Level, text string) { lines = append(lines, l.String()+" "+text) })
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("AwaitReady: %v", err)
	}
	if diff := cmp.Diff([]string{"WARN slow", "INFO ready"}, lines); diff != "" {
		t.Errorf("progress (-want +got)\n%s", diff)
	}
	if err := c.AwaitReady(ctx, nil); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("AwaitReady without progress: %v", err)
	}
	jobs, err := c.Jobs(ctx)
	if diff := cmp.Diff(d.Jobs(), jobs); err != nil || diff != "" {
		t.Errorf("Jobs: %v (-want +got)\n%s", err, diff)
	}
	if err := c.Pause(ctx); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Pause: %v", err)
	}
	if err := c.Resume(ctx); err != nil {
		t.Errorf("Resume: %v", err)
	}
	order := SnapshotRequest{Path: "/p", Comment: "c", Layered: true}
	if m, err := c.Snapshot(ctx, order); err != nil || m.Comment != fmt.Sprintf("%+v", order) {
		t.Errorf("Snapshot: %+v, %v", m, err)
	}
	if _, err := c.Snapshot(ctx, SnapshotRequest{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Snapshot: %v", err)
	}
	if p, err := c.Preview(ctx); err != nil || p != (PreviewPlace{"a", 7, "127.0.0.1:7"}) {
		t.Errorf("Preview: %+v, %v", p, err)
	}
	if l, err := c.Confinement(ctx); err != nil || !slices.Equal(l, d.Confinement()) {
		t.Errorf("Confinement: %+v, %v", l, err)
	}
	if l, err := c.Flows(ctx); err != nil || len(l) != 1 || l[0].Process != "curl" {
		t.Errorf("Flows: %+v, %v", l, err)
	}
	if _, err := c.Denials(ctx); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("Denials: %v", err)
	}
	if s, err := c.NetworkStats(ctx); err != nil || s.Egress.Denied != 3 {
		t.Errorf("NetworkStats: %+v, %v", s, err)
	}
	if p, err := c.Policy(ctx); err != nil || p.Mode != egress.Open {
		t.Errorf("Policy: %+v, %v", p, err)
	}
	if cut, err := c.SetPolicy(ctx, egress.Policy{Mode: egress.None}, ""); err != nil || cut != 4 {
		t.Errorf("SetPolicy: %d, %v", cut, err)
	}
	if _, err := c.SetPolicy(ctx, egress.Policy{Mode: egress.None}, "old"); err == nil || !strings.Contains(err.Error(), egress.ErrPolicyChanged.Error()) {
		t.Errorf("SetPolicy of another version: %v", err)
	}
	if _, err := c.SetPolicy(ctx, egress.Policy{Mode: egress.Open}, "new"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("SetPolicy: %v", err)
	}
	if e, err := c.Explain(ctx, "h", 1, "udp", netip.IPv6Loopback()); err != nil || e.Reason != "h1udp[::1]" {
		t.Errorf("Explain: %+v, %v", e, err)
	}
	if at, err := c.Forward(ctx, "1:2"); err != nil || at != "at 1:2" {
		t.Errorf("Forward: %q, %v", at, err)
	}
	want, _ := (&fakeDaemon{}).Mounts(ctx)
	if list, err := c.Mounts(ctx); err != nil || !reflect.DeepEqual(list, want) {
		t.Errorf("Mounts: %+v, %v", list, err)
	}
	if _, err := c.LendForward(ctx, ""); !errors.Is(err, syscall.EACCES) {
		t.Errorf("LendForward: %v", err)
	}
	lent, err := c.LendForward(ctx, "1:2/udp")
	if err != nil {
		t.Fatal(err)
	}
	if err := lent.Ended(ctx); err != nil || lent.Address() != "at 1:2/udp" {
		t.Errorf("LendForward: %q, %v", lent.Address(), err)
	}
	lent.Release()
	if since, path, err := c.DiskWaits(ctx); err != nil || !since.IsZero() || path != "/d" {
		t.Errorf("DiskWaits: %v, %q, %v", since, path, err)
	}
	if b, err := c.Console(ctx); err != nil || string(b) != "\xffconsole" {
		t.Errorf("Console: %q, %v", b, err)
	}
	if s, err := c.Stats(ctx); err != nil || s != (guestrpc.Stats{MemoryTotal: 5}) {
		t.Errorf("Stats: %+v, %v", s, err)
	}
	if _, err := c.Job(ctx, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Job: %v", err)
	}
	if _, err := c.Files(ctx); !errors.Is(err, syscall.ENOSYS) {
		t.Errorf("Files: %v", err)
	}
	if err := c.Stop(ctx, 3*time.Second); err != nil || d.grace != 3*time.Second {
		t.Errorf("Stop: %v, %v", err, d.grace)
	}
}

func TestDaemonJob(t *testing.T) {
	d := newFakeDaemon()
	c := dialFake(t, d)
	ctx := t.Context()
	if _, err := c.StartJob(ctx, guestrpc.ExecParams{}, nil, JobOptions{}); err == nil || err.Error() != "empty" {
		t.Errorf("an empty command: %v", err)
	}
	o := JobOptions{Durable: true, Input: true, Timeout: time.Minute, MaxOutput: 9, Label: "l"}
	j, err := c.StartJob(ctx, guestrpc.ExecParams{
		Args: []string{"one", "two"}, Env: []string{"A=1"}, Dir: "/d", User: "u", Terminal: &guestrpc.Size{Columns: 80, Rows: 25},
	}, []byte("in"), o)
	if err != nil {
		t.Fatal(err)
	}
	want := guestrpc.Request{Args: []string{"one", "two"}, Env: []string{"A=1"}, Dir: "/d", User: "u", Terminal: &guestrpc.Size{Columns: 80, Rows: 25}, Input: []byte("in")}
	if diff := cmp.Diff(want, d.request); diff != "" || d.options != o || j.ID() != "one" {
		t.Errorf("the daemon received %+v, id %q (-want +got)\n%s", d.options, j.ID(), diff)
	}
	if err := j.Input(ctx, []byte("hello"), false); err != nil {
		t.Error(err)
	}
	out, err := j.Output(ctx, 5, 100, time.Minute)
	if diff := cmp.Diff(vm.JobOutput{Chunks: []vm.JobChunk{{Stream: journal.Stderr, Data: []byte("hello")}}, Next: 10, Lost: 2}, out); err != nil || diff != "" {
		t.Errorf("Output: %v (-want +got)\n%s", err, diff)
	}
	out, err = j.Output(ctx, 10, 100, time.Millisecond)
	if diff := cmp.Diff(vm.JobOutput{Next: 10, End: &vm.JobEnd{Code: 3, TimedOut: true}}, out); err != nil || diff != "" {
		t.Errorf("Output at the end: %v (-want +got)\n%s", err, diff)
	}
	if err := j.Input(ctx, nil, true); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("Input: %v", err)
	}
	if err := j.Signal(ctx, 15); !errors.Is(err, syscall.ESRCH) || err.Error() != "signal 15: "+syscall.ESRCH.Error() {
		t.Errorf("Signal: %v", err)
	}
	if err := errors.Join(j.Kill(ctx), j.Resize(ctx, guestrpc.Size{Columns: 1, Rows: 2})); err != nil {
		t.Error(err)
	}
	if err := j.Remove(ctx); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Remove: %v", err)
	}
	view, err := c.Job(ctx, "one")
	if err != nil {
		t.Fatal(err)
	}
	view.Release()
	if got := <-d.released; got != "view of one" {
		t.Errorf("released %q", got)
	}
	j.Release()
	if got := <-d.released; got != "one" {
		t.Errorf("released %q", got)
	}
}

// TestDaemonClientLeaves: when a client ends while its job's calls wait, everything that it held is released.
func TestDaemonClientLeaves(t *testing.T) {
	for _, how := range []string{"close", "crash"} {
		t.Run(how, func(t *testing.T) {
			d := newFakeDaemon()
			here, there := net.Pipe()
			served := make(chan struct{})
			go func() { defer close(served); Serve(context.Background(), there, d) }()
			c, err := Dial(t.Context(), here)
			if err != nil {
				t.Fatal(err)
			}
			j, err := c.StartJob(t.Context(), guestrpc.ExecParams{Args: []string{"run"}}, nil, JobOptions{})
			if err != nil {
				t.Fatal(err)
			}
			waiting := make(chan error)
			go func() { _, err := j.Output(t.Context(), 0, 1, time.Hour); waiting <- err }()
			if how == "crash" {
				_ = here.Close()
			} else {
				_ = c.Close()
			}
			if err := <-waiting; !errors.Is(err, ErrClosed) {
				t.Errorf("a call that waited: %v", err)
			}
			<-served
			if got := <-d.released; got != "run" {
				t.Errorf("released %q", got)
			}
			_ = c.Close()
			if _, err := c.Jobs(t.Context()); !errors.Is(err, ErrClosed) {
				t.Errorf("a call after the end: %v", err)
			}
		})
	}
}

// TestDaemonJobsApart: a job that takes no input holds up neither its own signals nor other jobs.
func TestDaemonJobsApart(t *testing.T) {
	c := dialFake(t, newFakeDaemon())
	j, err := c.StartJob(t.Context(), guestrpc.ExecParams{Args: []string{"run"}}, nil, JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Input(t.Context(), []byte("fills it"), false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	blocked := make(chan error)
	go func() { blocked <- j.Input(ctx, []byte("waits"), false) }()
	if err := j.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := c.Jobs(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case err := <-blocked:
		t.Errorf("Input did not wait: %v", err)
	default:
	}
	cancel()
	if err := <-blocked; !errors.Is(err, context.Canceled) {
		t.Errorf("Input: %v", err)
	}
}

// sentByClient returns the bytes that a client sends.
func sentByClient(f *testing.F) []byte {
	here, there := net.Pipe()
	record := &rpctest.Recorder{Conn: there}
	served := make(chan struct{})
	go func() { defer close(served); Serve(context.Background(), record, newFakeDaemon()) }()
	c, err := Dial(context.Background(), here)
	if err != nil {
		f.Fatal(err)
	}
	ctx := context.Background()
	_, _ = c.Info(ctx)
	_ = c.AwaitReady(ctx, func(slog.Level, string) {})
	j, err := c.StartJob(ctx, guestrpc.ExecParams{Args: []string{"a"}, Terminal: &guestrpc.Size{Columns: 1, Rows: 2}}, []byte("in"), JobOptions{Input: true})
	if err != nil {
		f.Fatal(err)
	}
	_ = j.Input(ctx, []byte("x"), false)
	_, _ = j.Output(ctx, 0, 10, time.Second)
	_ = j.Resize(ctx, guestrpc.Size{Columns: 3, Rows: 4})
	_ = j.Remove(ctx)
	_, _ = c.Job(ctx, "a")
	_, _ = c.Jobs(ctx)
	_, _ = c.SetPolicy(ctx, egress.Policy{}, "")
	_, _ = c.Explain(ctx, "h", 1, "tcp")
	_, _ = c.Forward(ctx, "1:2")
	_, _ = c.Pause(ctx), c.Resume(ctx)
	_, _ = c.Snapshot(ctx, SnapshotRequest{Path: "/p", Comment: "c"})
	_ = c.Close()
	<-served
	return record.Bytes()
}

// FuzzHostileClient sends arbitrary bytes to a daemon, which must not panic, and must end when the client has gone.
func FuzzHostileClient(f *testing.F) {
	rpctest.Seed(f, sentByClient(f))
	f.Fuzz(func(t *testing.T, sent []byte) {
		here, there := net.Pipe()
		d := newFakeDaemon()
		d.released = make(chan string, 1<<16)
		served := make(chan struct{})
		go func() { defer close(served); Serve(context.Background(), there, d) }()
		drained := make(chan struct{})
		go func() { defer close(drained); _, _ = io.Copy(io.Discard, here) }()
		_ = here.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = here.Write(sent)
		time.Sleep(time.Millisecond)
		_ = here.Close()
		<-drained
		select {
		case <-served:
		case <-time.After(30 * time.Second):
			t.Error("the daemon continues to serve a client that has left")
		}
	})
}

// FuzzHostileDaemon answers a client with arbitrary bytes: the state file may name a port at which another program listens.
func FuzzHostileDaemon(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Add(sentByClient(f))
	f.Fuzz(func(t *testing.T, sent []byte) {
		here, there := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			go func() { _, _ = io.Copy(io.Discard, there) }()
			_, _ = there.Write(sent)
			time.Sleep(time.Millisecond)
			_ = there.Close()
		}()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if c, err := Dial(ctx, here); err == nil {
			_, _ = c.Info(ctx)
			_, _ = c.Jobs(ctx)
			_ = c.Pause(ctx)
			_, _ = c.Snapshot(ctx, SnapshotRequest{Path: "/p"})
			if j, err := c.StartJob(ctx, guestrpc.ExecParams{Args: []string{"a"}}, nil, JobOptions{}); err == nil {
				_, _ = j.Output(ctx, 0, 1, 0)
				j.Release()
			}
			_ = c.Close()
		}
		<-ended
		if ctx.Err() != nil {
			t.Error("the client did not return in time")
		}
	})
}
