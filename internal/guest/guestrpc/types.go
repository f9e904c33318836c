package guestrpc

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"agentvm/internal/host/budget"
)

// Mount is a virtio-fs share that the guest mounts when it starts.
type Mount struct {
	Tag      string // virtio-fs mount tag
	Target   string // absolute path in the guest; created when it is missing
	ReadOnly bool
	// CopyOnWrite has what the guest changes go to a layer of its own. ReadOnly goes with it: a supervisor that does not know layers then
	// keeps the host's files too.
	CopyOnWrite bool
}

// StartParams configures the guest before anything runs in it, and again when it continues from a snapshot.
type StartParams struct {
	Time     time.Time // the guest's clock is set to it, and layers that the start begins count from it; zero: left alone
	Hostname string    // empty: left alone
	Env      []string  // KEY=VALUE, below each program's own Env
	Hosts    []string  // "ADDRESS NAME", for /etc/hosts, beside the machine's own name
	Mounts   []Mount
	Flags    StartFlags
	// Network has the guest configure its network interface before Start returns; nil: it is left alone.
	Network *NetworkParams
	// CACertificate, in PEM, is appended to the image's bundles of trusted certificates; empty: they are left alone.
	CACertificate []byte
	// UnixSockets are made in the guest; each connection to one is passed to Connect with its ID. An error of Connect
	// closes the guest's connection; the guest's programs do not see why.
	UnixSockets []UnixSocket
	Connect     Connector
	// Directories are absolute paths. What is missing of them is made, as root's; what cannot be made is logged.
	Directories []string
	// Restored is set when the machine continues from a snapshot; nil: it has just been switched on.
	Restored *Restored
	// ListenDenied are TCP ports at which the guest's programs must not listen: bind fails with EACCES, and existing listeners are
	// closed. A program that is root can undo it. At most MaxPortRanges.
	ListenDenied []PortRange
}

// StartFlags are the settings of StartParams that are on or off.
type StartFlags uint64

// Flags. A number never changes its meaning: supervisors in snapshots know it.
const (
	NoNewPrivileges StartFlags = 1 << iota // set-user-ID bits have no effect in the guest
	ReadOnlyRoot                           // the root is read-only when Start has returned
	AdoptPrograms                          // ExecParams.Key is obeyed; Start is no error where it is not
	endOfFlags

	// KnownFlags are those that a supervisor of this version obeys.
	KnownFlags = endOfFlags - 1
)

// String names the flags that are set, as NoNewPrivileges.
func (f StartFlags) String() string {
	var names []string
	for i, name := range []string{"NoNewPrivileges", "ReadOnlyRoot", "AdoptPrograms"} {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if f&^KnownFlags != 0 {
		names = append(names, fmt.Sprintf("%#x", uint64(f&^KnownFlags)))
	}
	return strings.Join(names, ", ")
}

// PortRange is the ports from First to Last, both included.
type PortRange struct {
	First, Last uint16
}

// MaxPortRanges bounds StartParams.ListenDenied.
const MaxPortRanges = 256

// NetworkParams says how the guest configures its network interface. It configures IPv6 by router advertisements (RFC 4862).
type NetworkParams struct {
	Device  string       // empty: eth0
	Address netip.Prefix // the interface's IPv4 address and its subnet; invalid: none
	Gateway netip.Addr   // IPv4, in that subnet; invalid: no default route
	MTU     int          // bytes of an IP packet; 0: left alone
	DNS     []netip.Addr // servers for resolv.conf, of which the first three are used; none: the file is left alone
	Search  []string     // search domains for resolv.conf
}

// GuestInfo is the guest's answer to Start.
type GuestInfo struct {
	Release string        // kernel release, as uname -r prints it
	Boot    time.Duration // kernel entry to this answer, by the guest's clock
	// NetworkWarning says what of StartParams.Network could not be done, in at most 1 KiB of text from the guest; empty: all was.
	// A VM without its network still runs.
	NetworkWarning string
	// DiskWarning says why the writable disk is smaller than it could be. It is bounded, or empty, as NetworkWarning is.
	DiskWarning string
	// Flags are those of StartParams that the guest obeys. A supervisor of an earlier version, in a snapshot, ignores what it does not know.
	Flags StartFlags
}

// Size is a terminal's size in character cells.
type Size struct {
	Columns, Rows uint16
}

// ExecParams describes a program to run. Nothing is added to Args: a shell is the caller's choice.
type ExecParams struct {
	// Args is the program and its arguments. A name without a slash is searched in the PATH of the environment.
	Args []string
	// Env holds KEY=VALUE and wins over StartParams.Env, which wins over PATH, HOME, USER, LOGNAME, SHELL, LANG and TERM
	// as a login would set them.
	Env []string
	// Dir is the working directory; empty: the user's home.
	Dir string
	// User is "name", "uid", "name:group" or "uid:gid", looked up in the guest's files; empty: root.
	User string
	// Terminal, when not nil, gives the program a terminal of this size instead of three pipes; all output is Stdout.
	Terminal *Size
	// Stdin is read by one goroutine until it ends or the program has exited; nil: /dev/null. A Read that blocks when
	// the program exits cannot be interrupted: what it returns later is discarded.
	Stdin io.Reader
	// Stdout and Stderr receive output in order, from one goroutine; nil discards. An error of Write does not end the program: its
	// further output is discarded and Wait returns the error. A Write that blocks makes the program wait.
	Stdout, Stderr io.Writer
	// Key, when not empty, names the program for Client.Adopt in a session with the machine after it was saved: the program and its output
	// then wait, as for a slow host. No other such program may have it.
	Key string
}

// Command is a command line for Shell.Run. Stdin, Stdout and Stderr are as in ExecParams.
type Command struct {
	Line           string // shell source, of any length and number of lines
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// ExitStatus is how a program ended.
type ExitStatus struct {
	Code   int // 0-255; 127: not found, 126: found but not executable; 128+Signal after a signal
	Signal int // Linux number of the signal that ended it; 0: none
	// Cause says why the program could not be started, with Code 126 or 127; otherwise nil. Stderr has the same in a line.
	Cause error
	// ShellEnded says that the shell which ran the command is gone: exit, exec, or a signal.
	ShellEnded bool
}

// Stats is a reading of the guest's counters. Times are totals since boot.
type Stats struct {
	Uptime, User, System, Idle               time.Duration
	Load1, Load5, Load15                     float64
	MemoryTotal, MemoryFree, MemoryAvailable uint64 // bytes
	Processes                                int
	ReceivedBytes, SentBytes                 uint64 // all interfaces but loopback
	ReceivedPackets, SentPackets             uint64
}

// ClientConfig configures Dial. The zero value works.
type ClientConfig struct {
	// Logger receives the guest's and the connection's messages; nil discards.
	Logger *slog.Logger
	// Hold is how long the guest may delay its first answer to Exec because the program may end by then, so that a short program
	// costs one message each way. Default 20 ms; negative: no delay. Output is delayed by no more than this.
	Hold time.Duration
	// HelloInterval is how often the hello is repeated until the guest answers. Default 100 ms.
	HelloInterval time.Duration
	// KeepPrograms lets programs of an earlier session, if the guest is still in one, run on; their output is discarded and their
	// input ends. Otherwise they are killed.
	KeepPrograms bool
	// Memory is charged with what the guest leaves unread and unanswered. Default: not counted.
	Memory *budget.Budget
}
