package guestrpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"capnproto.org/go/capnp/v3"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/rpctest"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// shelf is a FilesHandler without files: it discards writes, and every file has the same content.
type shelf struct {
	content []byte
	block   chan struct{} // when not nil, Pack and Unpack wait for it or their context
	mu      sync.Mutex
	took    []byte // by Unpack
	closed  int
}

func (s *shelf) Stat(path string, _ bool) (FileInfo, error) {
	if path == "/no" {
		return FileInfo{}, &fs.PathError{Op: "stat", Path: path, Err: syscall.ENOENT}
	}
	return FileInfo{Name: path[1:], Size: int64(len(s.content)), Mode: fs.ModeSetuid | 0o755, Modified: time.Unix(5, 6)}, nil
}

func (s *shelf) OpenDir(string) (DirHandler, error) { return &shelfDir{s: s, left: 1000}, nil }

func (s *shelf) Remove(string, bool) error { return nil }

func (s *shelf) MakeDir(string, fs.FileMode, bool) error { return syscall.EEXIST }

func (s *shelf) Rename(string, string) error { return nil }

func (s *shelf) Symlink(string, string) error { return nil }

func (s *shelf) Chmod(string, fs.FileMode) error { return nil }

func (s *shelf) Chown(string, uint32, uint32, bool) error { return nil }

func (s *shelf) Open(string, OpenOptions) (FileHandler, error) {
	return &shelfFile{ReaderAt: bytes.NewReader(s.content), s: s}, nil
}

func (s *shelf) Pack(ctx context.Context, w io.Writer, paths []string, _ PackOptions) (Summary, error) {
	if s.block != nil {
		select {
		case <-s.block:
		case <-ctx.Done():
			return Summary{}, ctx.Err()
		}
	}
	_, err := w.Write(s.content)
	return Summary{Entries: int64(len(paths)), Warnings: []string{strings.Repeat("w", 5000)}, Torn: 20, TornFiles: slices.Repeat([]string{"/torn"}, 20)}, err
}

func (s *shelf) Unpack(_ context.Context, r io.Reader, _ string, _ UnpackOptions) error {
	b, err := io.ReadAll(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took = b
	return err
}

type shelfDir struct {
	s    *shelf
	left int
}

func (d *shelfDir) Next(limit int) ([]FileInfo, error) {
	if d.left == 0 {
		return nil, io.EOF
	}
	n := min(limit, d.left)
	d.left -= n
	return make([]FileInfo, n), nil
}

func (d *shelfDir) Close() error { return d.s.close() }

type shelfFile struct {
	io.ReaderAt
	s *shelf
}

func (f *shelfFile) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }

func (f *shelfFile) Stat() (FileInfo, error) { return f.s.Stat("/f", true) }

func (f *shelfFile) Truncate(int64) error { return syscall.EFBIG }

func (f *shelfFile) Commit() error { return nil }

func (f *shelfFile) Close() error { return f.s.close() }

func (s *shelf) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
	return nil
}

func serveFilesOn(t testing.TB, port io.ReadWriteCloser, h FilesHandler) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ServeFiles(ctx, port, h, nil) }()
	t.Cleanup(func() { stop(); <-done })
}

// useFiles calls every method and ignores the errors.
func useFiles(ctx context.Context, c *FilesClient) {
	_, _ = c.Stat(ctx, "/f")
	_, _ = c.List(ctx, "/d", 5000)
	_, _ = c.ReadFile(ctx, "/f", io.Discard)
	_ = c.WriteFile(ctx, "/f", bytes.NewReader(make([]byte, 1000)), 0o600)
	_ = errors.Join(c.RemoveAll(ctx, "/f"), c.MkdirAll(ctx, "/d", 0o755), c.Rename(ctx, "/a", "/b"), c.Symlink(ctx, "t", "/l"), c.Chmod(ctx, "/f", 0o600), c.Chown(ctx, "/f", 1, 2))
	_, _ = c.Pack(ctx, io.Discard, []string{"/a", "/b"}, PackOptions{})
	_ = c.Unpack(ctx, "/d", bytes.NewReader(make([]byte, 1000)), UnpackOptions{Owner: &Owner{1, 2}})
	useLayer(ctx, c)
}

func TestFiles(t *testing.T) {
	host, port := net.Pipe()
	s := &shelf{content: bytes.Repeat([]byte("x"), 1<<20+1)}
	serveFilesOn(t, port, s)
	c, err := DialFiles(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	info, err := c.Stat(ctx, "/f")
	if want := (FileInfo{Name: "f", Size: 1<<20 + 1, Mode: fs.ModeSetuid | 0o755, Modified: time.Unix(5, 6)}); err != nil || info != want {
		t.Errorf("got %+v, %v", info, err)
	}
	if _, err := c.Stat(ctx, "/no"); !errors.Is(err, fs.ErrNotExist) || err.Error() != "stat /no: no such file or directory" {
		t.Errorf("got %v", err)
	}
	if list, err := c.List(ctx, "/", 0); len(list) != 1000 || err != nil {
		t.Errorf("%d entries, %v", len(list), err)
	}
	var archive bytes.Buffer
	summary, err := c.Pack(ctx, &archive, []string{"/a", "/b"}, PackOptions{})
	if err != nil || summary.Entries != 2 || len(summary.Warnings[0]) != maxWarningText || summary.Torn != 20 || len(summary.TornFiles) != maxWarnings || summary.TornFiles[0] != "/torn" || !bytes.Equal(archive.Bytes(), s.content) {
		t.Errorf("got %+v, %v, %d bytes", summary.Entries, err, archive.Len())
	}
	if err := c.Unpack(ctx, "/d", bytes.NewReader(s.content), UnpackOptions{}); err != nil || !bytes.Equal(s.took, s.content) {
		t.Errorf("%v, %d bytes", err, len(s.took))
	}
	useFiles(ctx, c)
	_ = c.Close()
	if _, err := c.Stat(ctx, "/f"); !errors.Is(err, capnprpc.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	for begin := time.Now(); ; time.Sleep(time.Millisecond) { // two lists, two files read, one written, a layer
		s.mu.Lock()
		closed := s.closed
		s.mu.Unlock()
		if closed == 6 {
			break
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("%d handlers closed", closed)
		}
	}
}

// TestFilesDoNotWait: a call that hangs does not keep others from being answered, and ends with its context.
func TestFilesDoNotWait(t *testing.T) {
	host, port := net.Pipe()
	s := &shelf{block: make(chan struct{})}
	serveFilesOn(t, port, s)
	c, err := DialFiles(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	packed := make(chan error, 1)
	go func() { _, err := c.Pack(ctx, io.Discard, []string{"/a"}, PackOptions{}); packed <- err }()
	for range 100 {
		if _, err := c.Stat(t.Context(), "/f"); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-packed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestForwarding: a capability of one connection works through another, streams included, as in a daemon between client
// and guest.
func TestForwarding(t *testing.T) {
	near, port := net.Pipe()
	s := &shelf{content: bytes.Repeat([]byte("x"), 3<<20)}
	serveFilesOn(t, port, s)
	inner, err := DialFiles(t.Context(), near)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inner.Close() }()
	client, daemon := net.Pipe()
	between := capnprpc.Start(daemon, daemon, daemon, func(*capnprpc.Conn) capnp.Client { return capnp.Client(inner.Capability()) })
	defer between.Close()
	outer := &FilesClient{conn: capnprpc.Start(client, client, client, nil), owns: true}
	boot, err := outer.conn.Bootstrap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	outer.remote = guestwire.Files(boot)
	defer func() { _ = outer.Close() }()
	if _, err := outer.Stat(t.Context(), "/no"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	var archive, content bytes.Buffer
	if _, err := outer.Pack(t.Context(), &archive, []string{"/a"}, PackOptions{}); err != nil || !bytes.Equal(archive.Bytes(), s.content) {
		t.Errorf("%d bytes, %v", archive.Len(), err)
	}
	if n, err := outer.ReadFile(t.Context(), "/f", &content); err != nil || n != 3<<20 || !bytes.Equal(content.Bytes(), s.content) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := outer.Unpack(t.Context(), "/d", bytes.NewReader(s.content), UnpackOptions{}); err != nil || !bytes.Equal(s.took, s.content) {
		t.Errorf("%v, %d bytes", err, len(s.took))
	}
	useFiles(t.Context(), outer)
}

// exchanged returns the bytes of a session: the guest's after its hello, and the host's.
func exchanged(f *testing.F, serve func(port io.ReadWriteCloser), talk func(context.Context, *FilesClient)) (guest, host []byte) {
	near, port := net.Pipe()
	heard, record := &rpctest.Recorder{Conn: port}, &rpctest.Recorder{Conn: near}
	serve(heard)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := DialFiles(ctx, record)
	if err != nil {
		f.Fatal(err)
	}
	talk(ctx, c)
	_ = c.Close()
	_, guest, _ = findAnswer(record.Bytes())
	for begin := time.Now(); len(host) == 0 && time.Since(begin) < time.Second; time.Sleep(time.Millisecond) {
		_, host, _ = findAnswer(heard.Bytes())
	}
	return guest, host
}

// FuzzHostileFilesGuest answers the hello of a client of files and then sends arbitrary bytes.
func FuzzHostileFilesGuest(f *testing.F) {
	real, _ := exchanged(f, func(port io.ReadWriteCloser) { serveShelfOn(f, port) }, useFiles)
	rpctest.Seed(f, real)
	f.Fuzz(func(t *testing.T, sent []byte) {
		withHostileGuest(t, sent, func(ctx context.Context, host net.Conn) {
			if c, err := DialFiles(ctx, host); err == nil {
				useFiles(ctx, c)
				_ = c.Close()
			}
		})
	})
}

// FuzzHostileFilesHost sends arbitrary bytes to a server of files, which must then still answer a hello.
func FuzzHostileFilesHost(f *testing.F) {
	_, real := exchanged(f, func(port io.ReadWriteCloser) { serveShelfOn(f, port) }, useFiles)
	rpctest.Seed(f, real)
	f.Fuzz(func(t *testing.T, sent []byte) {
		host, port := net.Pipe()
		serveShelfOn(t, port)
		afterHostileHost(t, host, sent, func(ctx context.Context, c *FilesClient) error {
			_, err := c.Stat(ctx, "/f")
			return err
		})
	})
}

func serveShelfOn(t testing.TB, port io.ReadWriteCloser) {
	serveFilesOn(t, port, &shelf{content: make([]byte, 100)})
}

// afterHostileHost sends arbitrary bytes to a guest, and then uses it properly.
func afterHostileHost(t *testing.T, host net.Conn, sent []byte, use func(context.Context, *FilesClient) error) {
	_ = host.SetDeadline(time.Now().Add(10 * time.Millisecond))
	drained := make(chan struct{})
	go func() { defer close(drained); _, _ = io.Copy(io.Discard, host) }()
	_, _ = host.Write(hello{version: Version, nonce: 99}.encode())
	_, _ = host.Write(sent)
	<-drained
	_ = host.SetDeadline(time.Time{})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := DialFiles(ctx, host)
	if err != nil {
		t.Fatal(err)
	}
	if err := use(ctx, c); err != nil {
		t.Error(err)
	}
	_ = c.Close()
}
