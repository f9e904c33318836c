// Package sandboxd serves one VM by the runtime API of Kubernetes' agent-sandbox: processes over gRPC, files and probes over HTTP. It is a thin
// layer on client.AnyVM. The protocol knows no keys: whoever reaches the ports has the VM, and nothing of the host.
package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"agentvm/client"
	"agentvm/internal/api/live"
	"agentvm/internal/api/rpc"
	"agentvm/internal/httpserver"
	"agentvm/vm"
)

const (
	maxConns     = 256 // of each of the two ports
	maxProcesses = 64
	pingTime     = time.Minute // without a frame, after which a client of gRPC is asked whether it is there
	pongTime     = 10 * time.Second
	termTime     = 2 * time.Second // from SIGTERM to SIGKILL when the server ends
	maxLinks     = 40              // as Linux follows in one path
)

// Options configure a Server.
type Options struct {
	VM client.AnyVM
	// Root is the directory of the VM to which files and working directories belong. It is made.
	Root string
	// Metadata is what GET /v1/metadata tells. Names that sound like secrets are left out.
	Metadata map[string]string
	// Hosts are names under which clients reach the server, besides addresses and localhost.
	Hosts    []string
	Shutdown time.Duration           // that requests have to end in when the server ends
	Audit    func(httpserver.Record) // receives each request when it has been answered. nil: none
	Logger   *slog.Logger            // nil discards
}

// Server serves a VM. Its methods may be called at once.
type Server struct {
	options   Options
	root      string // without links
	began     time.Time
	stopping  atomic.Bool
	metrics   httpserver.Metrics
	processes live.Table[struct{}]
}

// New makes a server, and the root directory in the VM.
func New(ctx context.Context, o Options) (*Server, error) {
	if !path.IsAbs(o.Root) {
		return nil, fmt.Errorf("the root directory %q is no absolute path of the VM", o.Root)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{options: o, root: "/", began: time.Now()}
	s.processes.Max = maxProcesses
	if err := o.VM.Files().MkdirAll(ctx, path.Clean(o.Root), 0o755); err != nil {
		return nil, err
	}
	root, info, err := s.resolve(ctx, strings.TrimLeft(path.Clean(o.Root), "/"))
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no directory of the VM", o.Root)
	}
	s.root = root
	return s, err
}

// Serve listens at an address of the host, on two ports, and serves until ctx ends or a listener fails. Port 0 takes one that is free.
// listening is called with the addresses of both.
func (s *Server) Serve(ctx context.Context, host string, restPort, grpcPort uint16, listening func(rest, rpc net.Addr)) error {
	if _, err := netip.ParseAddr(host); err != nil {
		return fmt.Errorf("listen at %q: want an IP address", host)
	}
	if restPort == grpcPort && restPort != 0 {
		return fmt.Errorf("port %d cannot be that of both HTTP and gRPC", restPort)
	}
	rest, err := httpserver.Listen(ctx, net.JoinHostPort(host, strconv.Itoa(int(restPort))))
	if err != nil {
		return err
	}
	rpc, err := httpserver.Listen(ctx, net.JoinHostPort(host, strconv.Itoa(int(grpcPort))))
	if err != nil {
		return errors.Join(err, rest.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var ending sync.Once
	server := httpserver.Server{MaxConns: maxConns, Grace: s.options.Shutdown, Logger: s.options.Logger, Ending: func(grace context.Context) {
		ending.Do(func() { // of both: the second waits for the first
			s.stopping.Store(true)
			s.endProcesses(grace)
		})
	}}
	files, processes := server, server
	files.Handler, processes.Handler = s.handler(), s.door(s.rpcHandler(), s.refuseCall)
	processes.GRPC = &http.HTTP2Config{MaxConcurrentStreams: 2 * maxProcesses, SendPingTimeout: pingTime, PingTimeout: pongTime}
	listening(rest.Addr(), rpc.Addr())
	failed := make(chan error, 2)
	for _, one := range []struct {
		server *httpserver.Server
		at     net.Listener
	}{{&files, rest}, {&processes, rpc}} {
		go func() {
			defer cancel() // the other ends, too
			failed <- one.server.Serve(ctx, one.at, func(string) {})
		}()
	}
	return errors.Join(<-failed, <-failed)
}

// refuseCall refuses a request at the port of gRPC.
func (s *Server) refuseCall(w http.ResponseWriter, r *http.Request, status int) {
	text := "a page of another origin has made this request"
	if status == http.StatusMisdirectedRequest {
		text = s.notCalled(r)
	}
	rpc.Refuse(w, r, rpc.Errorf(connect.CodePermissionDenied, "%s", text))
}

// errEscapes is that of a path that leads out of the root.
var errEscapes = fmt.Errorf("it leads out of the sandbox's directory: %w", fs.ErrPermission)

// resolve follows the links of a path below the root. What does not exist has a path, too, and an error that is fs.ErrNotExist. Between
// resolving and using it the guest may change the path: then it reaches other files of the same VM.
func (s *Server) resolve(ctx context.Context, local string) (at string, info vm.FileInfo, err error) {
	if strings.ContainsRune(local, 0) {
		return "", info, fs.ErrInvalid
	}
	if local != "" && !filepath.IsLocal(local) {
		return "", info, errEscapes
	}
	files := s.options.VM.Files()
	at = s.root
	rest := strings.Split(local, "/")
	missing := error(nil)
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		at = path.Join(at, name)
		if name == ".." || missing != nil {
			continue
		}
		found, err := files.Lstat(ctx, at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = err
		case err != nil:
			return "", info, err
		case found.Mode.Type() == fs.ModeSymlink:
			if links++; links > maxLinks {
				return "", info, fmt.Errorf("%s: more than %d links: %w", at, maxLinks, fs.ErrPermission)
			}
			rest = append(strings.Split(found.Target, "/"), rest...)
			if at = path.Dir(at); path.IsAbs(found.Target) {
				at = "/"
			}
		}
	}
	if at != s.root && !strings.HasPrefix(at, strings.TrimSuffix(s.root, "/")+"/") {
		return "", info, errEscapes
	}
	if missing != nil {
		return at, info, missing
	}
	info, err = files.Lstat(ctx, at)
	return at, info, err
}
