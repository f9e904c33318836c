//go:build linux

package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
)

// unixServer is a host's socket that gives back what it hears until its end.
func unixServer(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/host")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				b, _ := io.ReadAll(c)
				_, _ = c.Write(b)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); served.Wait() })
	return l.Addr().String()
}

func dialUnix(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.UnixConn)
}

func TestForwards(t *testing.T) {
	host, dir := unixServer(t), t.TempDir()
	connect := func(ctx context.Context, id string) (capnprpc.Stream, error) {
		if id != "a" {
			return nil, syscall.EACCES
		}
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", host)
		if err != nil {
			return nil, err
		}
		return c.(*net.UnixConn), nil
	}
	var f forwards
	defer f.close()
	sockets := []guestrpc.UnixSocket{{Path: dir + "/sub/a", ID: "a", Mode: 0o640}, {Path: dir + "/b", ID: "b"}}
	for range 2 { // a new session's sockets take the place of the old one's
		if err := f.open(sockets, connect); err != nil {
			t.Fatal(err)
		}
	}
	for path, mode := range map[string]os.FileMode{dir + "/sub/a": 0o640, dir + "/b": 0o666} {
		if info, err := os.Stat(path); err != nil || info.Mode() != mode|os.ModeSocket {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	data := bytes.Repeat([]byte("x"), 1<<20)
	c := dialUnix(t, dir+"/sub/a")
	_, err := c.Write(data)
	if err = errors.Join(err, c.CloseWrite()); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if b, err := io.ReadAll(dialUnix(t, dir+"/b")); len(b) != 0 {
		t.Errorf("a refused connection says %q, %v", b, err)
	}
	open := dialUnix(t, dir+"/sub/a")
	if _, err := open.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	f.close() // ends what is under way
	if b, err := io.ReadAll(open); len(b) != 0 {
		t.Errorf("got %q, %v", b, err)
	}
	if _, err := net.Dial("unix", dir+"/b"); err == nil {
		t.Error("it still listens")
	}
}

func TestForwardsRefuse(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/file", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	connect := func(context.Context, string) (capnprpc.Stream, error) { return nil, syscall.EACCES }
	for _, tt := range []struct {
		name    string
		path    string
		connect guestrpc.Connector
		want    error
	}{
		{"relative", "s", connect, syscall.EINVAL},
		{"a file is there", dir + "/file", connect, syscall.EADDRINUSE},
		{"no proxy", dir + "/s", nil, syscall.EINVAL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f forwards
			defer f.close()
			if err := f.open([]guestrpc.UnixSocket{{Path: tt.path, ID: "a"}}, tt.connect); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
	if b, err := os.ReadFile(dir + "/file"); string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestOpenLocalTCP(t *testing.T) {
	s := &Supervisor{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	for _, tt := range []struct {
		host string
		want error
	}{{"", nil}, {"localhost", nil}, {"127.0.0.1", nil}, {"127.1.2.3", syscall.ECONNREFUSED}, {"192.0.2.1", syscall.EADDRNOTAVAIL}, {"::ffff:127.0.0.1", syscall.EADDRNOTAVAIL}, {"example.org", syscall.EADDRNOTAVAIL}} {
		c, err := s.OpenLocalTCP(t.Context(), tt.host, port)
		if !errors.Is(err, tt.want) {
			t.Errorf("%q: %v", tt.host, err)
		}
		if err == nil {
			_ = c.Close()
		}
	}
	_ = l.Close()
	if _, err := s.OpenLocalTCP(t.Context(), "", port); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
}
