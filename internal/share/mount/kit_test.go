package mount

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/internal/daemon/confine"
	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
	"agentvm/internal/test/leaktest"
)

// strangersFile belongs to another user; "" when the tests' user cannot give a file away.
var strangersFile string

// TestMain confines this process as one is that serves mounts. It may use the package's folder besides, for golden files and seeds.
func TestMain(m *testing.M) {
	strangersDir, err := os.MkdirTemp("", "strangers")
	if err != nil {
		panic(err)
	}
	file := filepath.Join(strangersDir, "file")
	if os.WriteFile(file, nil, 0o600) == nil && os.Chown(file, 1234, 1234) == nil {
		strangersFile = file
	}
	flag.Parse()
	unprivilegedErr = runUnprivileged("TestProtectedUnlessKnown")
	if fuzz := flag.Lookup("test.fuzz"); fuzz == nil || fuzz.Value.String() == "" { // which starts processes
		confine.Process(confine.Rules{WriteMounts: []string{os.TempDir()}, Write: []string{"."}, Read: []string{"/proc", os.DevNull}})
	}
	code := leaktest.Check(m.Run())
	_ = os.RemoveAll(strangersDir)
	os.Exit(code)
}

// unprivilegedErr is how the tests have ended that run as another user.
var unprivilegedErr error

// runUnprivileged has root run a test as a user that permissions bind, before this process is confined and can start none.
func runUnprivileged(test string) error {
	if run := flag.Lookup("test.run").Value.String(); os.Getuid() != 0 || run != "" && run != test {
		return nil
	}
	setpriv, err := exec.LookPath("setpriv") // of Debian's util-linux
	if err != nil && os.Getenv("CI") != "true" {
		return nil
	}
	folder, err := os.MkdirTemp("", "unprivileged") // the program's own is root's alone
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	content, err := os.ReadFile(self)
	program := filepath.Join(folder, "test")
	if err = errors.Join(err, os.WriteFile(program, content, 0o755), os.Chmod(folder, 0o755)); err != nil {
		return err
	}
	out, err := exec.Command(setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", program, "-test.v", "-test.run=^"+test+"$").CombinedOutput()
	if err == nil && !strings.Contains(string(out), "--- PASS: "+test) {
		err = errors.New("it did not run")
	}
	if err != nil {
		return fmt.Errorf("as another user: %w\n%s", err, out)
	}
	return nil
}

// serve starts a share of dir and returns the guest's end of its connection. Everything ends with the test.
func serve(t testing.TB, config Config) net.Conn {
	t.Helper()
	server, err := NewServer(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return connect(t, server)
}

// connect begins a connection to a server, which ends with the test.
func connect(t testing.TB, server *Server) net.Conn {
	t.Helper()
	host, guest := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- server.Serve(context.Background(), host) }()
	t.Cleanup(func() {
		guest.Close()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Error("Serve did not return after the connection ended")
		}
	})
	return guest
}

// attach mounts a share.
func attach(t testing.TB, config Config) *fusetest.File {
	t.Helper()
	return attachConn(t, serve(t, config))
}

func attachConn(t testing.TB, conn io.ReadWriter) *fusetest.File {
	t.Helper()
	root, err := fusetest.Mount(conn)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// directory is O_DIRECTORY.
const directory fusetest.OpenFlags = 0o200000

// walk finds a file or fails.
func walk(t testing.TB, root *fusetest.File, names ...string) *fusetest.File {
	t.Helper()
	f, err := root.Walk(names)
	if err != nil {
		t.Fatalf("walk %q: %v", names, err)
	}
	return f
}

// open finds a file and opens it, or fails.
func open(t testing.TB, root *fusetest.File, flags fusetest.OpenFlags, names ...string) *fusetest.File {
	t.Helper()
	f := walk(t, root, names...)
	if err := f.Open(flags); err != nil {
		t.Fatalf("open %q: %v", names, err)
	}
	return f
}

// create makes an open file in the root or fails.
func create(t testing.TB, root *fusetest.File, name string, flags fusetest.OpenFlags, mode fusetest.FileMode) *fusetest.File {
	t.Helper()
	f := walk(t, root)
	if err := f.Create(name, flags, mode); err != nil {
		t.Fatalf("create %q: %v", name, err)
	}
	return f
}

func getattr(t testing.TB, f *fusetest.File) fusetest.Attr {
	t.Helper()
	attr, err := f.GetAttr()
	if err != nil {
		t.Fatal(err)
	}
	return attr
}

// wantErrno fails unless err carries the number.
func wantErrno(t testing.TB, err error, want errno.Errno) {
	t.Helper()
	var got errno.Errno
	if !errors.As(err, &got) || got != want {
		t.Errorf("got error %v, want errno %d (%v)", err, want, want)
	}
}

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// rawClient sends messages that no honest client would.
type rawClient struct {
	t    testing.TB
	conn net.Conn
}

// rawAttach begins a session.
func rawAttach(t testing.TB, config Config) *rawClient {
	t.Helper()
	c := &rawClient{t: t, conn: serve(t, config)}
	if got := c.errno(opInit, 0, fusetest.InitBody()); got != 0 {
		t.Fatalf("init: %v", got)
	}
	return c
}

func (c *rawClient) send(message []byte) {
	c.t.Helper()
	if _, err := c.conn.Write(message); err != nil {
		c.t.Fatal(err)
	}
}

// receive returns the next reply.
func (c *rawClient) receive() (unique uint64, number errno.Errno, body decoder) {
	c.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	unique, number, rest, err := fusetest.ReadReply(c.conn)
	if err != nil {
		c.t.Fatalf("reply: %v", err)
	}
	return unique, number, decoder{rest: rest}
}

func (c *rawClient) call(op uint32, node uint64, body fusetest.Body) (errno.Errno, decoder) {
	c.t.Helper()
	c.send(fusetest.Frame(op, 2, node, body))
	_, number, reply := c.receive()
	return number, reply
}

// errno calls and returns the error number, 0 for success.
func (c *rawClient) errno(op uint32, node uint64, body fusetest.Body) errno.Errno {
	c.t.Helper()
	number, _ := c.call(op, node, body)
	return number
}

// lookup returns the number of a name, or fails.
func (c *rawClient) lookup(dir uint64, name string) uint64 {
	c.t.Helper()
	number, reply := c.call(opLookup, dir, fusetest.Body(nil).Str(name))
	if number != 0 {
		c.t.Fatalf("lookup of %q: %v", name, number)
	}
	return reply.u64()
}

// open returns the number of an open file, or an error.
func (c *rawClient) open(op uint32, node uint64) (uint64, errno.Errno) {
	c.t.Helper()
	number, reply := c.call(op, node, fusetest.Body(nil).U32(0).U32(0))
	return reply.u64(), number
}

// panicHandler fails a test when the server had to recover from a panic.
type panicHandler struct{ t testing.TB }

func failOnPanic(t testing.TB) *slog.Logger { return slog.New(panicHandler{t}) }

func (h panicHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelError
}
func (h panicHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h panicHandler) WithGroup(string) slog.Handler      { return h }

func (h panicHandler) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		h.t.Errorf("%s: %v", a.Key, a.Value)
		return true
	})
	return nil
}
