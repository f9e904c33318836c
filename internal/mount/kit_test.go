package mount

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hugelgupf/p9/linux"
	"github.com/hugelgupf/p9/p9"

	"agentvm/internal/errno"
	"agentvm/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// serve starts a share of dir and returns the guest's end of its connection. Everything ends with the test.
func serve(t testing.TB, config Config) net.Conn {
	t.Helper()
	server, err := NewServer(config)
	if err != nil {
		t.Fatal(err)
	}
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
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return guest
}

// attach mounts a share with the library's client, which knows nothing of this package.
func attach(t testing.TB, config Config) p9.File {
	t.Helper()
	return attachConn(t, serve(t, config), 128<<10)
}

func attachConn(t testing.TB, conn io.ReadWriteCloser, msize uint32) p9.File {
	t.Helper()
	client, err := p9.NewClient(conn, p9.WithMessageSize(msize))
	if err != nil {
		t.Fatal(err)
	}
	root, err := client.Attach("")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// walk finds a file or fails.
func walk(t testing.TB, root p9.File, names ...string) p9.File {
	t.Helper()
	_, f, err := root.Walk(names)
	if err != nil {
		t.Fatalf("walk %q: %v", names, err)
	}
	return f
}

// open finds a file and opens it, or fails.
func open(t testing.TB, root p9.File, flags p9.OpenFlags, names ...string) p9.File {
	t.Helper()
	f := walk(t, root, names...)
	if _, _, err := f.Open(flags); err != nil {
		t.Fatalf("open %q: %v", names, err)
	}
	return f
}

// create makes an open file in the root or fails.
func create(t testing.TB, root p9.File, name string, flags p9.OpenFlags, mode p9.FileMode) p9.File {
	t.Helper()
	f := walk(t, root)
	if _, _, _, err := f.Create(name, flags, mode, p9.NoUID, p9.NoGID); err != nil {
		t.Fatalf("create %q: %v", name, err)
	}
	return f
}

func getattr(t testing.TB, f p9.File) (p9.QID, p9.Attr) {
	t.Helper()
	qid, _, attr, err := f.GetAttr(p9.AttrMaskAll)
	if err != nil {
		t.Fatal(err)
	}
	return qid, attr
}

// wantErrno fails unless err carries the number.
func wantErrno(t testing.TB, err error, want linux.Errno) {
	t.Helper()
	var got linux.Errno
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

// rawAttach agrees on msize and attaches fid 0.
func rawAttach(t testing.TB, config Config, msize uint32) *rawClient {
	t.Helper()
	c := &rawClient{t: t, conn: serve(t, config)}
	if kind, _ := c.call(msgTversion, versionBody(msize)); kind != msgTversion+1 {
		t.Fatalf("version: got message type %d", kind)
	}
	if kind, _ := c.call(msgTattach, attachBody(0)); kind != msgTattach+1 {
		t.Fatalf("attach: got message type %d", kind)
	}
	return c
}

func versionBody(msize uint32) []byte {
	var e encoder
	e.u32(msize)
	e.str("9P2000.L")
	return e.buf
}

func attachBody(fid uint32) []byte {
	var e encoder
	e.u32(fid)
	e.u32(noFid)
	e.str("root")
	e.str("")
	e.u32(0)
	return e.buf
}

func walkBody(fid, newFid uint32, names ...string) []byte {
	var e encoder
	e.u32(fid)
	e.u32(newFid)
	e.u16(uint16(len(names)))
	for _, name := range names {
		e.str(name)
	}
	return e.buf
}

func fidBody(fid uint32) []byte { return binary.LittleEndian.AppendUint32(nil, fid) }

func frame(kind uint8, tag uint16, body []byte) []byte {
	e := encoder{buf: append(make([]byte, headerSize), body...)}
	e.header(kind, tag)
	return e.buf
}

func (c *rawClient) send(message []byte) {
	c.t.Helper()
	if _, err := c.conn.Write(message); err != nil {
		c.t.Fatal(err)
	}
}

// receive returns the next reply.
func (c *rawClient) receive() (kind uint8, tag uint16, body []byte) {
	c.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	var header [headerSize]byte
	if _, err := io.ReadFull(c.conn, header[:]); err != nil {
		c.t.Fatalf("reply: %v", err)
	}
	body = make([]byte, binary.LittleEndian.Uint32(header[:])-headerSize)
	if _, err := io.ReadFull(c.conn, body); err != nil {
		c.t.Fatalf("reply: %v", err)
	}
	return header[4], binary.LittleEndian.Uint16(header[5:]), body
}

func (c *rawClient) call(kind uint8, body []byte) (uint8, []byte) {
	c.t.Helper()
	c.send(frame(kind, 1, body))
	got, _, reply := c.receive()
	return got, reply
}

// errno calls and returns the error number, 0 for success.
func (c *rawClient) errno(kind uint8, body []byte) errno.Errno {
	c.t.Helper()
	got, reply := c.call(kind, body)
	if got != msgRlerror {
		return 0
	}
	return errno.Errno(binary.LittleEndian.Uint32(reply))
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
