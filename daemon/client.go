package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"sync"
	"time"

	"agentvm/rpc"
)

const (
	// connectTime bounds a connection with its handshake.
	connectTime = 5 * time.Second
	// goneTime is how long a daemon may take to end after it has stopped its VM.
	goneTime  = 10 * time.Second
	goneRetry = 5 * time.Millisecond
)

// Client is a connection to a daemon. Its methods are rpc.DaemonClient's, over the control connection. Close it: the VM
// runs on.
type Client struct {
	*rpc.DaemonClient
	store Store
	name  string
	state state

	mu     sync.Mutex
	bulk   *rpc.DaemonClient
	closed bool
}

// Connect connects to a VM's daemon. The VM may still be booting: see AwaitReady. ErrNotFound and ErrNotRunning tell when
// there is none.
func (s Store) Connect(ctx context.Context, name string) (*Client, error) {
	p, err := s.existing(name)
	if err != nil {
		return nil, err
	}
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

// sweep is an error when no daemon lives; it then cleans up.
func (s Store) sweep(name string, p paths) error {
	alive, unlock, err := probe(p)
	if err != nil || alive {
		return err
	}
	defer func() { _ = unlock() }()
	cleanUp(p)
	return fmt.Errorf("%s: %w: start it with agentvm start %s", name, ErrNotRunning, name)
}

// dial connects by st, and believes it only if the file has not changed meanwhile.
func (s Store) dial(ctx context.Context, name string, p paths, st state) (*Client, error) {
	control, err := connect(ctx, p, st, Control)
	if err != nil {
		return nil, fmt.Errorf("connect to the daemon of %s (pid %d, %s): %w", name, st.Pid, st.Address, err)
	}
	return &Client{DaemonClient: control, store: s, name: name, state: st}, nil
}

// connect opens one connection. The state file is read again after the connection stands and before the token is shown:
// if another daemon, or another program, has got the port meanwhile, the token is not for it.
func connect(ctx context.Context, p paths, st state, channel Channel) (*rpc.DaemonClient, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp4", st.Address)
	if err != nil {
		return nil, err
	}
	if err := unchanged(p, st); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = greet(conn, st.Token, channel)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return rpc.DialDaemon(ctx, conn)
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

// Name is the VM's.
func (c *Client) Name() string { return c.name }

// Pid is the daemon's.
func (c *Client) Pid() int { return c.state.Pid }

// Bulk is a second connection for what would delay the first: files and long logs. It is opened at the first call and
// closed with the client.
func (c *Client) Bulk(ctx context.Context) (*rpc.DaemonClient, error) {
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
	if made != nil { // another call was faster, or Close was
		_ = made.Close()
	}
	return bulk, closedError(closed)
}

func closedError(closed bool) error {
	if closed {
		return rpc.ErrDaemonClosed
	}
	return nil
}

// Files are the guest's, over the bulk connection. Close what it returns.
func (c *Client) Files(ctx context.Context) (*rpc.FilesClient, error) {
	bulk, err := c.Bulk(ctx)
	if err != nil {
		return nil, err
	}
	return bulk.Files(ctx)
}

// Stop stops the VM, with up to grace for its programs to end, and waits until the daemon's process has gone.
func (c *Client) Stop(ctx context.Context, grace time.Duration) error {
	stopErr := c.DaemonClient.Stop(ctx, grace)
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
	return c.DaemonClient.Close()
}

// logTail is how much of a log an error shows, in bytes.
const logTail = 2 << 10

// Progress lines are passed on as they are.
func (p Progress) tell(level slog.Level, text string) {
	if p != nil {
		p(level, text)
	}
}
