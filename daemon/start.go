package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// How Start waits for the address: polls, because a file is the only thing that is the same everywhere.
const (
	statePolls = 50
	pollTime   = 100 * time.Millisecond
	// earlyPolls divide the first of these times: a daemon needs some 20 ms, and a fork little more.
	earlyPolls = 20
	// quitTime is how long a start that was given up waits for the VM to stop.
	quitTime = 15 * time.Second
)

// Start starts a VM under a daemon of its own, and returns when the VM runs or cannot. A VM of that name that has run
// before keeps its files; c replaces its configuration. ErrRunning when it runs already. When ctx ends meanwhile the VM is
// stopped again. The daemon outlives this process; while this process lives, a goroutine waits for the daemon's end.
func (s Store) Start(ctx context.Context, name string, c Config, progress Progress) (*Client, error) {
	client, err := s.Launch(ctx, name, c)
	if err != nil {
		return nil, err
	}
	progress.tell(slog.LevelInfo, "booting")
	return awaitStart(ctx, client, progress)
}

// awaitStart waits for the boot. When that fails the client is closed.
func awaitStart(ctx context.Context, client *Client, progress Progress) (*Client, error) {
	err := client.AwaitReady(ctx, progress.tell)
	if err == nil {
		return client, nil
	}
	if ctx.Err() != nil {
		quit, cancel := context.WithTimeout(context.WithoutCancel(ctx), quitTime)
		defer cancel()
		err = errors.Join(ctx.Err(), client.Stop(quit, 0))
	}
	return nil, fmt.Errorf("start %s: %w", client.name, errors.Join(err, client.Close()))
}

// Launch is Start that returns when the daemon listens, and leaves the boot to it: Client.AwaitReady tells how that ends, and so
// does Status later on.
func (s Store) Launch(ctx context.Context, name string, c Config) (*Client, error) {
	client, err := s.start(ctx, name, c, nil)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return client, nil
}

func (s Store) start(ctx context.Context, name string, c Config, r *Restoration) (*Client, error) {
	p, err := s.paths(name)
	if err != nil {
		return nil, err
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the VM's directory: %w", err)
	}
	unlock, err := lockFile(ctx, p.starting(), lockTime)
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("%w: another process is starting it", ErrRunning)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = unlock() }()
	if _, err := os.Stat(p.config()); r != nil && err == nil {
		return nil, ErrExists
	}
	if err := s.prepare(p, c, r); err != nil {
		return nil, err
	}
	d, err := s.spawn(name, p)
	if err != nil {
		return nil, err
	}
	return d.await(ctx)
}

// prepare leaves a directory without state and with the configuration.
func (s Store) prepare(p paths, c Config, r *Restoration) error {
	alive, unlock, err := probe(p)
	if err != nil {
		return err
	}
	if alive {
		return ErrRunning
	}
	cleanUp(p)
	if r != nil {
		err = p.writeRestoration(*r)
	}
	if err == nil {
		err = writeConfig(p.config(), c)
	}
	return errors.Join(err, unlock())
}

// child is a daemon that this process has started.
type child struct {
	store Store
	name  string
	paths paths
	pid   int
	kill  func() error
	ended chan struct{} // closed when the process has ended and how is set
	how   string
}

// spawn starts the process, detached: it survives this one, its terminal and its session.
func (s Store) spawn(name string, p paths) (*child, error) {
	args, err := s.command(name)
	if err != nil {
		return nil, err
	}
	log, err := openAppend(p.log())
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	command := exec.Command(args[0], args[1:]...)
	command.Stdout, command.Stderr = log, log
	command.Dir = s.Dir // not the VM's: Windows removes no working directory
	detach(command)
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	d := &child{store: s, name: name, paths: p, pid: command.Process.Pid, kill: command.Process.Kill, ended: make(chan struct{})}
	go func() {
		defer close(d.ended)
		_ = command.Wait()
		d.how = command.ProcessState.String()
	}()
	return d, nil
}

func (s Store) command(name string) ([]string, error) {
	if len(s.Command) > 0 {
		return append(slices.Clone(s.Command), name), nil
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program, which is the daemon's too: %w", err)
	}
	return []string{program, "daemon", "run", "--dir", s.Dir, name}, nil
}

// await polls for the state file and connects. A daemon that dies is noticed at once.
func (d *child) await(ctx context.Context) (*Client, error) {
	ticker := time.NewTicker(pollTime / earlyPolls)
	defer ticker.Stop()
	for i := range earlyPolls + statePolls - 1 {
		if i == earlyPolls {
			ticker.Reset(pollTime)
		}
		select {
		case <-d.ended:
			return nil, d.died()
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), d.end())
		case <-ticker.C:
		}
		st, err := d.paths.readState(d.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && st.Pid != d.pid {
			err = fmt.Errorf("state file of %s: it is of process %d, not of the daemon, process %d", d.name, st.Pid, d.pid)
		}
		if err != nil {
			return nil, errors.Join(err, d.end())
		}
		return d.dial(ctx, st)
	}
	return nil, errors.Join(fmt.Errorf("daemon (pid %d) has not said where it listens within %v%s", d.pid,
		statePolls*pollTime, d.tail()), d.end())
}

// dial connects to the daemon, which may die at any moment.
func (d *child) dial(ctx context.Context, st state) (*Client, error) {
	client, err := d.store.dial(ctx, d.name, d.paths, st)
	if err == nil {
		return client, nil
	}
	select {
	case <-d.ended:
		return nil, d.died()
	case <-time.After(pollTime): // what has closed the connection may be its end
	}
	select {
	case <-d.ended:
		return nil, d.died()
	default:
		return nil, errors.Join(err, d.end())
	}
}

// end kills the daemon, which does not behave.
func (d *child) end() error {
	if err := d.kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-d.ended
	return nil
}

func (d *child) died() error {
	return fmt.Errorf("daemon (pid %d) exited before IPC ready (%s)%s", d.pid, d.how, d.tail())
}

// tail is the end of the daemon's log, to be added to an error.
func (d *child) tail() string {
	b, err := readTail(d.paths.log(), logTail)
	text := strings.TrimSpace(strings.ToValidUTF8(string(b), "?"))
	if err != nil || text == "" {
		return "; its log is empty"
	}
	return "; its log ends with\n  | " + strings.ReplaceAll(text, "\n", "\n  | ")
}
