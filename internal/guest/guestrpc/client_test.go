package guestrpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/test/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// echo is a Handler that answers without a machine: Exec returns its arguments.
type echo struct {
	mu       sync.Mutex
	started  StartParams
	clock    time.Time
	wrote    bool      // back
	mounted  time.Time // what MountShare had
	released chan struct{}
}

func (e *echo) Start(p StartParams, log func(slog.Level, string)) (GuestInfo, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.started = p
	log(slog.LevelWarn, "started")
	return GuestInfo{Release: "6.12", Boot: time.Second}, nil
}

func (e *echo) Exec(_ context.Context, r Request) (Program, Delivery, error) {
	switch {
	case len(r.Args) == 0:
		return nil, Delivery{}, syscall.EINVAL
	case r.Args[0] == "fail":
		return nil, Delivery{}, &fs.PathError{Op: "open", Path: "/x", Err: syscall.ENOENT}
	case r.Args[0] == "run":
		return &forever{e.released}, Delivery{Stdout: []byte("begun")}, nil
	}
	return nil, Delivery{Stdout: []byte(strings.Join(r.Args, " ")), Stderr: r.Input, Exit: &ExitStatus{Code: 3}}, nil
}

func (e *echo) OpenShell(Request) (Commands, error) { return nil, syscall.ENOSYS }

func (e *echo) Adopt(string, uint64, *Input) (Program, error) { return nil, syscall.ENOENT }

func (e *echo) Stats() (Stats, error) { return Stats{MemoryTotal: 5, Load1: 0.5}, nil }

func (e *echo) Sockets(*SocketQuery) ([]Socket, error) {
	return []Socket{{Network: "tcp", Local: netip.MustParseAddrPort("127.0.0.1:80"), State: SocketListen, PID: 7, Process: "httpd"}}, nil
}

func (e *echo) ReportDenials([]string) error { return nil }

func (e *echo) MountShare(m Mount, now time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mounted = now
	e.started.Mounts = append(e.started.Mounts, m)
	return nil
}

func (e *echo) UnmountShare(target string, detach bool) error {
	if !detach {
		return &fs.PathError{Op: "unmount", Path: target, Err: syscall.EBUSY}
	}
	return nil
}

func (e *echo) OpenLocalTCP(context.Context, string, uint16) (capnprpc.Stream, error) {
	return nil, syscall.ECONNREFUSED
}

func (e *echo) WriteBack() error { e.wrote = true; return nil }

func (e *echo) SetClock(t time.Time) error { e.clock = t; return nil }

func (e *echo) Shutdown() error { return syscall.EPERM }

// forever is a Program that ends only when it is dropped.
type forever struct{ released chan struct{} }

func (p *forever) Poll(ctx context.Context) (Delivery, error) {
	<-ctx.Done()
	return Delivery{}, ctx.Err()
}

func (p *forever) Signal(int) error { return syscall.ESRCH }

func (p *forever) Kill() error { return nil }

func (p *forever) Resize(Size) error { return nil }

func (p *forever) Detach() {}

func (p *forever) Release() {
	select {
	case p.released <- struct{}{}:
	default:
	}
}

// serveOn runs a guest on port until the test ends.
func serveOn(t testing.TB, port io.ReadWriteCloser, h Handler) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, port, h, nil) }()
	t.Cleanup(func() { stop(); <-done })
}

// A setting that a supervisor of an earlier version ignores is an error, not a VM without it.
func TestStartUnknownFlags(t *testing.T) {
	host, port := net.Pipe()
	serveOn(t, port, &echo{})
	c, err := Dial(t.Context(), host, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Start(t.Context(), StartParams{Flags: NoNewPrivileges}); err != nil {
		t.Error("what supervisors have always known:", err)
	}
	if _, err := c.Start(t.Context(), StartParams{Flags: NoNewPrivileges | endOfFlags}); err == nil || !strings.Contains(err.Error(), "earlier version") {
		t.Error(err)
	}
}

func TestClient(t *testing.T) {
	host, port := net.Pipe()
	guest := &echo{released: make(chan struct{}, 1)}
	serveOn(t, port, guest)
	var logged bytes.Buffer
	c, err := Dial(t.Context(), host, ClientConfig{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1234567890, 987654321)
	info, err := c.Start(t.Context(), StartParams{Time: now, Hostname: "h", Env: []string{"A=1"}, Mounts: []Mount{{Tag: "t", Target: "/m", ReadOnly: true, CopyOnWrite: true}}})
	if err != nil || info != (GuestInfo{Release: "6.12", Boot: time.Second}) {
		t.Errorf("Start: %+v, %v", info, err)
	}
	if got := guest.started; !got.Time.Equal(now) || got.Hostname != "h" || got.Env[0] != "A=1" || got.Mounts[0] != (Mount{"t", "/m", true, true}) {
		t.Errorf("the guest received %+v", got)
	}
	added := Mount{Tag: "more", Target: "/n", CopyOnWrite: true}
	if err := c.MountShare(t.Context(), added, now); err != nil || guest.started.Mounts[1] != added || !guest.mounted.Equal(now) {
		t.Errorf("MountShare: %v, the guest has %+v at %v", err, guest.started.Mounts, guest.mounted)
	}
	if err := c.UnmountShare(t.Context(), "/n", false); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "/n") {
		t.Errorf("UnmountShare: %v", err)
	}
	if err := c.UnmountShare(t.Context(), "/n", true); err != nil {
		t.Errorf("UnmountShare with detach: %v", err)
	}
	var out, errs bytes.Buffer
	p, err := c.Exec(t.Context(), ExecParams{Args: []string{"a", "b"}, Stdin: strings.NewReader("in"), Stdout: &out, Stderr: &errs})
	if err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(t.Context()); err != nil || status.Code != 3 || out.String() != "a b" || errs.String() != "in" {
		t.Errorf("got %+v, %v, %q, %q", status, err, out.String(), errs.String())
	}
	_, err = c.Exec(t.Context(), ExecParams{Args: []string{"fail"}})
	if !errors.Is(err, syscall.ENOENT) || !errors.Is(err, fs.ErrNotExist) || err.Error() != "open /x: no such file or directory" {
		t.Errorf("got %v", err)
	}
	if s, err := c.Stats(t.Context()); err != nil || s != (Stats{MemoryTotal: 5, Load1: 0.5}) {
		t.Errorf("Stats: %+v, %v", s, err)
	}
	if err := c.SyncClock(t.Context(), now); err != nil || !guest.clock.Equal(now) {
		t.Errorf("SyncClock: %v, %v", guest.clock, err)
	}
	if err := c.WriteBack(t.Context()); err != nil || !guest.wrote {
		t.Errorf("WriteBack: %t, %v", guest.wrote, err)
	}
	if err := c.Shutdown(t.Context()); !errors.Is(err, syscall.EPERM) {
		t.Errorf("Shutdown: %v", err)
	}
	if _, err := c.OpenShell(t.Context(), ExecParams{}); !errors.Is(err, syscall.ENOSYS) {
		t.Errorf("OpenShell: %v", err)
	}
	if p, err = c.Exec(t.Context(), ExecParams{Args: []string{"run"}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	<-guest.released
	if _, err := p.Wait(t.Context()); !errors.Is(err, capnprpc.ErrClosed) {
		t.Errorf("Wait after Close: %v", err)
	}
	if !strings.Contains(logged.String(), "level=WARN msg=started") {
		t.Errorf("log: %q", logged.String())
	}
	if _, err := c.Stats(t.Context()); !errors.Is(err, capnprpc.ErrClosed) {
		t.Errorf("Stats after Close: %v", err)
	}
	if err := c.Shutdown(t.Context()); !errors.Is(err, capnprpc.ErrClosed) {
		t.Errorf("Shutdown after Close: %v", err)
	}
}

func TestVersionMismatch(t *testing.T) {
	host, port := net.Pipe()
	go func() {
		b := make([]byte, helloSize)
		_, _ = io.ReadFull(port, b)
		h, _ := parseHello(b)
		_, _ = port.Write(hello{version: 7, nonce: h.nonce}.encode())
		_, _ = io.Copy(io.Discard, port)
	}()
	_, err := Dial(t.Context(), host, ClientConfig{})
	var version *VersionError
	if !errors.As(err, &version) || version.Guest != 7 || !strings.Contains(err.Error(), "version 1") || !strings.Contains(err.Error(), "version 7") {
		t.Errorf("got %v", err)
	}
}

func TestGuestOfAnotherVersion(t *testing.T) {
	host, port := net.Pipe()
	serveOn(t, port, &echo{})
	go func() { _, _ = host.Write(hello{version: 9, nonce: 5}.encode()) }()
	b := make([]byte, 2*helloSize)
	if _, err := io.ReadFull(host, b); err != nil {
		t.Fatal(err)
	}
	if h, ok := parseHello(b[helloSize:]); !ok || h != (hello{version: Version, flags: helloOffer, nonce: 5}) {
		t.Errorf("got %+v", h)
	}
	if c, err := Dial(t.Context(), host, ClientConfig{}); err != nil {
		t.Errorf("afterwards: %v", err)
	} else if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestNobodyAnswers(t *testing.T) {
	host, port := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, port) }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, host, ClientConfig{HelloInterval: 5 * time.Millisecond}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// unclosed keeps a pipe open when its client closes it, as the stream of a machine.
type unclosed struct{ net.Conn }

func (c unclosed) Close() error { return c.SetDeadline(time.Now()) }

// TestHelloAgain breaks off a session in every possible state and starts another one on the same stream.
func TestHelloAgain(t *testing.T) {
	for _, tt := range []struct {
		name string
		left []byte
	}{
		{"between messages", nil},
		{"in a header", []byte{0, 0, 0}},
		{"in a message", []byte{0, 0, 0, 0, 200, 0, 0, 0, 1, 2, 3}},
		{"after garbage", bytes.Repeat([]byte("garbage "), 1000)},
		{"after half a hello", hello{version: Version, nonce: 3}.encode()[:11]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host, port := net.Pipe()
			serveOn(t, port, &echo{released: make(chan struct{}, 1)})
			for range 3 {
				if err := host.SetDeadline(time.Time{}); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				c, err := Dial(ctx, unclosed{host}, ClientConfig{HelloInterval: time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.Stats(ctx); err != nil {
					t.Error(err)
				}
				if _, err := c.Exec(ctx, ExecParams{Args: []string{"a"}}); err != nil {
					t.Error(err)
				}
				_ = c.Close()
				if err := host.SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
					t.Fatal(err)
				}
				drained := make(chan struct{})
				go func() { defer close(drained); _, _ = io.Copy(io.Discard, host) }() // the guest's last words
				_, _ = host.Write(tt.left)
				<-drained
			}
		})
	}
}

func TestFindHello(t *testing.T) {
	h := hello{version: Version, nonce: 77}
	for _, tt := range []struct {
		name string
		give []byte
		ok   bool
	}{
		{"exact", h.encode(), true},
		{"short", h.encode()[:helloSize-1], false},
		{"empty", nil, false},
		{"other", bytes.Repeat([]byte{0xfe}, helloSize), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := parseHello(tt.give); ok != tt.ok || ok && got != h {
				t.Errorf("got %+v, %v", got, ok)
			}
		})
	}
}

func (e *echo) ListenLocalTCP(string, uint16) (net.Listener, error) { return nil, syscall.EADDRINUSE }
