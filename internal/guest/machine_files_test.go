//go:build linux

package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
)

// bulkArguments give a machine the bulk port, which QEMU connects to a socket.
func bulkArguments(path string) []string {
	return []string{"-chardev", "socket,id=bulk,server=on,wait=off,path=" + path, "-device", "virtserialport,chardev=bulk,name=agentvm.bulk"}
}

func dialFiles(t *testing.T, path string) *guestrpc.FilesClient {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c, err := guestrpc.DialFiles(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// testFiles uses the file service of PID 1 on a real root, where absolute links are followed as by the system.
func testFiles(t *testing.T, c *guestrpc.Client, path string) {
	ctx := t.Context()
	f := dialFiles(t, path)
	data := bytes.Repeat([]byte("0123456789abcde\n"), 512<<10) // 8 MB
	begin := time.Now()
	if err := f.WriteFile(ctx, "/root/large", bytes.NewReader(data), 0o640); err != nil {
		t.Fatal(err)
	}
	t.Logf("write 8 MB: %v", time.Since(begin))
	want := result{Stdout: "640 8388608\n"}
	if got := run(t, c, guestrpc.ExecParams{Args: []string{"stat", "-c", "%a %s", "/root/large"}}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	hash := sha256.New()
	begin = time.Now()
	if n, err := f.ReadFile(ctx, "/root/large", hash); err != nil || n != int64(len(data)) || [32]byte(hash.Sum(nil)) != sha256.Sum256(data) {
		t.Errorf("%d bytes, %v, or other ones", n, err)
	}
	t.Logf("read 8 MB: %v", time.Since(begin))
	if info, err := f.Stat(ctx, "/proc/1/exe"); err != nil || !info.Mode.IsRegular() {
		t.Errorf("a link of /proc: %+v, %v", info, err)
	}
	var version strings.Builder
	if _, err := f.ReadFile(ctx, "/proc/version", &version); err != nil || !strings.HasPrefix(version.String(), "Linux version ") {
		t.Errorf("%q, %v", version.String(), err)
	}
	if err := errors.Join(f.MkdirAll(ctx, "/root/tree/sub", 0o755), f.Rename(ctx, "/root/large", "/root/tree/sub/large"), f.Symlink(ctx, "sub/large", "/root/tree/link")); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	begin = time.Now()
	if _, err := f.Pack(ctx, &archive, []string{"/root/tree"}, guestrpc.PackOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Logf("pack 8 MB: %v", time.Since(begin))
	begin = time.Now()
	if err := f.Unpack(ctx, "/root/copy", &archive, guestrpc.UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Logf("unpack 8 MB: %v", time.Since(begin))
	if got := run(t, c, guestrpc.ExecParams{Args: []string{"cmp", "/root/copy/tree/link", "/root/tree/sub/large"}}); got != (result{}) {
		t.Errorf("the copy differs: %+v", got)
	}
	if err := f.RemoveAll(ctx, "/mnt"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("removing what has shares mounted below: %v", err)
	}
	if err := errors.Join(f.RemoveAll(ctx, "/root/tree"), f.RemoveAll(ctx, "/root/copy")); err != nil {
		t.Error(err)
	}
	if _, err := f.List(ctx, "/sys/class", 0); err != nil {
		t.Error(err)
	}
	if _, err := f.Pack(ctx, io.Discard, []string{"/sys/class"}, guestrpc.PackOptions{}); err != nil {
		t.Error(err)
	}
	// Another client replaces the first, as after the first one's death.
	_ = f.Close()
	again := dialFiles(t, path)
	if _, err := again.Stat(ctx, "/"); err != nil {
		t.Error(err)
	}
}

// testLocalTCP talks to a server that listens in the machine.
func testLocalTCP(t *testing.T, c *guestrpc.Client, alpine bool) {
	if _, err := c.OpenLocalTCP(t.Context(), "", 4712); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
	server := []string{"nc", "-l", "-p", "4712", "-s", "127.0.0.1", "-e", "cat"}
	say, want := "hello", "hello"
	if !alpine {
		server = []string{"httpd", "-f", "-p", "127.0.0.1:4712"}
		say, want = "GET /no HTTP/1.0\r\n\r\n", "HTTP/1.1 404"
	}
	p, err := c.Exec(t.Context(), guestrpc.ExecParams{Args: server})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Kill(t.Context()); _, _ = p.Wait(t.Context()) }()
	var conn *capnprpc.StreamConn
	for begin := time.Now(); conn == nil; time.Sleep(10 * time.Millisecond) {
		if conn, err = c.OpenLocalTCP(t.Context(), "localhost", 4712); err != nil && time.Since(begin) > 5*time.Minute {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(conn, say); err != nil {
		t.Error(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), want) {
		t.Errorf("got %q, %v", got, err)
	}
	_ = conn.Close()
}

// hostSocket is a Connector to a server on the host that returns what it received, backwards.
func hostSocket(t *testing.T) guestrpc.Connector {
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			said, _ := io.ReadAll(c)
			slices.Reverse(said)
			_, _ = c.Write(said)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-served })
	return func(ctx context.Context, id string) (capnprpc.Stream, error) {
		if id != "backwards" {
			return nil, syscall.EACCES
		}
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", l.Addr().String())
		if err != nil {
			return nil, err
		}
		return c.(*net.UnixConn), nil
	}
}

// testHostSocket uses the sockets of the machine with Alpine's nc.
func testHostSocket(t *testing.T, c *guestrpc.Client, alpine bool) {
	got := run(t, c, guestrpc.ExecParams{Args: []string{"stat", "-c", "%a %F", "/run/host/s"}})
	if want := (result{Stdout: "600 socket\n"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !alpine {
		t.Skip("the built-in root has nothing that speaks to sockets")
	}
	got = run(t, c, guestrpc.ExecParams{Args: []string{"/bin/sh", "-c", "printf olleh | nc local:/run/host/s"}})
	if want := (result{Stdout: "hello"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := run(t, c, guestrpc.ExecParams{Args: []string{"/bin/sh", "-c", "printf olleh | nc local:/run/host/denied"}}); got.Stdout != "" {
		t.Errorf("got %+v", got)
	}
}
