package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"agentvm/internal/daemon/daemonrpc"
)

// wakeTime bounds how long a VM's daemon may take to listen, or to end, while it is woken.
const wakeTime = 15 * time.Second

// Connect connects to a VM's daemon. The VM may still be booting: see AwaitReady. A VM that is hibernated is woken. Without a daemon the error
// is ErrNotFound or ErrNotRunning.
func (s Store) Connect(ctx context.Context, name string) (*Client, error) {
	p, err := s.existing(name)
	if err != nil {
		return nil, err
	}
	for {
		client, err := s.connectRunning(ctx, name, p)
		if err == nil {
			return client, nil
		}
		if _, statErr := os.Stat(p.saving()); statErr == nil && !errors.Is(err, ErrNotRunning) {
			select { // it is being saved
			case <-time.After(goneRetry):
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if !errors.Is(err, ErrNotRunning) || !p.asleep() {
			return nil, err
		}
		if client, err = s.wake(ctx, name, p); !errors.Is(err, errDaemonGone) {
			return client, err
		}
	}
}

// wake starts the daemon of a VM that is hibernated, unless another process has, and connects to it.
func (s Store) wake(ctx context.Context, name string, p paths) (*Client, error) {
	unlock, err := lockFile(ctx, p.starting(), wakeTime)
	if err != nil {
		return nil, fmt.Errorf("wake %s: it is being started: %w", name, err)
	}
	defer func() { _ = unlock() }()
	return s.wakeLocked(ctx, name, p)
}

func (s Store) wakeLocked(ctx context.Context, name string, p paths) (*Client, error) {
	alive, release, err := probe(p)
	if err != nil {
		return nil, err
	}
	if alive {
		limited, cancel := context.WithTimeout(ctx, wakeTime)
		defer cancel()
		return s.connectAlive(limited, name, p)
	}
	cleanUp(p)
	if err := release(); err != nil {
		return nil, err
	}
	config, err := readConfig(p.config())
	var d *child
	if err == nil {
		d, err = s.spawn(name, p, config)
	}
	if err == nil {
		var client *Client
		if client, err = d.await(ctx); err == nil {
			return client, nil
		}
	}
	return nil, fmt.Errorf("wake %s: %w", name, err)
}

// Asleep reports whether a VM is hibernated, or about to be. It is cheap, and wakes none.
func (s Store) Asleep(name string) bool {
	p, err := s.existing(name)
	return err == nil && p.asleep()
}

// Stop stops a VM, with up to grace for its programs to end, and returns when its daemon's process has ended. A daemon that does not
// answer, does not stop or hangs is killed, which loses what the guest has not written back. A VM that is hibernated is woken for it. It is no
// error when the VM does not run; when there is none the error is ErrNotFound.
func (s Store) Stop(ctx context.Context, name string, grace time.Duration) (StopResult, error) {
	p, err := s.existing(name)
	if err != nil {
		return WasStopped, err
	}
	if !p.asleep() {
		how, err := s.stop(ctx, name, p, grace)
		if err != nil || !p.asleep() {
			return how, err
		}
	}
	client, err := s.connectReady(ctx, name)
	if err == nil {
		defer func() { _ = client.Close() }() // until it is stopped, so that it is not hibernated again before
	} else if !errors.Is(err, ErrNotRunning) {
		return "", fmt.Errorf("stop %s: it is hibernated and cannot be woken: %w", name, err)
	}
	return s.stop(ctx, name, p, grace)
}

// connectReady connects to a VM that has booted, or was woken. A daemon that another process has started may be about to end, because its VM
// could not be woken: then this one wakes it itself, and learns why.
func (s Store) connectReady(ctx context.Context, name string) (*Client, error) {
	for began := time.Now(); ; time.Sleep(goneRetry) {
		client, err := s.Connect(ctx, name)
		if err != nil {
			return nil, err
		}
		err = client.AwaitReady(ctx, nil)
		if err == nil {
			return client, nil
		}
		_ = client.Close()
		if client.child != nil || !errors.Is(err, daemonrpc.ErrClosed) || time.Since(began) > wakeTime {
			return nil, err
		}
	}
}

// startAsleep wakes a VM that a start finds hibernated. It returns nothing when the VM is not.
func (s Store) startAsleep(ctx context.Context, name string, p paths, c Config) (*Client, error) {
	switch {
	case c.Cold || !p.asleep():
		return nil, nil
	case !keeps(p, c):
		return nil, fmt.Errorf("%w: it is hibernated, and continues as it was: stop it first", ErrRunning)
	}
	return s.wakeLocked(ctx, name, p)
}
