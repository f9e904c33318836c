package daemonrpc

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"agentvm/egress"
	"agentvm/internal/daemon/confine"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/storage/snapshot"
	"agentvm/vm"
)

// ErrClosed is returned by every call on a Client whose connection is closed or lost.
var ErrClosed = errors.New("connection to the daemon is closed")

// Handler is the daemon behind Serve. Its methods are called from several goroutines. Their errors reach the client as *Error with the
// errno that errors.As finds in them, translated to Linux's number.
type Handler interface {
	Info() Info
	// VM returns the VM, or why it does not run. A paused one is an error where its guest has to be answering.
	VM(answering bool) (VM, error)
	// AwaitReady returns nil when the VM runs, or the reason why it cannot. progress waits for the client; it may be called until
	// AwaitReady returns.
	AwaitReady(ctx context.Context, progress func(slog.Level, string)) error
	// StartJob starts a program. It uses Args, Env, Dir, User, Terminal, Input and Key of r.
	StartJob(ctx context.Context, r guestrpc.Request, o JobOptions) (JobHandler, error)
	// Job finds a job. When there is none it returns an *Error with ENOENT.
	Job(id string) (JobHandler, error)
	// Jobs lists all jobs, oldest first.
	Jobs() []vm.JobInfo
	// Stop stops the VM and then the daemon; without grace at once. It returns when the VM has ended.
	Stop(ctx context.Context, grace time.Duration) error
	// Preview serves the VM's previews, unless the daemon does already.
	Preview(ctx context.Context) (PreviewPlace, error)
	// Confinement says what confines the daemon's process.
	Confinement() []confine.Layer
	Flows(ctx context.Context) ([]vm.Flow, error)
	// Denials returns the last denials, newest last. It may wait a moment for those that are not known yet.
	Denials(ctx context.Context) ([]egress.Event, error)
	// SetPolicy returns how many flows the new policy has ended. It replaces the policy of this version; "" is any.
	SetPolicy(ctx context.Context, p egress.Policy, version string) (cut int, err error)
	// Forward opens one more port, as nat.ParseForward reads it, until the VM ends, and returns its address.
	Forward(ctx context.Context, forward string) (address string, err error)
	// Change changes settings of the VM, which runs, and of its later starts.
	Change(ctx context.Context, c Change) error
	// Mounts lists the mounts of the VM.
	Mounts(ctx context.Context) ([]MountInfo, error)
	// LendForward opens a port, as nat.ParseForward reads it, until Release or the VM's end, and returns the address at which it listens. It
	// waits while the VM boots.
	LendForward(ctx context.Context, forward string) (address string, lent LentForward, err error)
	// Pause stops the VM until Resume. Pausing a paused VM, or resuming a running one, does nothing.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Snapshot writes the VM into a new file and returns its description.
	Snapshot(ctx context.Context, o SnapshotRequest) (snapshot.Meta, error)
	// DialLocal connects to a server in the VM. When the Stream is a net.Conn, the client learns its address. It is closed when the
	// client has gone.
	DialLocal(ctx context.Context, host string, port uint16, purpose LocalPurpose) (capnprpc.Stream, error)
}

// SnapshotRequest says where a snapshot is to be written, and what is to be in it.
type SnapshotRequest struct {
	Path    string // absolute, of the host; nothing may be there
	Comment string
	Layered bool // leave out what has not changed since the file from which the VM was started
}

// Change is what is to change of a VM that runs. What is nil or empty stays.
type Change struct {
	CloseForward   string         `json:"closeForward,omitempty"`   // ADDRESS:PORT/PROTOCOL at which it listens
	IdleTimeout    *time.Duration `json:"idleTimeout,omitempty"`    // 0: none
	HibernateAfter *time.Duration `json:"hibernateAfter,omitempty"` // 0: never
	MaxLifetime    *time.Duration `json:"maxLifetime,omitempty"`    // from the daemon's start on; 0: none
	Restart        *string        `json:"restart,omitempty"`

	AddMount    string       `json:"addMount,omitempty"` // the key with which its server has offered the mount
	RemoveMount *RemoveMount `json:"removeMount,omitempty"`
}

// RemoveMount says which mount that was added is to be removed.
type RemoveMount struct {
	GuestPath string `json:"guestPath"`
	Force     bool   `json:"force,omitempty"` // also while programs in the VM use it
}

// MountInfo is a mount of a VM that runs, as vm.MountInfo.
type MountInfo struct {
	Mount    vm.Mount        `json:"mount"`
	Identity vm.PathIdentity `json:"identity,omitzero"`
	Added    bool            `json:"added,omitempty"`
	// Instructions are vm.MountInfo's.
	Instructions []vm.WrittenFile `json:"instructions,omitempty"`
	Error        string           `json:"error,omitempty"`
}

// PreviewPlace is the VM's identity for links to its previews, and the address that serves them.
type PreviewPlace struct {
	ID          string // of the VM, in the store of links
	PreviewPort uint16 // of the host's loopback interface
	Address     string // 127.0.0.1:PORT
}

// JobHandler is one client's view of a job.
type JobHandler interface {
	Info() vm.JobInfo
	// Output waits up to wait for a byte or the end and returns at most max bytes from a cursor on.
	Output(ctx context.Context, from vm.Cursor, max int, wait time.Duration) (vm.JobOutput, error)
	// Input takes data, which it must copy, and waits while the program does not read.
	Input(ctx context.Context, data []byte, end bool) error
	Signal(ctx context.Context, number int) error
	Kill(ctx context.Context) error
	Resize(ctx context.Context, size guestrpc.Size) error
	Remove() error
	// Release is called when the client has dropped this view. It must not wait.
	Release()
}

// LentForward is a client's port of the host that leads into the VM.
type LentForward interface {
	// Ended waits until the port is closed; an error when that came with the VM's end.
	Ended(ctx context.Context) error
	// Release is called when the client has dropped it. It must not wait.
	Release()
}

// State is the state of a daemon's VM.
type State uint16

// States; the schema has the same numbers.
const (
	Starting State = iota // the VM boots
	Running
	Stopping
	Failed // the VM could not be started or has ended by itself: see Info.Error
	Paused
)

// String is the state as a word.
func (s State) String() string {
	switch s {
	case Starting:
		return "starting"
	case Running:
		return "running"
	case Stopping:
		return "stopping"
	case Failed:
		return "failed"
	case Paused:
		return "paused"
	default:
		return "unknown"
	}
}

// MarshalText is String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Info describes a daemon and its VM.
type Info struct {
	Name     string
	Pid      int
	Version  string // of the program
	Image    string
	Kernel   string // release; empty until it runs
	State    State
	Error    string // why it failed
	Started  time.Time
	Memory   uint64   // bytes
	Mounts   []string // host:guest[:ro]
	Ports    []string // forwards as they are
	Policy   string   // the network's, in one line
	Labels   []string // KEY=VALUE
	Clients  int      // connections that have shown the token
	Jobs     int      // that run
	Config   []byte   // JSON: what the VM was started with
	Health   string   // of the image's HEALTHCHECK: starting, healthy or unhealthy; empty: it has none
	Platform string   // of the image, as linux/arm64; empty until it is known

	Sidecars []SidecarInfo
}

// SidecarInfo says how a sidecar is.
type SidecarInfo struct {
	Name     string       `json:"name"`
	State    SidecarState `json:"state"`
	Since    time.Time    `json:"since"`              // its state
	Restarts int          `json:"restarts,omitempty"` // since the VM's boot
	Job      string       `json:"job,omitempty"`      // its last run
	Last     string       `json:"last,omitempty"`     // how its last run that is over ended
}

// SidecarState is the state of a sidecar.
type SidecarState string

// States of sidecars.
const (
	SidecarStarting  SidecarState = "starting"
	SidecarRunning   SidecarState = "running"
	SidecarWaiting   SidecarState = "waiting"   // it has ended, and is started again after a pause
	SidecarOver      SidecarState = "over"      // it has ended, and its policy says that it stays so
	SidecarUnwatched SidecarState = "unwatched" // it ran when the VM was saved: whether it still does is not known
)

// JobOptions say how a job lives.
type JobOptions struct {
	Durable   bool          // it continues without the client that started it
	Input     bool          // calls of Input follow; otherwise standard input is the first bytes alone
	Timeout   time.Duration // in steps of 1 ms; 0: none
	MaxOutput uint64        // bytes kept of a durable job's output; 0: 16 MiB
	Label     string
	Adopt     bool   // continues with the program that had the request's Key before the VM was saved
	Received  uint64 // how many bytes of its output the client has, for Adopt
}

// maxOutputBytes bounds the bytes of one answer to Output, well under maxMessage.
const maxOutputBytes = 1 << 20

// MaxInput bounds the bytes of one call of Input; more take several calls.
const MaxInput = capnprpc.MaxChunk
