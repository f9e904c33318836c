package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

const (
	// askStopTime is how long a daemon may take to accept the order to stop, termTime how long one that has not accepted it may take to
	// end after SIGTERM, and killedTime how long the system may take to end a killed process.
	askStopTime = 5 * time.Second
	termTime    = 5 * time.Second
	killedTime  = 30 * time.Second
)

// StopResult says how a VM was stopped.
type StopResult string

// Results.
const (
	WasStopped   StopResult = "did not run"
	StoppedByAsk StopResult = "stopped"
	StoppedKill  StopResult = "killed" // its daemon did not answer, or did not stop
)

func (s Store) stop(ctx context.Context, name string, p paths, grace time.Duration) (StopResult, error) {
	if err := s.sweep(name, p); err != nil {
		if errors.Is(err, ErrNotRunning) {
			return WasStopped, nil
		}
		return WasStopped, err
	}
	askErr := s.askToStop(ctx, name, p, grace)
	if askErr == nil {
		return StoppedByAsk, nil
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("stop %s: %w", name, ctx.Err())
	}
	limited, cancel := context.WithTimeoutCause(ctx, killedTime, fmt.Errorf("it was killed and has not ended after %v", killedTime))
	defer cancel()
	orderly, cancelOrderly := context.WithTimeout(limited, signalTime(askErr, grace))
	defer cancelOrderly()
	killed, err := forceEnd(limited, p, orderly)
	if err != nil {
		return "", fmt.Errorf("stop %s: %w", name, errors.Join(askErr, err))
	}
	if !killed {
		return StoppedByAsk, nil
	}
	return StoppedKill, noteKilled(p, askErr)
}

// signalTime is how long a daemon that did not accept the order, with err, may take to end after a signal.
func signalTime(err error, grace time.Duration) time.Duration {
	var version *VersionError
	if errors.As(err, &version) {
		return grace + goneTime // only its protocol differs
	}
	return min(grace, termTime)
}

// askToStop asks the daemon to stop and waits for its end. It tries again when the daemon does not listen yet, or any more.
func (s Store) askToStop(ctx context.Context, name string, p paths, grace time.Duration) error {
	limit := askStopTime
	if grace <= 0 {
		limit = askTime // killing it has the same effect
	}
	asking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client, err := s.connectAlive(asking, name, p)
	if errors.Is(err, errDaemonGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	stopping, cancel := context.WithTimeoutCause(ctx, grace+goneTime, fmt.Errorf("the VM has not ended after %v", grace+goneTime))
	defer cancel()
	stopErr := client.Client.Stop(stopping, grace)
	if stopping.Err() != nil {
		return context.Cause(stopping)
	}
	if err := awaitGone(ctx, p); err != nil {
		return errors.Join(stopErr, err)
	}
	return nil // it has ended, whatever it answered
}

// connectAlive connects to a living daemon as soon as it listens, until ctx ends. When it has ended the error is errDaemonGone.
func (s Store) connectAlive(ctx context.Context, name string, p paths) (*Client, error) {
	for {
		alive, unlock, err := probe(p)
		if err != nil {
			return nil, err
		}
		if !alive {
			return nil, errors.Join(errDaemonGone, unlock())
		}
		st, err := p.readState(name)
		if err == nil {
			var client *Client
			if client, err = s.dial(ctx, name, p, st); err == nil {
				return client, nil
			}
		}
		var version *VersionError
		if errors.As(err, &version) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			if errors.Is(err, fs.ErrNotExist) {
				err = errors.New("its daemon does not say where it listens")
			}
			return nil, err
		case <-time.After(goneRetry):
		}
	}
}

// noteKilled records how the daemon has ended, unless another one has begun.
func noteKilled(p paths, why error) error {
	alive, unlock, err := probe(p)
	if err != nil || alive {
		return err
	}
	if _, err := os.Stat(p.state()); err == nil {
		_ = os.Remove(p.end())
		err = p.writeEnd(ending{Ended: time.Now().UTC(), Reason: fmt.Sprintf("its daemon was killed, for it could not be stopped: %v", why)})
		if err != nil {
			return errors.Join(err, unlock())
		}
	}
	cleanUp(p)
	return unlock()
}
