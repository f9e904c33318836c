package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/atomicfile"
)

const (
	// connectTime bounds a connection with its handshake. It is for a daemon that is stopped or stuck: one that has ended refuses at once, and
	// one that waits for its turn on a host with hundreds of programs gets it.
	connectTime = time.Minute
	// goneTime is how long a daemon may take to end after its VM has stopped.
	goneTime  = 10 * time.Second
	goneRetry = 5 * time.Millisecond
	// connectTries and connectRetry say how often, and after which pauses, to connect again to a daemon that closes the connection at once.
	connectTries = 5
	connectRetry = 10 * time.Millisecond
)

// Client is a connection to a daemon. It has daemonrpc.Client's methods, over the control connection. It must be closed; the VM runs
// on.
type Client struct {
	*daemonrpc.Client
	store Store
	name  string
	state state
	child *child // the daemon, when it was started for this client; otherwise nil

	mu     sync.Mutex
	bulk   *daemonrpc.Client
	closed bool
}

func (s Store) connectRunning(ctx context.Context, name string, p paths) (*Client, error) {
	s.reviveActivator()
	if err := s.sweep(name, p); err != nil {
		return nil, err
	}
	st, err := p.readState(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w: its daemon is just starting or stopping", name, ErrNotRunning)
	}
	if err != nil {
		return nil, err
	}
	return s.dial(ctx, name, p, st)
}

// sweep cleans up and returns ErrNotRunning when no daemon lives.
func (s Store) sweep(name string, p paths) error {
	alive, unlock, err := probe(p)
	if err != nil || alive {
		return err
	}
	cleanUp(p)
	_ = unlock()
	atomicfile.RemoveAllTemporary(p.dir) // these have locks of their own
	return fmt.Errorf("%s: %w: start it with agentvm start %s", name, ErrNotRunning, name)
}

// dial connects to the daemon of st, unless the state file has changed meanwhile.
func (s Store) dial(ctx context.Context, name string, p paths, st state) (*Client, error) {
	control, err := connect(ctx, p, st, Control)
	if err != nil {
		return nil, fmt.Errorf("connect to the daemon of %s (pid %d, %s): %w", name, st.Pid, st.Address, err)
	}
	return &Client{Client: control, store: s, name: name, state: st}, nil
}

// connect opens one connection. It reads the state file again after the connection is made and before it shows the token: another
// daemon, or another program, that listens at the address by now must not get the token.
//
// A daemon that is flooded with connections may close this one before its handshake, or its Unix socket may be full (EAGAIN). Then
// connect tries again.
func connect(ctx context.Context, p paths, st state, channel Channel) (*daemonrpc.Client, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, connectTime, fmt.Errorf("it has not answered for %v: %w", connectTime, context.DeadlineExceeded))
	defer cancel()
	for try := 1; ; try++ {
		client, err := connectOnce(ctx, p, st, channel)
		again := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EAGAIN)
		if cause := context.Cause(ctx); err != nil && cause != nil {
			return nil, cause
		}
		if err == nil || try == connectTries || !again {
			return client, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(time.Duration(try) * connectRetry):
		}
	}
}

func connectOnce(ctx context.Context, p paths, st state, channel Channel) (*daemonrpc.Client, error) {
	conn, err := openChannel(ctx, p, st, channel)
	if err != nil {
		return nil, err
	}
	return daemonrpc.Dial(ctx, conn)
}

// openChannel connects and does the handshake.
func openChannel(ctx context.Context, p paths, st state, channel Channel) (net.Conn, error) {
	conn, err := dialDoor(ctx, p, st.Address)
	if err != nil {
		return nil, err
	}
	if err := unchanged(p, st); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = handshake(conn, st.Token, channel)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// unchanged reads the state file again.
func unchanged(p paths, st state) error {
	now, err := p.readState(st.Name)
	switch {
	case err != nil:
		return fmt.Errorf("read the state file again: %w", err)
	case now.Token != st.Token:
		return errors.New("the token in the state file has changed while it was read: try again")
	case now.Address != st.Address || now.Pid != st.Pid:
		return errors.New("the state file has changed while it was read: try again")
	}
	return nil
}

// The next three are daemonrpc.Client's. A VM may need an activator afterwards, which its daemon cannot start.

// Forward opens one more port.
func (c *Client) Forward(ctx context.Context, forward string) (string, error) {
	address, err := c.Client.Forward(ctx, forward)
	c.tendActivator()
	return address, err
}

// Preview serves the VM's previews.
func (c *Client) Preview(ctx context.Context) (daemonrpc.PreviewPlace, error) {
	place, err := c.Client.Preview(ctx)
	c.tendActivator()
	return place, err
}

// Change changes settings.
func (c *Client) Change(ctx context.Context, change daemonrpc.Change) error {
	err := c.Client.Change(ctx, change)
	c.tendActivator()
	return err
}

func (c *Client) tendActivator() {
	if p, err := c.store.paths(c.name); err == nil {
		c.store.tendActivator(p)
	}
}

// Name is the VM's.
func (c *Client) Name() string { return c.name }

// Pid is the daemon's.
func (c *Client) Pid() int { return c.state.Pid }

// Bulk is a second connection for data that would delay the first: files and long logs. The first call opens it; it is closed with the
// client.
func (c *Client) Bulk(ctx context.Context) (*daemonrpc.Client, error) {
	c.mu.Lock()
	bulk, closed := c.bulk, c.closed
	c.mu.Unlock()
	if bulk != nil || closed {
		return bulk, closedError(closed)
	}
	p, err := c.store.paths(c.name)
	if err != nil {
		return nil, err
	}
	made, err := connect(ctx, p, c.state, Bulk)
	if err != nil {
		return nil, fmt.Errorf("second connection to the daemon of %s: %w", c.name, err)
	}
	c.mu.Lock()
	if c.bulk == nil && !c.closed {
		c.bulk, made = made, nil
	}
	bulk, closed = c.bulk, c.closed
	c.mu.Unlock()
	if made != nil { // another call, or Close, was faster
		_ = made.Close()
	}
	return bulk, closedError(closed)
}

func closedError(closed bool) error {
	if closed {
		return daemonrpc.ErrClosed
	}
	return nil
}

// Files gives access to the guest's files over the bulk connection. The caller closes the result.
func (c *Client) Files(ctx context.Context) (*guestrpc.FilesClient, error) {
	bulk, err := c.Bulk(ctx)
	if err != nil {
		return nil, err
	}
	return bulk.Files(ctx)
}

// Stop stops the VM, with up to grace for its programs to end, and waits until the daemon's process has ended.
func (c *Client) Stop(ctx context.Context, grace time.Duration) error {
	stopErr := c.Client.Stop(ctx, grace)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	p, err := c.store.paths(c.name)
	if err == nil {
		err = awaitGone(ctx, p)
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w", c.name, errors.Join(stopErr, err))
	}
	return stopErr
}

// awaitGone waits until no daemon holds the lock.
func awaitGone(ctx context.Context, p paths) error {
	ctx, cancel := context.WithTimeoutCause(ctx, goneTime, fmt.Errorf("the daemon has not ended after %v", goneTime))
	defer cancel()
	for {
		alive, unlock, err := probe(p)
		if err != nil || !alive {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil {
				err = unlock()
			}
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(goneRetry):
		}
	}
}

// Close ends the connections, and with them this client's jobs that are not durable.
func (c *Client) Close() error {
	c.mu.Lock()
	bulk := c.bulk
	c.bulk, c.closed = nil, true
	c.mu.Unlock()
	if bulk != nil {
		_ = bulk.Close()
	}
	return c.Client.Close()
}

// logTail is how many bytes of a log's end an error shows.
const logTail = 2 << 10

// report calls p unless it is nil.
func (p Progress) report(level slog.Level, text string) {
	if p != nil {
		p(level, text)
	}
}
