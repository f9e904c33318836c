package rpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"

	"capnproto.org/go/capnp/v3"

	"agentvm/rpc/wire"
)

// ErrHangup is what a port's Read returns when the other side is not there. Serve ends the session and reads on: the
// port's Read is to wait for the other side's return.
var ErrHangup = errors.New("nobody at the other end of the port")

// Serve answers hosts on port, one session after another, until ctx ends or the port fails. It closes port when it
// returns. Whatever bytes arrive, it ends at most the session. logger may be nil.
func Serve(ctx context.Context, port io.ReadWriteCloser, h Handler, logger *slog.Logger) error {
	return serve(ctx, port, logger, func(c *conn) capnp.Client {
		return capnp.Client(wire.Supervisor_ServerToClient(&supervisor{loopback: loopback{h, c}, h: h, c: c}))
	})
}

// ServeBulk is Serve for the bulk port: the file service, and the loopback interface.
func ServeBulk(ctx context.Context, port io.ReadWriteCloser, h FilesHandler, l LoopbackHandler, logger *slog.Logger) error {
	return serve(ctx, port, logger, func(c *conn) capnp.Client {
		return capnp.Client(wire.Bulk_ServerToClient(&bulk{files{h: h, c: c}, loopback{l, c}}))
	})
}

// bulk serves the bootstrap capability of the bulk port.
type bulk struct {
	files
	loopback
}

// ServeFiles is ServeBulk without a loopback interface.
func ServeFiles(ctx context.Context, port io.ReadWriteCloser, h FilesHandler, logger *slog.Logger) error {
	return serve(ctx, port, logger, func(c *conn) capnp.Client {
		return capnp.Client(wire.Files_ServerToClient(&files{h: h, c: c}))
	})
}

func serve(ctx context.Context, port io.ReadWriteCloser, logger *slog.Logger, offer func(*conn) capnp.Client) error {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	stop := context.AfterFunc(ctx, func() { _ = port.Close() })
	defer func() {
		if stop() {
			_ = port.Close()
		}
	}()
	var late sync.WaitGroup // tasks of sessions that have ended
	defer late.Wait()
	l := &link{port: port}
	err := l.write(hello{version: Version}.encode())
	for err == nil {
		var peer hello
		if peer, err = l.awaitHello(); err != nil {
			break
		}
		if err = l.write(hello{version: Version, flags: helloOffer, nonce: peer.nonce}.encode()); err != nil {
			break
		}
		if peer.version != Version {
			logger.Warn("host speaks another protocol", "host", peer.version, "guest", Version)
			continue
		}
		late.Go(serveSession(l, offer, logger).tasks.Wait)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// serveSession runs one connection. Its end releases every capability the host held.
func serveSession(l *link, offer func(*conn) capnp.Client, logger *slog.Logger) *conn {
	s := &session{link: l}
	c := startConn(s, s, s, offer)
	<-c.done
	logger.Debug("session has ended", "why", c.err)
	return c
}
