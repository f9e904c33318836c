// Package mcp serves VMs to agents by the Model Context Protocol: ten tools that are thin layers on client.AnyVM, over standard streams or HTTP.
//
// No tool belongs to a session of the protocol, whose newest revision has none: each names its VM, or means the default one. A server uses the
// default VM and those whose names begin with its name and a hyphen, which its fork and snapshot tools make; other VMs of the user do not exist
// for it. What a guest reports, and the length of what is returned, is bounded: see maxOutput. The package holds no state but calls that run
// and the key that seals questions to the user.
package mcp

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"agentvm/client"
	"agentvm/internal/httpserver"
)

// VM is a connection to a VM. Close ends the connection, not the VM.
type VM interface {
	client.AnyVM
	io.Closer
}

// Snapshot describes a snapshot of a VM.
type Snapshot struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Comment string    `json:"comment,omitempty"`
	Bytes   int64     `json:"bytes" jsonschema:"what its file takes on the host"`
}

// VMs has the VMs and snapshots that the tools use, by their whole names. Methods are called from several goroutines.
type VMs interface {
	// Open connects to a VM. One that does not run is started, and the default VM is made when there is none. report receives lines about a start.
	Open(ctx context.Context, name string, report func(string)) (VM, error)
	// Names lists the VMs, also those that do not run.
	Names(ctx context.Context) ([]string, error)
	// Fork makes VMs that continue from where a running one is.
	Fork(ctx context.Context, name string, forks []string, keepPrograms bool) error
	// Remove stops a VM and deletes it.
	Remove(ctx context.Context, name string) error

	Snapshots(ctx context.Context) ([]Snapshot, error)
	Snapshot(ctx context.Context, name, snapshot, comment string) error
	// Restore makes a VM that continues from a snapshot. It may reach no more than the default VM may now.
	Restore(ctx context.Context, snapshot, name string) error
	RemoveSnapshot(ctx context.Context, snapshot string) error
}

// Config configures a Server.
type Config struct {
	VMs     VMs
	Default string // name of the default VM
	Version string // of this program
	// Platform is the VM's, as linux/arm64; empty while it is not known.
	Platform string
	// Dir is where commands run that name no directory. Default: the image's.
	Dir string
	// Instructions are added to what clients learn about the server: what is mounted, for example.
	Instructions string
	// ChangesHost says that the VM can change files of the host, so that clients may want to ask their user.
	ChangesHost bool
	Audit       func(httpserver.Record) // receives each request over HTTP when it has been answered. nil: none
	Logger      *slog.Logger            // nil discards
}

// Server serves the tools to any number of clients at once. Close it after Run and the handler of HTTP have returned.
type Server struct {
	config Config
	sdk    *sdk.Server
	key    [32]byte      // seals questions to the user
	policy chan struct{} // holds one value while no call changes a policy

	metrics httpserver.Metrics // of HTTP

	ctx context.Context // ends with Close, or with the client of Run
	end context.CancelFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // calls, and what they have left behind; nothing is added once closed is set
}

// New makes a server.
func New(c Config) *Server {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{config: c, policy: make(chan struct{}, 1)}
	s.policy <- struct{}{}
	rand.Read(s.key[:])
	s.ctx, s.end = context.WithCancel(context.Background())
	s.sdk = sdk.NewServer(&sdk.Implementation{Name: "agentvm", Title: "agentvm: Linux VMs", Version: cmp.Or(c.Version, "unknown")}, &sdk.ServerOptions{
		Instructions: s.instructions(), Logger: c.Logger, Capabilities: &sdk.ServerCapabilities{},
	})
	s.addTools()
	return s
}

// Close cancels calls, and ends what they have left behind: input that a program has not read yet. It returns when what cancelled calls have run
// is killed.
func (s *Server) Close() error {
	s.end()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// begin adds to what Close waits for, unless the server is closed.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

// Run serves one client, over lines of JSON, until r ends or ctx does. All calls are cancelled then.
func (s *Server) Run(ctx context.Context, r io.ReadCloser, w io.WriteCloser) error {
	return s.sdk.Run(ctx, &sdk.IOTransport{Reader: &ending{r, s.end}, Writer: w})
}

// ending calls end when a reader ends: the protocol's own code waits for calls then.
type ending struct {
	io.ReadCloser
	end func()
}

func (e *ending) Read(b []byte) (int, error) {
	n, err := e.ReadCloser.Read(b)
	if err != nil {
		e.end()
	}
	return n, err
}

func (s *Server) instructions() string {
	processor := cmp.Or(s.config.Platform, "uname -m says for which processor")
	text := fmt.Sprintf(`These tools run commands, edit files and start servers in a Linux VM (%[2]s) that is isolated from the user's computer. The VM is
called %[1]s; it starts when a tool first needs it and keeps its files. To use a fork or a restored snapshot instead, pass its name in the argument vm:
they are called %[1]s-NAME, and NAME alone works too. Commands that exec left running keep running: see process. Network access is limited: net
explains what was denied, and can ask the user for more.`, s.config.Default, processor)
	if s.config.Instructions != "" {
		text += "\n" + s.config.Instructions
	}
	return text
}

// name returns the whole name of a VM or a snapshot that a tool's argument means. It is always in the server's reach.
func (s *Server) name(given string) string {
	if given == "" || given == s.config.Default || strings.HasPrefix(given, s.config.Default+"-") {
		return cmp.Or(given, s.config.Default)
	}
	return s.config.Default + "-" + given
}

// own says whether a VM or a snapshot is one that tools may use.
func (s *Server) own(name string) bool { return s.name(name) == name }

// open connects to the VM that a tool's argument means. The client learns how a start goes.
func (s *Server) open(ctx context.Context, req *sdk.CallToolRequest, given string) (VM, string, error) {
	name := s.name(given)
	v, err := s.config.VMs.Open(ctx, name, func(text string) { s.progress(ctx, req, 0, name+": "+text) })
	return v, name, err
}

// progress reports how a call goes, if the client wants to know.
func (s *Server) progress(ctx context.Context, req *sdk.CallToolRequest, done float64, text string) {
	if token := req.Params.GetProgressToken(); token != nil {
		_ = req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: done, Message: text})
	}
}

// hints are what a tool's annotations say. They are all set, because clients take a missing one for the worst.
type hints struct {
	readOnly, idempotent bool
	destructive          bool // it may change or remove what is the user's, not only the VM's
}

// add adds a tool. Every argument called action gets the list of actions.
func add[In, Out any](s *Server, name, title, description string, h hints, actions []any, handler sdk.ToolHandlerFor[In, Out]) {
	input, err := jsonschema.For[In](nil)
	if err != nil {
		panic(err) // the types are ours
	}
	if property := input.Properties["action"]; property != nil {
		property.Enum = actions
	}
	world := false
	sdk.AddTool(s.sdk, &sdk.Tool{
		Name: name, Description: description, InputSchema: input,
		Annotations: &sdk.ToolAnnotations{
			Title: title, ReadOnlyHint: h.readOnly, IdempotentHint: h.idempotent || h.readOnly, DestructiveHint: &h.destructive, OpenWorldHint: &world,
		},
	}, func(ctx context.Context, req *sdk.CallToolRequest, in In) (result *sdk.CallToolResult, out Out, err error) {
		if !s.begin() {
			return nil, out, errClosed
		}
		defer s.running.Done()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(s.ctx, func() { cancel(errClosed) })()
		return handler(ctx, req, in)
	})
}

// errClosed is the error of calls while the server ends.
var errClosed = errors.New("the server ends")

func (s *Server) addTools() {
	host := s.config.ChangesHost
	add(s, "exec", "Run a command in the VM", `Runs a shell command with /bin/sh -c in the VM and returns its exit code and output. Each call starts a new shell:
cd, export and shell variables do not carry over to the next call. Use cwd and env, or join commands with &&. If a command is still running after
yield_seconds, or if background is set, the result has running = true and a process id, and the command keeps running: use the process tool to follow
it. Start servers with background instead of & or nohup. If the output is too long, you get its beginning and end, and omitted gives the range that
process can read.`, hints{destructive: host}, nil, s.exec)
	add(s, "process", "Manage running commands", `Lists the commands that exec left running or whose output is kept, reads their output from a byte offset and can wait for
more, writes to the standard input of an interactive command, or kills a command.`, hints{destructive: host}, []any{"list", "read", "write", "kill"}, s.process)
	add(s, "read_file", "Read a file in the VM", `Reads a text file in the VM, starting at a line or a byte offset, up to max_output bytes. If there is more, next_offset is where
to continue. Set base64 to read a binary file.`, hints{readOnly: true}, nil, s.readFile)
	add(s, "write_file", "Write a file in the VM", `Creates or overwrites a file in the VM, and creates missing parent directories. The file is replaced atomically.`,
		hints{idempotent: true, destructive: host}, nil, s.writeFile)
	add(s, "edit_file", "Edit a file in the VM", `Replaces old_string with new_string in a file in the VM. old_string must occur exactly once unless replace_all is set.`,
		hints{destructive: host}, nil, s.editFile)
	add(s, "list_dir", "List a directory in the VM", `Lists the entries of a directory in the VM with their types and sizes, sorted by name.`, hints{readOnly: true}, nil, s.listDir)
	add(s, "net", "Network policy of the VM", `Shows what the VM may reach on the network (policy), explains whether and why a host can be reached (explain), and lists what was
refused (denials). deny adds rules that block hosts and needs no approval; ask asks the user to allow hosts or to change the mode. Rules have the
form HOST[:PORTS[/PROTOCOL]], for example pypi.org:443, *.example.org or 192.0.2.0/24.`, hints{}, []any{"policy", "explain", "denials", "deny", "ask"}, s.net)
	add(s, "snapshot", "Snapshots of the VM", `Saves the VM's memory, programs and files in a snapshot (create), lists snapshots, starts a new VM from one (restore), or deletes one
(remove).`, hints{}, []any{"create", "list", "restore", "remove"}, s.snapshot)
	add(s, "fork", "Copies of the VM", `Makes running copies of a VM, with its memory and files, in which you can try something without changing the original (create). Pass a
copy's name as the argument vm of any tool. Also lists VMs, and deletes copies that are no longer needed (remove).`, hints{}, []any{"create", "list", "remove"}, s.fork)
	add(s, "ports", "Servers in the VM", `Lists the servers that listen in the VM, and forwards a free port on the user's computer (127.0.0.1 only) to one of them.`,
		hints{}, []any{"list", "forward"}, s.ports)
}

// text is a result of one text.
func text(t string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: t}}}
}
