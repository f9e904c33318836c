package daemonrpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/rpctest"
	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/guest/guestrpc"
)

// localDaemon is a daemon whose VM's loopback interface is the host's.
type localDaemon struct {
	*fakeDaemon
	purposes chan LocalPurpose
}

func (d *localDaemon) DialLocal(ctx context.Context, host string, port uint16, purpose LocalPurpose) (capnprpc.Stream, error) {
	d.purposes <- purpose
	if port == 7 {
		return nil, &net.OpError{Op: "dial", Err: syscall.EACCES}
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func (d *localDaemon) VM(bool) (VM, error) { return d, nil }

func (d *localDaemon) Sockets(context.Context) ([]guestrpc.Socket, error) {
	at := netip.MustParseAddrPort
	return []guestrpc.Socket{{Family: 4, Network: "tcp", Local: at("127.0.0.1:80"), Remote: at("0.0.0.0:0"), State: guestrpc.SocketListen, PID: 3, Process: "httpd"}}, nil
}

func newLocalDaemon() *localDaemon {
	return &localDaemon{newFakeDaemon(), make(chan LocalPurpose, 100)}
}

func TestDaemonLocal(t *testing.T) {
	d := newLocalDaemon()
	c := dialFake(t, d)
	at := netip.MustParseAddrPort(rpctest.Server(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.CloseWrite() }))
	conn, err := c.DialLocal(t.Context(), "127.0.0.1", at.Port(), ForFetch)
	if err != nil {
		t.Fatal(err)
	}
	if got := <-d.purposes; got != ForFetch {
		t.Errorf("purpose %d", got)
	}
	if conn.RemoteAddr().String() != at.String() || capnprpc.AddrPort(conn.LocalAddr()).Port() == 0 {
		t.Errorf("%v -> %v", conn.LocalAddr(), conn.RemoteAddr())
	}
	data := bytes.Repeat([]byte("0123456789abcde\n"), 64<<10)
	go func() { _, _ = conn.Write(data); _ = conn.CloseWrite() }()
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v, or other ones", len(got), err)
	}
	_ = conn.Close()
	if _, err := c.DialLocal(t.Context(), "127.0.0.1", 7, ForDial); !errors.Is(err, syscall.EACCES) {
		t.Errorf("got %v", err)
	}
	if _, err := c.DialLocal(t.Context(), "127.0.0.1", 1, ForDial); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
	want, _ := d.Sockets(t.Context())
	if got, err := c.Sockets(t.Context()); err != nil || cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{}, netip.Addr{})) != "" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestLocalOwners: a connection belongs to its client. Another client of the same daemon cannot name it, and loses only its own
// connections when it tries; a client that leaves ends its own connections, and no others.
func TestLocalOwners(t *testing.T) {
	d := newLocalDaemon()
	ended := make(chan error, 1)
	at := netip.MustParseAddrPort(rpctest.Server(t, func(c *net.TCPConn) {
		b := make([]byte, 1)
		for {
			if _, err := c.Read(b); err != nil {
				ended <- err
				return
			}
			_, _ = c.Write(b)
		}
	}))
	owner := dialFake(t, d)
	conn, err := owner.DialLocal(t.Context(), "127.0.0.1", at.Port(), ForDial)
	if err != nil {
		t.Fatal(err)
	}
	echoes := func(what string) {
		t.Helper()
		b := []byte("x")
		_, err := conn.Write(b)
		if _, err2 := io.ReadFull(conn, b); err != nil || err2 != nil {
			t.Errorf("%s: %v, %v", what, err, err2)
		}
	}
	echoes("at first")
	for id := uint32(0); id < 20; id++ {
		thief := dialFake(t, d)
		sink := streamwire.Sink(thief.conn.Import(id))
		future, release := sink.Send(t.Context(), func(w streamwire.Sink_send_Params) error { return w.SetData([]byte("stolen")) })
		if _, err := future.Struct(); err == nil {
			t.Errorf("another client used capability %d", id)
		}
		release()
		sink.Release()
		_ = thief.Close()
	}
	echoes("after other clients tried")
	select {
	case err := <-ended:
		t.Fatalf("the connection has ended: %v", err)
	default:
	}
	_ = owner.Close()
	if err := <-ended; err == nil {
		t.Error("the connection outlived its owner")
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the owner reads %v", err)
	}
}
