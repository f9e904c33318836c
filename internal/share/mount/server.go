package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"

	"agentvm/internal/host/budget"
	"agentvm/internal/host/hostpath"
)

const (
	// DefaultMaxNodes is the number of names that a session may know; the guest's kernel keeps one for each name in its cache.
	DefaultMaxNodes = 1 << 20
	// DefaultMaxOpen is the number of files and directories a session may hold open on the host.
	DefaultMaxOpen = 4096
)

// Config describes one share.
type Config struct {
	// Dir is the host directory. It must exist when NewServer is called.
	Dir string
	// Place is the directory when it is open already; NewServer does not keep it. Default: what Dir means now.
	Place *hostpath.Place
	// ReadOnly refuses every request that would change something, with EROFS.
	ReadOnly bool
	// Masks are paths below Dir that the guest does not see, as in Spec. Default: none.
	Masks []string
	// Covered are paths below Dir where other mounts are. The guest sees an empty directory there that it cannot change, and so cannot put
	// anything else, as a link, at a name that another mount's path leads through. Default: none.
	Covered []string
	// Protected are paths below Dir that the guest cannot change, make, remove or replace, EROFS, such as DefaultProtected. With any, neither
	// can it change what package protect lists, and configuration and hooks of git's repositories, at any depth, or make one within one that is
	// there. Unprotected are paths for which, with all below, this does not hold; "." is all. Default: nothing is protected.
	Protected, Unprotected []string
	// Guard is the VM's, which its mounts have in common. Default: one of this share alone.
	Guard *Guard
	// Bases lets the guest read, as an extended attribute of each file, which of the host's files it is: see Base. Default: there are no
	// extended attributes.
	Bases bool
	// UID and GID own, in the guest, what the host process's user owns on the host. Default: root.
	UID, GID uint32
	// MaxNodes limits the names that a session knows (ENFILE beyond it). Default: DefaultMaxNodes.
	MaxNodes int
	// MaxOpen limits the files a session holds open on the host (ENFILE beyond it). Default: DefaultMaxOpen.
	MaxOpen int
	// Descriptors is the VM's share of the files that all servers of this process may hold open for guests (ENFILE beyond it). Default: any
	// number.
	Descriptors *budget.Share
	// Watcher reports what others change on the host. Default: one of this server.
	Watcher *Watcher
	// Watches is the VM's share of the directories that Watcher may watch; what others change in the rest is seen later. Default: a session's
	// limit.
	Watches *budget.Share
	// Memory is what sessions take for names, directory listings (ENOMEM when there is not enough) and messages. nil: no limit but theirs.
	Memory *budget.Budget
	// Logger gets refused sessions and internal errors, nothing per request. Nil discards.
	Logger *slog.Logger
}

// Server exports one directory. It owns no goroutines outside Serve.
type Server struct {
	config     Config
	log        *slog.Logger
	root       *os.Root
	masks      *masks
	protection *protection // nil: nothing is protected
	dir        *os.File    // the root again, for calls that want a descriptor
	rootDev    uint64
	user       int   // of this process; -1 where files have no numbers of users
	escapes    error // what os.Root says of a path that would leave it

	// firstNumber returns from where on a session numbers its nodes and open files. It is a random number: a guest that was restored
	// may continue with the numbers of a session of before, which must mean no other file.
	firstNumber func() uint64

	mu       sync.Mutex
	closed   bool
	sessions map[*session]struct{}
	active   sync.WaitGroup
}

// ErrClosed is returned by Serve after Close.
var ErrClosed = errors.New("mount: server closed")

// NewServer opens the directory. The Server must be closed.
func NewServer(config Config) (*Server, error) {
	place := config.Place
	config.Place = nil
	if place == nil {
		var err error
		if place, err = OpenDir(config.Dir, hostpath.Identity{}); err != nil {
			return nil, err
		}
		defer place.Close()
	}
	hidden, err := newMasks(place.Real, config.Masks, config.Covered)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", config.Dir, err)
	}
	protected, err := newProtection(config, place)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", config.Dir, err)
	}
	root, err := place.Root()
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", config.Dir, err)
	}
	s := &Server{config: withDefaults(config), root: root, masks: hidden, protection: protected, user: os.Geteuid(), sessions: make(map[*session]struct{})}
	s.firstNumber = func() uint64 { return 1<<32 + rand.Uint64N(1<<62) }
	s.log = s.config.Logger
	if s.dir, err = root.Open("."); err != nil {
		root.Close()
		return nil, fmt.Errorf("mount %s: %w", config.Dir, err)
	}
	if info, err := s.dir.Stat(); err == nil {
		s.rootDev = hostStat(info, ".").Device
	}
	_, err = root.Lstat("..")
	s.escapes = errors.Unwrap(err)
	return s, nil
}

// OpenDir opens the directory of a mount: the one of an identity that is of dir, or what dir means now. It must be closed.
func OpenDir(dir string, was hostpath.Identity) (*hostpath.Place, error) {
	if dir == "" {
		return nil, errors.New("mount: no host directory given")
	}
	place, err := hostpath.Open(dir, was)
	switch {
	case errors.As(err, new(*hostpath.ChangedError)):
		return nil, fmt.Errorf("mount %s: %w", dir, err)
	case errors.Is(err, os.ErrNotExist):
		return nil, &dirError{dir, "the host directory does not exist", os.ErrNotExist}
	case err != nil:
		return nil, fmt.Errorf("mount %s: %w", dir, err)
	case !place.IsDir():
		place.Close()
		return nil, &dirError{dir, "not a directory", syscall.ENOTDIR}
	}
	return place, nil
}

// dirError says in its own words what the system's error beneath it says again.
type dirError struct {
	dir, what string
	err       error
}

func (e *dirError) Error() string { return "mount " + e.dir + ": " + e.what }
func (e *dirError) Unwrap() error { return e.err }

func withDefaults(c Config) Config {
	if c.MaxNodes <= 0 {
		c.MaxNodes = DefaultMaxNodes
	}
	if c.MaxOpen <= 0 {
		c.MaxOpen = DefaultMaxOpen
	}
	if c.Watcher == nil {
		c.Watcher = new(Watcher)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Serve answers the messages of one connection until it ends, and then closes it. It returns nil when the guest's
// side ended, ctx's error when ctx ended, ErrClosed after Close, and otherwise why the session was given up: the connection
// failed or the guest broke the framing. Several connections may be served at once.
func (s *Server) Serve(ctx context.Context, conn io.ReadWriteCloser) error {
	c := newSession(s, conn)
	if !s.register(c) {
		conn.Close()
		return ErrClosed
	}
	defer s.unregister(c)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	err := c.run()
	conn.Close()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case s.isClosed():
		return ErrClosed
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe):
		return nil
	}
	s.log.Warn("mount: session given up", "dir", s.config.Dir, "error", err)
	return fmt.Errorf("mount %s: %w", s.config.Dir, err)
}

// Close ends all sessions, waits for their Serve calls and closes the directory.
func (s *Server) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	for c := range s.sessions {
		c.conn.Close()
	}
	s.mu.Unlock()
	s.active.Wait()
	if again {
		return nil
	}
	return errors.Join(s.dir.Close(), s.root.Close(), s.protection.close())
}

// register adds a session unless the server is closed, so that Close waits for every session that began.
func (s *Server) register(c *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.sessions[c] = struct{}{}
	s.active.Add(1)
	return true
}

func (s *Server) unregister(c *session) {
	s.mu.Lock()
	delete(s.sessions, c)
	s.mu.Unlock()
	s.active.Done()
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}
