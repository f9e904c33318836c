package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/lockfile"
	"agentvm/internal/host/private"
)

const (
	// Start polls for the state file, because that works in the same way on every system: first after a moment, and then each time that the
	// daemon has taken an eighth longer, so that it waits no more than that for nothing.
	firstPoll = 2 * time.Millisecond
	pollTime  = 100 * time.Millisecond
	// listenTime bounds how long a daemon that lives may take to listen and to answer: on a busy host it may wait long for a processor.
	listenTime = time.Minute
	// quitTime bounds how long a cancelled start waits for the VM to stop.
	quitTime = 15 * time.Second
	// leavingTime is how long a start waits for a daemon that is ending: the grace of its programs, and then its own end.
	leavingTime = defaultGrace + goneTime
)

// Start starts a VM under a daemon of its own, and returns when the VM runs or has failed. A VM of that name that has run
// before keeps its files; c replaces its configuration. When it runs already the error is ErrRunning. When ctx ends meanwhile the VM is
// stopped again. The daemon outlives this process; while this process lives, a goroutine waits for the daemon's end.
func (s Store) Start(ctx context.Context, name string, c Config, progress Progress) (*Client, error) {
	client, err := s.Launch(ctx, name, c)
	if err != nil {
		return nil, err
	}
	progress.report(slog.LevelInfo, "booting")
	return awaitStart(ctx, client, progress)
}

// Create makes and starts a VM as Start does. When there is a VM of that name the error is ErrExists. After any other failure no VM of that name
// exists.
func (s Store) Create(ctx context.Context, name string, c Config, progress Progress) (*Client, error) {
	return s.orAbandon(ctx, name, func() (*Client, error) {
		client, err := s.start(ctx, name, c, nil, true, nil)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
		return awaitStart(ctx, client, progress)
	})
}

// awaitStart waits for the boot. When that fails the client is closed.
func awaitStart(ctx context.Context, client *Client, progress Progress) (*Client, error) {
	err := client.AwaitReady(ctx, progress.report)
	if err == nil {
		return client, nil
	}
	if ctx.Err() != nil {
		quit, cancel := context.WithTimeout(context.WithoutCancel(ctx), quitTime)
		defer cancel()
		err = errors.Join(ctx.Err(), client.Stop(quit, 0))
	} else if errors.Is(err, daemonrpc.ErrClosed) && client.child != nil {
		err = client.child.ended(err)
	}
	err = errors.Join(err, client.Close())
	if client.child != nil {
		client.child.leave()
	}
	return nil, fmt.Errorf("start %s: %w", client.name, err)
}

// Launch is Start that returns when the daemon listens. Client.AwaitReady, and later Status, return how the boot has ended.
func (s Store) Launch(ctx context.Context, name string, c Config) (*Client, error) {
	client, err := s.start(ctx, name, c, nil, false, nil)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return client, nil
}

// start starts a daemon. With create, a VM that is there already is ErrExists. complete is launch's.
func (s Store) start(ctx context.Context, name string, c Config, r *Restoration, create bool, complete func(*Config) error) (*Client, error) {
	p, err := s.paths(name)
	if err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := c.pin(); err != nil {
		return nil, err
	}
	if err := private.MakeFolder(p.dir); err != nil {
		return nil, fmt.Errorf("make the VM's directory: %w", err)
	}
	unlock, err := lockFile(ctx, p.starting(), lockTime)
	if errors.Is(err, lockfile.ErrHeld) {
		return nil, fmt.Errorf("%w: another process is starting it", ErrRunning)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = unlock() }()
	if _, err := os.Stat(p.config()); create && err == nil {
		return nil, ErrExists
	}
	if client, err := s.awaitStartable(ctx, name, p, c); client != nil || err != nil {
		return client, err
	}
	if client, err := s.startAsleep(ctx, name, p, c); client != nil || err != nil {
		return client, err
	}
	d, err := s.launch(name, p, c, r, complete)
	if err != nil {
		return nil, err
	}
	named := background(func() error { return atomicfile.SyncFolder(p.dir) })
	client, err := d.await(ctx)
	if failed := named(); failed != nil && err == nil {
		return nil, errors.Join(failed, client.Close(), d.end())
	}
	return client, err
}

// awaitStartable waits until no daemon is in the way. It waits for one that is ending. When a daemon's guest has just restarted itself,
// it returns a client of that daemon if it has this configuration, and otherwise stops it. When the VM runs the error is ErrRunning.
func (s Store) awaitStartable(ctx context.Context, name string, p paths, c Config) (*Client, error) {
	for deadline := time.Now().Add(leavingTime); ; {
		alive, unlock, err := probe(p)
		if err != nil {
			return nil, err
		}
		if !alive {
			return nil, unlock()
		}
		client, err := s.tryLiving(ctx, name, p, c)
		if client != nil || err != nil {
			return client, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%w: its daemon is ending, and has not ended after %v", ErrRunning, leavingTime)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(goneRetry):
		}
	}
}

// tryLiving decides about a daemon that lives. When it returns neither a client nor an error, the caller tries again.
func (s Store) tryLiving(ctx context.Context, name string, p paths, c Config) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	st, err := p.readState(name)
	if err != nil { // it begins or ends; a damaged file ends it, too
		return nil, onlyVersion(err)
	}
	client, err := s.dial(ctx, name, p, st)
	if err != nil {
		return nil, onlyVersion(err)
	}
	info, err := client.Info(ctx)
	if err == nil { // read it again: the guest may have restarted meanwhile
		st, err = p.readState(name)
	}
	wanted := hasRestarted(st) && keeps(p, c)
	switch {
	case err != nil:
	case info.State == daemonrpc.Starting && wanted:
		return client, nil
	case info.State == daemonrpc.Starting && st.Restarts > 0:
		_ = client.Client.Stop(ctx, defaultGrace) // its lock shows when it has ended
	case info.State == daemonrpc.Running:
		// Ask only once: a guest that restarts between two questions would seem to have run all the time.
		if !answers(ctx, client) {
			break
		}
		if wanted {
			return client, nil
		}
		// The guest may have restarted since the state was read, and then answered. In that case try again.
		if now, readErr := p.readState(name); readErr == nil && now.Restarts == st.Restarts {
			err = ErrRunning
		}
	case info.State == daemonrpc.Starting, info.State == daemonrpc.Paused:
		err = ErrRunning
	}
	if !errors.Is(err, ErrRunning) {
		err = nil
	}
	_ = client.Close()
	return nil, err
}

// hasRestarted reports whether a guest has just restarted itself, so that the caller of Start may have seen it end.
func hasRestarted(s state) bool { return s.Restarts > 0 && time.Since(s.Restarted) < leavingTime }

// keeps reports whether the VM was last started with this configuration.
func keeps(p paths, c Config) bool {
	kept, err := readConfig(p.config())
	return err == nil && sameConfig(kept, c)
}

// answers returns false when the guest refuses because it has just ended or is about to. A guest that does not answer counts as one that
// does.
func answers(ctx context.Context, client *Client) bool {
	_, err := client.Stats(ctx)
	return err == nil || ctx.Err() != nil
}

// onlyVersion returns err when waiting cannot help, because the daemon has another protocol version.
func onlyVersion(err error) error {
	var version *VersionError
	if errors.As(err, &version) {
		return err
	}
	return nil
}

func sameConfig(a, b Config) bool {
	one, err := json.Marshal(a)
	other, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(one, other)
}

// launch writes what the daemon starts from, and starts it. A new VM's daemon is started before that: its process begins meanwhile, and then waits
// for the lock. Another one's is started after it, since it would start the VM with its former configuration if this process were killed.
// complete, unless nil, waits for what the VM continues from, and completes the configuration.
func (s Store) launch(name string, p paths, c Config, r *Restoration, complete func(*Config) error) (*child, error) {
	alive, unlock, err := probe(p)
	if err != nil {
		return nil, err
	}
	if alive {
		return nil, ErrRunning
	}
	cleanUp(p)
	var d *child
	if _, missing := os.Lstat(p.config()); errors.Is(missing, fs.ErrNotExist) {
		d, err = s.spawn(name, p, c)
	}
	if err == nil {
		err = p.prepare(c, r, complete)
	}
	err = errors.Join(err, unlock())
	if err == nil && d == nil {
		d, err = s.spawn(name, p, c)
	}
	if err != nil && d != nil {
		err = errors.Join(err, d.end())
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// prepare writes from what the VM continues, and then the configuration, whose name is not durable yet.
func (p paths) prepare(c Config, r *Restoration, complete func(*Config) error) (err error) {
	switch {
	case r != nil:
		err = p.writeRestoration(*r)
	case c.Cold:
		err = p.giveUpMemory()
	}
	if err == nil && complete != nil {
		err = complete(&c)
	}
	c.ChangedFrom = nil // it starts with all of this
	if err != nil || keeps(p, c) {
		return err
	}
	return nameConfig(p.config(), c)
}

// child is a daemon that this process has started.
type child struct {
	store Store
	name  string
	paths paths
	pid   int
	kill  func() error
	over  chan struct{} // closed when the process has ended, after how is set
	how   string
}

// spawn starts the process, detached: it survives this one, its terminal and its session. It inherits its log and the environment
// variables of handedDown and those of its secrets; all descriptors of this process are marked as closed on exec.
func (s Store) spawn(name string, p paths, config Config) (*child, error) {
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
	command.Dir = s.Dir // not the VM's, because Windows cannot remove a working directory
	command.Env = s.environment(config)
	detach(command)
	keepToThisProcess()
	if s.Owner != nil {
		command.Stdin = s.Owner.read
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	d := &child{store: s, name: name, paths: p, pid: command.Process.Pid, kill: command.Process.Kill, over: make(chan struct{})}
	go func() {
		defer close(d.over)
		_ = command.Wait()
		d.how = command.ProcessState.String()
		if s.Owner != nil {
			s.Owner.end(d.how)
		}
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
	args := []string{program, "daemon", "run", "--dir", s.Dir, name}
	if s.Owner != nil {
		args = append(args, ownedFlag)
	}
	return args, nil
}

// await polls for the state file and connects. It returns at once when the daemon dies.
func (d *child) await(ctx context.Context) (*Client, error) {
	for began := time.Now(); time.Since(began) < listenTime; {
		select {
		case <-d.over:
			return nil, d.died()
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), d.end())
		case <-time.After(pollPause(time.Since(began))):
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
		client, err := d.dial(ctx, st)
		if errors.Is(err, errSlow) {
			continue
		}
		if err == nil {
			client.child = d
			d.store.tendActivator(d.paths)
		}
		return client, err
	}
	return nil, errors.Join(fmt.Errorf("daemon (pid %d) has not answered within %v%s", d.pid,
		listenTime, d.tail()), d.end())
}

// pollPause is the pause before the next look at a daemon that has been starting for a while.
func pollPause(since time.Duration) time.Duration { return min(max(since/8, firstPoll), pollTime) }

// answerTime is how long one attempt of dial takes.
const answerTime = 5 * time.Second

// errSlow is the error of dial when the daemon lives, and has not answered in time.
var errSlow = errors.New("the daemon has not answered in time")

// dial connects to the daemon, or returns why it has died.
func (d *child) dial(ctx context.Context, st state) (*Client, error) {
	once, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	client, err := d.store.dial(once, d.name, d.paths, st)
	if err == nil {
		return client, nil
	}
	select {
	case <-d.over:
		return nil, d.died()
	case <-time.After(pollTime): // the daemon may have closed the connection because it ends
	}
	select {
	case <-d.over:
		return nil, d.died()
	default:
	}
	if (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)) && ctx.Err() == nil {
		return nil, errSlow
	}
	return nil, errors.Join(err, d.end())
}

// end kills a daemon that could not be used.
func (d *child) end() error {
	if err := d.kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-d.over
	return nil
}

// leave waits for a moment until a daemon whose VM could not be started has ended, so that the next command does not meet it in its end.
func (d *child) leave() {
	select {
	case <-d.over:
	case <-time.After(lockTime): // another client holds it up
	}
}

// ended returns why the connection to a daemon was lost while its VM booted.
func (d *child) ended(err error) error {
	select {
	case <-d.over:
		return fmt.Errorf("daemon (pid %d) ended while the VM booted (%s)%s", d.pid, d.how, d.tail())
	case <-time.After(goneTime): // the daemon lives, and has closed the connection
		return err
	}
}

func (d *child) died() error {
	return fmt.Errorf("daemon (pid %d) exited before IPC ready (%s)%s", d.pid, d.how, d.tail())
}

// tail returns the end of the daemon's log for an error's text.
func (d *child) tail() string {
	b, err := readTail(d.paths.log(), logTail)
	text := strings.TrimSpace(strings.ToValidUTF8(string(b), "?"))
	if err != nil || text == "" {
		return "; its log is empty"
	}
	return "; its log ends with\n  | " + strings.ReplaceAll(text, "\n", "\n  | ")
}
