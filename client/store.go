// Package client uses VMs that daemons own, such as those of agentvm start, from any process of the same user. A VM has the methods of
// vm.VM; AnyVM is the interface of both. A Store lists, starts and removes VMs.
//
// Methods may be called from several goroutines and processes. The VM runs on when its clients have gone.
package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"agentvm/images"
	"agentvm/internal/daemon"
	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/storage/snapshot"
)

// StoreOptions say where a Store is, and which program its daemons are.
type StoreOptions struct {
	// Dir is the store's directory. Default: the one that agentvm uses, AGENTVM_STORE or the user's cache directory.
	Dir string
	// Program is the agentvm program, whose processes own the VMs that are started. Default: this program, which then has to be agentvm.
	Program string
	// Version is the version that daemons report. Default: none.
	Version string
}

// Store is a store of VMs, as agentvm has one.
type Store struct {
	dir string
	vms daemon.Store
}

// OpenStore returns a store of VMs, and removes what killed processes have left in it. Its directory is made when the first VM is started.
func OpenStore(o StoreOptions) (*Store, error) {
	if o.Dir == "" {
		dir, err := images.DefaultDir()
		if err != nil {
			return nil, err
		}
		o.Dir = dir
	}
	images.RemoveAbandoned(o.Dir)
	snapshot.RemoveAbandoned(o.Dir)
	return &Store{o.Dir, o.vms("vms")}, nil
}

// vms is the store of VMs in a directory below o.Dir.
func (o StoreOptions) vms(below string) daemon.Store {
	s := daemon.Store{Dir: filepath.Join(o.Dir, below), Version: o.Version}
	if o.Program != "" {
		s.Command = []string{o.Program, "daemon", "run", "--dir", s.Dir}
		s.MountCommand = []string{o.Program, "daemon", "mount", "--dir", s.Dir}
		s.ActivatorCommand = []string{o.Program, "daemon", "activator", "--dir", s.Dir}
	}
	return s
}

// DiskImage returns the name of the image that the files of a VM belong to; empty for a VM that has none or has never run.
func (st *Store) DiskImage(name string) (images.Key, error) { return st.vms.DiskImage(name) }

// Config describes a VM that a daemon is to start.
type Config = daemon.Config

// Sidecar is a program that a daemon keeps running, and RestartPolicy says when it, or a VM, is started again.
type (
	Sidecar       = daemon.Sidecar
	RestartPolicy = daemon.RestartPolicy
)

// SidecarInfo says how a sidecar of a VM that runs is, and SidecarState is a part of it.
type (
	SidecarInfo  = daemonrpc.SidecarInfo
	SidecarState = daemonrpc.SidecarState
)

// States of sidecars.
const (
	SidecarStarting  = daemonrpc.SidecarStarting
	SidecarRunning   = daemonrpc.SidecarRunning
	SidecarWaiting   = daemonrpc.SidecarWaiting
	SidecarOver      = daemonrpc.SidecarOver
	SidecarUnwatched = daemonrpc.SidecarUnwatched
)

// SidecarsText says in a few columns how many of a VM's sidecars run, as 1/2; nothing when it has none.
func SidecarsText(list []SidecarInfo) string {
	if len(list) == 0 {
		return ""
	}
	run := 0
	for _, s := range list {
		if s.State == SidecarRunning {
			run++
		}
	}
	return fmt.Sprintf("%d/%d", run, len(list))
}

// Restart policies.
const (
	RestartAlways    = daemon.Always
	RestartOnFailure = daemon.OnFailure
	RestartNever     = daemon.Never
)

// Duration is a time.Duration that a Config writes as "90s".
type Duration = daemon.Duration

// Status describes a VM of a store, and State is a part of it.
type (
	Status = daemon.Status
	State  = daemon.State
)

// States of a VM.
const (
	Starting    = daemon.Starting // its daemon does not listen yet
	Booting     = daemon.Booting
	Restarting  = daemon.Restarting // its guest has restarted itself
	Paused      = daemon.Paused
	Running     = daemon.Running
	Stopping    = daemon.Stopping
	Failed      = daemon.Failed // it ended by itself, or could not be started: see Status.Error
	Stopped     = daemon.Stopped
	Hibernated  = daemon.Hibernated  // it is saved, and continues when a client connects
	Crashed     = daemon.Crashed     // its daemon was killed
	Unreachable = daemon.Unreachable // its daemon lives and does not answer: see Status.Error
)

// Progress receives lines about a start. It may be nil.
type Progress = daemon.Progress

// Restoration says that a VM continues from a snapshot at its first start.
type Restoration = daemon.Restoration

// Identity distinguishes a VM from earlier and later ones of the same name.
type Identity = daemon.Identity

// StopResult says how a VM was stopped.
type StopResult = daemon.StopResult

// Results of Store.Stop. StoppedKill is a VM whose daemon did not answer, or did not stop: what its guest had not written back is lost.
const (
	WasStopped   = daemon.WasStopped
	StoppedByAsk = daemon.StoppedByAsk
	StoppedKill  = daemon.StoppedKill
)

// Errors for errors.Is.
var (
	ErrNotFound   = daemon.ErrNotFound
	ErrNotRunning = daemon.ErrNotRunning
	ErrRunning    = daemon.ErrRunning
	ErrExists     = daemon.ErrExists
	// ErrClosed is the error of calls on a VM that has ended, or whose connection has been closed.
	ErrClosed = daemonrpc.ErrClosed
	// ErrOpenNetwork is returned for a snapshot whose VM had a network without limits: see Started.Config.
	ErrOpenNetwork = daemon.ErrOpenNetwork
)

// CheckName returns an error unless a VM can have this name: 1 to 63 lower-case letters, digits, "_", "." and "-", the first one a letter or
// a digit.
func CheckName(name string) error { return daemon.CheckName(name) }

// Started is what a snapshot's file says about how its VM was started.
type Started = daemon.Started

// StartedAs reads it; the zero value when there is none.
func StartedAs(m snapshot.Meta) (Started, error) { return daemon.StartedAs(m) }

// Open connects to a VM of the store in dir, "" for agentvm's own, that runs or boots. See Store.Open.
func Open(ctx context.Context, dir, name string) (*VM, error) {
	s, err := OpenStore(StoreOptions{Dir: dir})
	if err != nil {
		return nil, err
	}
	return s.Open(ctx, name)
}

const (
	// settleTime is how long Open waits for a VM whose daemon is just beginning or ending.
	settleTime  = 15 * time.Second
	settleRetry = 50 * time.Millisecond
)

// Open connects to a VM that runs or boots; calls on a VM that boots wait for its boot. For a VM whose daemon is just beginning or ending it
// waits up to 15 s. ctx bounds the connecting only. Without a daemon the error is ErrNotFound or ErrNotRunning.
func (s *Store) Open(ctx context.Context, name string) (*VM, error) {
	for deadline := time.Now().Add(settleTime); ; {
		c, err := s.vms.Connect(ctx, name)
		if err == nil {
			return s.attach(c), nil
		}
		if !errors.Is(err, ErrNotRunning) || time.Now().After(deadline) || !s.hasDaemon(ctx, name) {
			return nil, err
		}
		select {
		case <-time.After(settleRetry):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// hasDaemon reports whether a daemon lives although it cannot be reached yet, or can no longer be reached.
func (s *Store) hasDaemon(ctx context.Context, name string) bool {
	status, err := s.Status(ctx, name)
	if err != nil {
		return false
	}
	switch status.State {
	case Starting, Booting, Restarting, Stopping, Running, Paused:
		return true
	}
	return false
}

// Start starts a VM under a daemon of its own and returns when it runs. A VM of that name that has run before keeps its files; c replaces its
// configuration. The error is ErrRunning when it runs already. When ctx ends meanwhile the VM is stopped again.
func (s *Store) Start(ctx context.Context, name string, c Config, progress Progress) (*VM, error) {
	return s.started(s.vms.Start(ctx, name, c, progress))
}

// Create is Start for a VM that is not there yet. When there is a VM of that name the error is ErrExists. After any other failure no VM of that name
// exists.
func (s *Store) Create(ctx context.Context, name string, c Config, progress Progress) (*VM, error) {
	return s.started(s.vms.Create(ctx, name, c, progress))
}

// Launch is Start that returns when the daemon boots the VM.
func (s *Store) Launch(ctx context.Context, name string, c Config) (*VM, error) {
	return s.started(s.vms.Launch(ctx, name, c))
}

// Restore makes a VM that continues from a snapshot, and returns when it runs. The snapshot determines DiskSize, and Image, Memory and
// Network.Disabled where c does not set them. When there is a VM of that name the error is ErrExists. After any other failure no VM of that
// name exists.
func (s *Store) Restore(ctx context.Context, name string, c Config, r Restoration, progress Progress) (*VM, error) {
	return s.started(s.vms.Restore(ctx, name, c, r, progress))
}

func (s *Store) started(c *daemon.Client, err error) (*VM, error) {
	if err != nil {
		return nil, err
	}
	return s.attach(c), nil
}

// Stop stops a VM, with up to grace for its programs to end, and returns when its daemon's process has ended. A daemon that does not answer or
// does not stop is killed. It is not an error when the VM does not run; when there is none the error is ErrNotFound.
func (s *Store) Stop(ctx context.Context, name string, grace time.Duration) (StopResult, error) {
	return s.vms.Stop(ctx, name, grace)
}

// Remove deletes a VM that does not run, and everything it has kept. The error is ErrRunning when it runs.
func (s *Store) Remove(ctx context.Context, name string) error { return s.vms.Remove(ctx, name) }

// Rename gives a VM that does not run another name. Its links to previews end.
func (s *Store) Rename(ctx context.Context, name, to string) error {
	return s.vms.Rename(ctx, name, to)
}

// Event is something that has happened to a VM of a store, EventKind what, and EventsOptions say which are wanted.
type (
	Event         = daemon.Event
	EventKind     = daemon.EventKind
	EventsOptions = daemon.EventsOptions
)

// Kinds of events.
const (
	EventStarting     = daemon.EventStarting
	EventRunning      = daemon.EventRunning
	EventRestarting   = daemon.EventRestarting
	EventPaused       = daemon.EventPaused
	EventResumed      = daemon.EventResumed
	EventStopping     = daemon.EventStopping
	EventStopped      = daemon.EventStopped
	EventHibernated   = daemon.EventHibernated
	EventFailed       = daemon.EventFailed
	EventCrashed      = daemon.EventCrashed
	EventRemoved      = daemon.EventRemoved
	EventPolicy       = daemon.EventPolicy
	EventPortOpened   = daemon.EventPortOpened
	EventPortClosed   = daemon.EventPortClosed
	EventMountAdded   = daemon.EventMountAdded
	EventMountRemoved = daemon.EventMountRemoved
	EventJobStarted   = daemon.EventJobStarted
	EventJobEnded     = daemon.EventJobEnded
	EventDenied       = daemon.EventDenied
)

// Events calls use with each event of the store's VMs, until it returns an error. Earlier events come first, in order; those that follow come
// within half a second. It reads files and connects to no daemon, so that it keeps no VM from being idle.
func (s *Store) Events(ctx context.Context, o EventsOptions, use func(Event) error) error {
	return s.vms.Events(ctx, o, use)
}

// List describes every VM of the store, sorted by name.
func (s *Store) List(ctx context.Context) ([]Status, error) { return s.vms.List(ctx) }

// Status describes one VM. When there is none of that name the error is ErrNotFound.
func (s *Store) Status(ctx context.Context, name string) (Status, error) {
	return s.vms.Status(ctx, name)
}

// Names returns the names of the store's VMs, sorted. It asks no daemon.
func (s *Store) Names() (list []string) {
	entries, _ := os.ReadDir(s.vms.Dir)
	for _, e := range entries {
		if s.Exists(e.Name()) == nil {
			list = append(list, e.Name())
		}
	}
	return list
}

// Exists returns nil when there is a VM of that name, ErrNotFound when there is none, and another error when it cannot be used.
func (s *Store) Exists(name string) error {
	_, err := s.vms.LogPath(name)
	return err
}

// Config returns the configuration of a VM's last start.
func (s *Store) Config(name string) (Config, error) { return s.vms.Config(name) }

// Identity returns a VM's identity. For a VM that has never run errors.Is(err, fs.ErrNotExist) holds.
func (s *Store) Identity(name string) (Identity, error) { return s.vms.Identity(name) }

// Alive reports whether a VM has a daemon. It connects to none.
func (s *Store) Alive(name string) (bool, error) { return s.vms.Alive(name) }

// Asleep reports whether a VM is hibernated. It wakes none.
func (s *Store) Asleep(name string) bool { return s.vms.Asleep(name) }

// LogPath returns the path of the log of a VM's daemon; the part before it has ".1" appended.
func (s *Store) LogPath(name string) (string, error) { return s.vms.LogPath(name) }

// NetworkLogPath returns the path of the log of a VM's network, an egress.Event in JSON on each line; the part before it has ".1" appended.
func (s *Store) NetworkLogPath(name string) (string, error) { return s.vms.NetworkLogPath(name) }

// PreviewPath returns the path of the store of links to servers in the VMs.
func (s *Store) PreviewPath() string { return s.vms.PreviewPath() }
