package daemon

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"agentvm/internal/host/lockfile"
	"agentvm/internal/host/private"
	"agentvm/nat"
)

// The activator is the process that holds the listening sockets of a store's hibernated VMs: of their published TCP ports, and of their previews.
// A connection to one wakes the VM, whose daemon takes the sockets with all that waits in their queues. The activator itself accepts nothing,
// unless the VM cannot be woken.
//
//	daemon ── give, sockets ──► activator ◄── take, sockets ── woken daemon; or rm, rename
//	                              └─ a connection waits: Store.Connect, as any client does
//
// It is a program of its own because a daemon is confined, and cannot start one. For the same reason it is started, while there is none, by
// those who use VMs that need one: a VM that may be hibernated and has ports, or is hibernated and had some. It ends when there are none such.
//
// Only its lock shows whether it lives. What it holds is in restore.json of each VM, where also the key is that shows whose sockets they
// are: another VM's daemon cannot read it. An activator that begins after one was killed binds those ports anew.

// activatorPaths are the files of a store's activator, beside Dir.
type activatorPaths struct{ dir string }

func (s Store) activator() activatorPaths { return activatorPaths{filepath.Clean(s.Dir) + ".porter"} }

func (p activatorPaths) lock() string { return filepath.Join(p.dir, "lock") }
func (p activatorPaths) log() string  { return filepath.Join(p.dir, "log") }

// door is the folder of the socket alone, which confined daemons may read.
func (p activatorPaths) door() string   { return filepath.Join(p.dir, "door") }
func (p activatorPaths) socket() string { return filepath.Join(p.door(), "porter.sock") }

// activatorTime bounds an exchange with the activator.
const activatorTime = 2 * time.Second

// An exchange with an activator is one message each way, as in the handshake of a daemon, followed by the sockets where there are some: one byte
// with their descriptors. The activator closes the connection when it has closed its own descriptors of sockets that were taken.
type activatorRequest struct {
	Do  string `json:"do"` // give, take or ask
	VM  string `json:"vm,omitempty"`
	Key string `json:"key,omitempty"` // Restoration.Key
}

type activatorAnswer struct {
	Error string `json:"error,omitempty"`
	Count int    `json:"count,omitempty"` // of sockets that follow
}

const (
	doGive = "give" // the VM's sockets
	doTake = "take"
	doAsk  = "ask" // whether it answers
)

// askActivator does an exchange. The sockets that it returns are the caller's; those that it is given stay so.
func (s Store) askActivator(ctx context.Context, r activatorRequest, give []*os.File) ([]*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, activatorTime)
	defer cancel()
	conn, err := dialOwn(ctx, s.activator().socket())
	if err != nil {
		return nil, fmt.Errorf("ask the activator: %w", err)
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err = writeMessage(conn, r)
	if err == nil && r.Do == doGive {
		err = sendFiles(conn, give)
	}
	var answer activatorAnswer
	if err == nil {
		err = readMessage(conn, &answer)
	}
	if err == nil && answer.Error != "" {
		err = fmt.Errorf("it refused: %.200s", answer.Error)
	}
	var files []*os.File
	if err == nil && answer.Count > 0 {
		if files, err = receiveFiles(conn); err == nil {
			_, _ = conn.Read(make([]byte, 1)) // its end: the activator itself has them no more
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ask the activator: %w", err)
	}
	return files, nil
}

// heldPorts returns from where a hibernated VM continues, when an activator is to hold ports for it; otherwise nil. One that could not be woken
// is not tried again before its user does. The caller holds the lock, shared or not.
func (p paths) heldPorts() *Restoration {
	r, err := p.readRestoration()
	if err != nil || r == nil || !r.Hibernated || r.Key == "" {
		return nil
	}
	if end, err := p.readEnd(); err == nil && end.Error != "" {
		return nil
	}
	return r
}

// takeTries is how often to ask an activator that does not answer in time: without the sockets, the VM could not bind its ports.
const takeTries = 3

// takePorts takes the sockets of a hibernated VM from the activator; none when it has none, or is not there.
func (s Store) takePorts(ctx context.Context, name string, r *Restoration) []*os.File {
	if r == nil || r.Key == "" {
		return nil
	}
	for range takeTries {
		files, err := s.askActivator(ctx, activatorRequest{doTake, name, r.Key}, nil)
		if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
			return files
		}
	}
	return nil
}

// hasKey reports whether a request shows the key of a hibernated VM.
func (r *Restoration) hasKey(key string) bool {
	return r != nil && r.Hibernated && r.Key != "" && subtle.ConstantTimeCompare([]byte(r.Key), []byte(key)) == 1
}

// mayNeedActivator reports whether a VM that runs may be hibernated with ports.
func (p paths) mayNeedActivator() bool {
	config, err := readConfig(p.config())
	if err != nil || config.HibernateAfter <= 0 {
		return false
	}
	if slices.ContainsFunc(config.Network.Forwards, func(f nat.Forward) bool { return f.Protocol != "udp" }) {
		return true
	}
	identity, err := p.readIdentity()
	return err == nil && identity.PreviewPort != 0
}

// needsActivator reports whether any VM of the store needs one.
func (s Store) needsActivator() bool {
	entries, _ := os.ReadDir(s.Dir)
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		p, err := s.existing(e.Name())
		if err != nil {
			return false
		}
		alive, unlock, err := probe(p)
		if err != nil {
			return false
		}
		if alive {
			return p.mayNeedActivator()
		}
		defer func() { _ = unlock() }()
		return p.heldPorts() != nil
	})
}

// tendActivator starts an activator when there is none and this VM needs one. It does not wait for it: until it holds a VM's ports, that runs on.
func (s Store) tendActivator(p paths) {
	if passesFiles && p.mayNeedActivator() {
		_ = s.startActivator() // the VM stays awake, and its log says why
	}
}

// reviveActivator starts one anew when it was killed. It is cheap.
func (s Store) reviveActivator() {
	lock, err := lockfile.TryExisting(s.activator().lock())
	if err == nil && lock.Close() == nil {
		_ = s.startActivator()
	}
}

func (s Store) startActivator() error {
	p := s.activator()
	if err := private.MakeFolder(p.door()); err != nil {
		return err
	}
	lock, err := lockfile.TryShared(p.lock())
	if err != nil {
		return err // ErrHeld: there is one
	}
	if err := lock.Close(); err != nil {
		return err
	}
	args := s.ActivatorCommand
	if len(args) == 0 {
		if len(s.Command) > 0 {
			return errors.New("the store has no ActivatorCommand")
		}
		program, err := os.Executable()
		if err != nil {
			return err
		}
		args = []string{program, "daemon", "activator", "--dir", s.Dir}
	}
	log, err := openAppend(p.log())
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	command := exec.Command(args[0], args[1:]...)
	command.Stdout, command.Stderr = log, log
	command.Dir = "/"
	command.Env = s.environment(Config{})
	detach(command)
	keepToThisProcess()
	if err := command.Start(); err != nil {
		return fmt.Errorf("start the activator: %w", err)
	}
	go func() { _ = command.Wait() }() // it outlives most processes that start it
	return nil
}
