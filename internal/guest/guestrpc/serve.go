package guestrpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"

	"capnproto.org/go/capnp/v3"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// ErrHangup is returned by a port's Read when no host is at the other end. Serve ends the session and calls Read again, which waits for
// the host's return.
var ErrHangup = errors.New("no host at the other end of the port")

// Serve answers hosts on port, one session after another, until ctx ends or the port fails. It closes port when it returns. Hostile
// bytes end at most the session. logger may be nil.
func Serve(ctx context.Context, port io.ReadWriteCloser, h Handler, logger *slog.Logger) error {
	return serve(ctx, port, logger, func(c *capnprpc.Conn) capnp.Client {
		return capnp.Client(guestwire.Supervisor_ServerToClient(&supervisor{loopback: loopback{h, c}, h: h, c: c}))
	})
}

// ServeBulk is Serve for the bulk port: the file service, and the loopback interface.
func ServeBulk(ctx context.Context, port io.ReadWriteCloser, h FilesHandler, l LoopbackHandler, logger *slog.Logger) error {
	return serve(ctx, port, logger, func(c *capnprpc.Conn) capnp.Client {
		return capnp.Client(guestwire.Bulk_ServerToClient(&bulk{files{h: h, c: c}, loopback{l, c}}))
	})
}

// bulk serves the bootstrap capability of the bulk port.
type bulk struct {
	files
	loopback
}

// ServeFiles is ServeBulk without a loopback interface.
func ServeFiles(ctx context.Context, port io.ReadWriteCloser, h FilesHandler, logger *slog.Logger) error {
	return serve(ctx, port, logger, func(c *capnprpc.Conn) capnp.Client {
		return capnp.Client(guestwire.Files_ServerToClient(&files{h: h, c: c}))
	})
}

func serve(ctx context.Context, port io.ReadWriteCloser, logger *slog.Logger, offer func(*capnprpc.Conn) capnp.Client) error {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	stop := context.AfterFunc(ctx, func() { _ = port.Close() })
	defer func() {
		if stop() {
			_ = port.Close()
		}
	}()
	var remaining sync.WaitGroup // tasks of sessions that have ended
	defer remaining.Wait()
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
		remaining.Go(serveSession(l, offer, logger).WaitTasks)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// serveSession runs one connection. Its end releases every capability that the host held.
func serveSession(l *link, offer func(*capnprpc.Conn) capnp.Client, logger *slog.Logger) *capnprpc.Conn {
	s := &session{link: l}
	c := capnprpc.Start(s, s, s, offer)
	<-c.Done()
	logger.Debug("session has ended", "why", c.Err())
	return c
}
