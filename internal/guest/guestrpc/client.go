package guestrpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// Client is the host's end. Close it to free what it holds; it does not shut the guest down.
type Client struct {
	cfg        ClientConfig
	conn       *capnprpc.Conn
	supervisor guestwire.Supervisor
	// running counts the goroutines of processes. They end when the connection ends.
	running sync.WaitGroup
}

// Dial says hello over conn and waits for the guest's answer. The guest may still be booting: the hello is repeated
// until ctx ends. From now on the client owns conn; Close, or an error here, closes it. A guest of another protocol
// version gives a *VersionError.
func Dial(ctx context.Context, conn io.ReadWriteCloser, cfg ClientConfig) (*Client, error) {
	cfg = cfg.withDefaults()
	established, boot, err := connect(ctx, conn, cfg)
	if err != nil {
		return nil, err
	}
	return &Client{cfg: cfg, conn: established, supervisor: guestwire.Supervisor(boot)}, nil
}

func (cfg ClientConfig) withDefaults() ClientConfig {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Hold == 0 {
		cfg.Hold = 20 * time.Millisecond
	}
	cfg.Hold = min(max(cfg.Hold, 0), time.Second)
	if cfg.HelloInterval <= 0 {
		cfg.HelloInterval = 100 * time.Millisecond
	}
	return cfg
}

// handshake exchanges hellos and returns the peer's, and the reader for what follows it. It skips everything before the guest's hello,
// which is left over from an earlier connection. When ctx ends it closes conn, the only way to end a blocked Read.
func handshake(ctx context.Context, conn io.ReadWriteCloser, cfg ClientConfig) (io.Reader, hello, error) {
	own := hello{version: Version, nonce: rand.Uint64() | 1}
	if cfg.KeepPrograms {
		own.flags |= helloKeep
	}
	stop := repeatHello(ctx, conn, own, cfg.HelloInterval)
	r := bufio.NewReaderSize(conn, 64<<10)
	peer, err := awaitHello(r, own.nonce)
	if err2 := stop(); err == nil {
		err = err2
	}
	switch {
	case ctx.Err() != nil:
		return nil, peer, ctx.Err()
	case err != nil:
		return nil, peer, err
	case peer.version != Version:
		return nil, peer, &VersionError{Host: Version, Guest: peer.version}
	}
	return r, peer, nil
}

// repeatHello writes h at once and then at every interval, until stop is called. stop waits and returns the first error.
func repeatHello(ctx context.Context, conn io.WriteCloser, h hello, interval time.Duration) (stop func() error) {
	quit, done := make(chan struct{}), make(chan error, 1)
	go func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			if _, err := conn.Write(h.encode()); err != nil {
				done <- errors.Join(err, conn.Close())
				return
			}
			select {
			case <-ticker.C:
			case <-quit:
				done <- nil
				return
			case <-ctx.Done():
				done <- conn.Close()
				return
			}
		}
	}()
	return func() error { close(quit); return <-done }
}

// awaitHello skips to the hello that answers nonce.
func awaitHello(r *bufio.Reader, nonce uint64) (hello, error) {
	for {
		b, err := r.Peek(helloSize)
		if err != nil {
			return hello{}, err
		}
		h, ok := parseHello(b)
		if !ok {
			_, _ = r.ReadByte() // 1 byte on: a hello may begin anywhere in what is left over
			continue
		}
		if _, err := r.Discard(helloSize); err != nil {
			return hello{}, err
		}
		if h.nonce == nonce || h.version != Version {
			return h, nil
		}
	}
}

// Done is closed when the connection has ended, for whatever reason.
func (c *Client) Done() <-chan struct{} { return c.conn.Done() }

// Close ends the connection, and with it every running program and shell, and waits for the client's goroutines. A
// program's writer that blocks delays it.
func (c *Client) Close() error {
	c.supervisor.Release()
	c.conn.Close()
	c.running.Wait()
	return nil
}

// Start hands the guest its parameters. Call it first; and once more, with Restored, when the machine continues from a snapshot.
func (c *Client) Start(ctx context.Context, p StartParams) (GuestInfo, error) {
	future, release := c.supervisor.Start(ctx, func(call guestwire.Supervisor_start_Params) error {
		w, err := call.NewParams()
		if err != nil {
			return err
		}
		sink := guestwire.LogSink_ServerToClient(logSink{c.cfg.Logger})
		if err := errors.Join(p.write(w), w.SetLog(sink)); err != nil || p.Connect == nil {
			return err
		}
		return w.SetProxy(guestwire.NetworkProxy_ServerToClient(&networkProxy{c: c.conn, connect: p.Connect}))
	})
	defer release()
	r, err := capnprpc.Await(c.fault, "start", future.Struct)
	if err != nil {
		return GuestInfo{}, err
	}
	info, err := readGuestInfo(r.Info())
	// A supervisor that knows no flags knows NoNewPrivileges nevertheless.
	if unknown := p.Flags &^ info.Flags &^ NoNewPrivileges &^ AdoptPrograms; err == nil && unknown != 0 {
		err = fmt.Errorf("the guest's supervisor is of an earlier version and cannot do %s: use a snapshot made by this agentvm", unknown)
	}
	return info, err
}

// Stats reads the guest's counters.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	future, release := c.supervisor.PollStats(ctx, nil)
	defer release()
	r, err := capnprpc.Await(c.fault, "stats", future.Struct)
	if err != nil {
		return Stats{}, err
	}
	w, err := r.Stats()
	return ReadStats(w), err
}

// SyncClock sets the guest's clock, as after a pause.
func (c *Client) SyncClock(ctx context.Context, now time.Time) error {
	future, release := c.supervisor.SyncClock(ctx, func(call guestwire.Supervisor_syncClock_Params) error {
		return writeTime(call.NewTime, now)
	})
	defer release()
	return capnprpc.Done(c.fault, "set the clock", future.Struct)
}

// WriteBack has the guest write to its disks what its file systems have in memory.
func (c *Client) WriteBack(ctx context.Context) error {
	future, release := c.supervisor.WriteBack(ctx, nil)
	defer release()
	return capnprpc.Done(c.fault, "write the disks back", future.Struct)
}

// ReportDenials has the guest append lines about refused connections to /run/agentvm/denials. When it returns without an error,
// programs in the guest can read them there, unless one of them prevents it.
func (c *Client) ReportDenials(ctx context.Context, lines []string) error {
	future, release := c.supervisor.ReportDeny(ctx, func(call guestwire.Supervisor_reportDeny_Params) error {
		return capnprpc.WriteTexts(call.NewLines, lines)
	})
	defer release()
	return capnprpc.Done(c.fault, "report denials", future.Struct)
}

// MountShare mounts one more share, until UnmountShare or the next Start. Where something is mounted at its target already, the error is EBUSY.
// now is the host's time, from which a layer counts that begins with it.
func (c *Client) MountShare(ctx context.Context, m Mount, now time.Time) error {
	future, release := c.supervisor.MountShare(ctx, func(call guestwire.Supervisor_mountShare_Params) error {
		w, err := call.NewMount()
		if err != nil {
			return err
		}
		return errors.Join(writeTime(call.NewTime, now), m.write(w))
	})
	defer release()
	return capnprpc.Done(c.fault, "mount a share", future.Struct)
}

// UnmountShare unmounts a share of MountShare. While a program of the guest uses it the error is EBUSY, unless detach is set: then its path is
// free, and it ends with its last user.
func (c *Client) UnmountShare(ctx context.Context, target string, detach bool) error {
	future, release := c.supervisor.UnmountShare(ctx, func(call guestwire.Supervisor_unmountShare_Params) error {
		call.SetDetach(detach)
		return call.SetTarget(target)
	})
	defer release()
	return capnprpc.Done(c.fault, "unmount a share", future.Struct)
}

// Shutdown has the guest end its processes, write back its disks and power off. Losing the connection meanwhile is success: the machine
// is off. A connection that was lost before is an error.
func (c *Client) Shutdown(ctx context.Context) error {
	select {
	case <-c.Done():
		return fmt.Errorf("shut down: %w", capnprpc.ErrClosed)
	default:
	}
	future, release := c.supervisor.PowerOff(ctx, nil)
	defer release()
	r, err := future.Struct()
	if err == nil {
		return capnprpc.FailureOf(r.Failure())
	}
	if err = c.fault("shut down", err); errors.Is(err, capnprpc.ErrClosed) {
		return nil
	}
	return err
}

// fault adds what the call was for to an error of the connection or the context. The guest's answers need no such addition.
func (c *Client) fault(what string, err error) error { return c.conn.Fault(what, err) }

// logSink passes the guest's messages to the client's logger.
type logSink struct{ logger *slog.Logger }

func (s logSink) Log(ctx context.Context, call guestwire.LogSink_log) error {
	text, err := call.Args().Text()
	if err != nil {
		return err
	}
	s.logger.Log(ctx, slog.Level(4*(int(call.Args().Level())-1)), text, "from", "guest")
	return nil
}
