//go:build linux

package guest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
)

// maxForwarded bounds the connections through one socket; more of them wait to be accepted.
const maxForwarded = 128

// forwards are the Unix sockets whose connections go to the host.
//
//	program ── /path/of/socket ── accept ── Connect(id) ── host
type forwards struct {
	mu        sync.Mutex
	listeners []net.Listener
	stop      context.CancelFunc
	tasks     sync.WaitGroup
}

// open makes the sockets, in place of those of an earlier session.
func (f *forwards) open(sockets []guestrpc.UnixSocket, connect guestrpc.Connector) error {
	f.close()
	if len(sockets) == 0 {
		return nil
	}
	if connect == nil {
		return &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: "sockets without a proxy"}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var ctx context.Context
	ctx, f.stop = context.WithCancel(context.Background())
	for _, s := range sockets {
		l, err := listenUnix(s)
		if err != nil {
			return err
		}
		f.listeners = append(f.listeners, l)
		f.tasks.Go(func() { f.accept(ctx, l, s.ID, connect) })
	}
	return nil
}

func (f *forwards) close() {
	f.mu.Lock()
	for _, l := range f.listeners {
		_ = l.Close()
	}
	f.listeners = nil
	if f.stop != nil {
		f.stop()
	}
	f.mu.Unlock()
	f.tasks.Wait()
}

// listenUnix replaces an existing socket at the path, but no other file.
func listenUnix(s guestrpc.UnixSocket) (net.Listener, error) {
	if !strings.HasPrefix(s.Path, "/") {
		return nil, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: "socket path " + strconv.Quote(s.Path) + " is not absolute"}
	}
	if err := os.MkdirAll(filepath.Dir(s.Path), 0o755); err != nil {
		return nil, err
	}
	if info, err := os.Lstat(s.Path); err == nil && info.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(s.Path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", s.Path)
	if err != nil {
		return nil, err
	}
	mode := fs.FileMode(s.Mode).Perm()
	if mode == 0 {
		mode = 0o666
	}
	if err := os.Chmod(s.Path, mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (f *forwards) accept(ctx context.Context, l net.Listener, id string, connect guestrpc.Connector) {
	free := make(chan struct{}, maxForwarded)
	for {
		free <- struct{}{}
		c, err := l.Accept()
		if err != nil {
			return
		}
		f.tasks.Go(func() {
			defer func() { <-free }()
			forward(ctx, c.(*net.UnixConn), id, connect)
		})
	}
}

// forward joins a program's connection to the host's until both directions have ended or one has broken off.
func forward(ctx context.Context, c *net.UnixConn, id string, connect guestrpc.Connector) {
	defer func() { _ = c.Close() }()
	far, err := connect(ctx, id)
	if err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { _, _ = c.Close(), far.Close() })()
	var there sync.WaitGroup
	there.Go(func() { copyHalf(far, c) })
	copyHalf(c, far)
	there.Wait()
	_ = far.Close()
}

// copyHalf copies one direction. It forwards the end of it, and closes both connections after an error.
func copyHalf(to, from capnprpc.Stream) {
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 32<<10))
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		_, _ = to.Close(), from.Close()
	}
}
