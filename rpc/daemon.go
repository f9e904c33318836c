package rpc

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// ErrDaemonClosed is returned by every call on a DaemonClient whose connection is closed or lost.
var ErrDaemonClosed = errors.New("connection to the daemon is closed")

// DaemonHandler is what a daemon offers its clients: the other side of ServeDaemon. Its methods are called from several
// goroutines. Their errors reach the client as *Error with the errno that errors.As finds in them, translated to Linux's
// number.
type DaemonHandler interface {
	Info() DaemonInfo
	// AwaitReady returns when the VM runs, or why it cannot. progress waits for the client; it may be called until
	// AwaitReady returns.
	AwaitReady(ctx context.Context, progress func(slog.Level, string)) error
	// StartJob starts a program. Of r, Args, Env, Dir, User, Terminal and Input count.
	StartJob(ctx context.Context, r Request, o JobOptions) (JobHandler, error)
	// Job finds a job; a *Error with ENOENT when there is none.
	Job(id string) (JobHandler, error)
	// Jobs lists all jobs, oldest first.
	Jobs() []JobInfo
	// Stop stops the VM and then the daemon; without grace at once. It returns when the VM has ended.
	Stop(ctx context.Context, grace time.Duration) error
	Stats(ctx context.Context) (Stats, error)
	// Ask answers a question in JSON by one in JSON.
	Ask(ctx context.Context, name string, json []byte) ([]byte, error)
	// Pause has the VM stand still until Resume. Either does nothing where the VM is so already.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Snapshot writes the VM into a new file and returns its description in JSON.
	Snapshot(ctx context.Context, o SnapshotOrder) (description []byte, err error)
	// Files is the guest's bulk connection, which stays the handler's: clients get its capability.
	Files(ctx context.Context) (*FilesClient, error)
	// DialLocal connects to a server in the VM. A Stream that is a net.Conn tells its address. It is closed when the client has gone.
	DialLocal(ctx context.Context, host string, port uint16, purpose LocalPurpose) (Stream, error)
	// Sockets lists the guest's sockets.
	Sockets(ctx context.Context) ([]Socket, error)
}

// SnapshotOrder says where a snapshot is to be written, and what is to be in it.
type SnapshotOrder struct {
	Path    string // absolute, of the host; nothing may be there
	Comment string
	Layered bool // without what is as in the file that the VM was started from
}

// JobHandler is one client's view of a job.
type JobHandler interface {
	Info() JobInfo
	// Output waits up to wait for a byte or the end and returns at most max bytes from a cursor on.
	Output(ctx context.Context, from uint64, max int, wait time.Duration) (JobOutput, error)
	// Input takes data, which it must copy, and waits while the program does not read.
	Input(ctx context.Context, data []byte, end bool) error
	Signal(ctx context.Context, number int) error
	Kill(ctx context.Context) error
	Resize(ctx context.Context, size Size) error
	Remove() error
	// Release says that the client has dropped this view. It must not wait.
	Release()
}

// DaemonState says where a daemon's VM is.
type DaemonState uint16

// States; the schema has the same numbers.
const (
	DaemonStarting DaemonState = iota // the VM boots
	DaemonRunning
	DaemonStopping
	DaemonFailed // the VM could not be started or has ended by itself: see DaemonInfo.Error
	DaemonPaused
)

// String is the state as a word.
func (s DaemonState) String() string {
	switch s {
	case DaemonStarting:
		return "starting"
	case DaemonRunning:
		return "running"
	case DaemonStopping:
		return "stopping"
	case DaemonFailed:
		return "failed"
	case DaemonPaused:
		return "paused"
	default:
		return "unknown"
	}
}

// MarshalText is String.
func (s DaemonState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// DaemonInfo describes a daemon and its VM.
type DaemonInfo struct {
	Name    string
	Pid     int
	Version string // of the program
	Image   string
	Kernel  string // release; empty until it runs
	State   DaemonState
	Error   string // why it failed
	Started time.Time
	Memory  uint64   // bytes
	Mounts  []string // host:guest[:ro]
	Ports   []string // forwards as they are
	Policy  string   // the network's, in one line
	Labels  []string // KEY=VALUE
	Clients int      // connections that have shown the token
	Jobs    int      // that run
	Config  []byte   // JSON: what the VM was started with
}

// JobOptions say how a job lives.
type JobOptions struct {
	Durable   bool          // it lives on after the client that started it
	Input     bool          // standard input follows by Input; else it is the given first bytes alone
	Timeout   time.Duration // in steps of 1 ms; 0: none
	MaxOutput uint64        // bytes kept of a durable job's output; 0: 16 MiB
	Label     string
}

// JobInfo describes a job.
type JobInfo struct {
	ID          string
	Label       string
	Args        []string
	Started     time.Time
	Ended       time.Time   // zero while it runs
	Exit        *ExitStatus // nil while it runs, or when nobody knows
	TimedOut    bool
	Durable     bool
	Terminal    bool
	OutputBytes uint64 // written so far
	Error       string // why there is no Exit although it has ended
}

// JobStream says which of a program's streams bytes are of.
type JobStream uint8

// Streams.
const (
	StreamOut JobStream = 1
	StreamErr JobStream = 2
)

// JobChunk is output of one stream.
type JobChunk struct {
	Stream JobStream
	Data   []byte
}

// JobOutput is output from a cursor on.
type JobOutput struct {
	Chunks   []JobChunk
	Next     uint64      // cursor after the chunks
	Lost     uint64      // bytes before the first chunk that are no longer kept
	Exit     *ExitStatus // not nil: the job has ended and nothing follows Next
	TimedOut bool
}

// maxOutputBytes bounds the bytes of one answer to Output, well under maxMessage.
const maxOutputBytes = 1 << 20

// MaxInput is how many bytes one call of Input carries; more takes several.
const MaxInput = maxChunk
