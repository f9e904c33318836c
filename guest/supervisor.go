//go:build linux

package guest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"agentvm/guest/files"
	"agentvm/rpc"
)

// maxPrograms bounds what runs at once for the host; the programs' own children do not count.
const maxPrograms = 512

// Supervisor runs programs for the host. It implements rpc.Handler.
type Supervisor struct {
	reaper *reaper
	groups *groups
	users  accounts
	null   int // /dev/null, shared by programs without input
	tasks  sync.WaitGroup
	files  outputs
	// denials is the file that ReportDenials writes.
	denials denials
	locals  locals // connections and listeners on the loopback interface that are the host's
	// starting is held by Start, for all of it; it guards the four below.
	starting    sync.Mutex
	shares      shares
	forwards    forwards // sockets
	card        *card    // configured; nil: none is
	confinement confinement
	// whole says that this is the machine's first process, and that what belongs to the whole machine is its to change.
	whole bool
	upper upper // of the root, in the machine's first process
	late  lateRoot
	// archive serves files; nil where there is no bulk port.
	archive *files.Service

	mu       sync.Mutex
	closed   bool
	env      []string // of Start
	programs map[*program]struct{}
	shells   int
	log      func(slog.Level, string)
	// disconnect ends the renewal of the network's lease.
	disconnect func()
	// stopHooks ends the programs that announce has started.
	stopHooks func()
}

// New returns a supervisor for this process. Close frees it.
func New() (*Supervisor, error) {
	null, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/null", Err: err}
	}
	return &Supervisor{
		reaper: newReaper(), groups: newGroups(groupRoot), null: null,
		users:    accounts{passwd: "/etc/passwd", group: "/etc/group"},
		files:    outputs{open: make(map[*os.File]struct{})},
		programs: make(map[*program]struct{}), disconnect: func() {}, stopHooks: func() {},
		denials: denials{dir: runtimeDir}, whole: os.Getpid() == 1,
	}, nil
}

// Close kills every program and waits until nothing of it is left.
func (s *Supervisor) Close() error {
	s.mu.Lock()
	for p := range s.programs {
		p.Release()
	}
	s.closed = true
	s.disconnect()
	s.stopHooks()
	s.mu.Unlock()
	s.forwards.close()
	s.locals.reset()
	s.reaper.close()
	s.tasks.Wait()
	s.files.close()
	s.groups.close()
	return syscall.Close(s.null)
}

// Exec runs a program; see rpc.Handler.
func (s *Supervisor) Exec(ctx context.Context, r rpc.Request) (rpc.Program, rpc.Delivery, error) {
	if len(r.Args) == 0 || r.Args[0] == "" {
		return nil, rpc.Delivery{}, &rpc.Error{Kind: rpc.KindInvalid, Errno: int32(syscall.EINVAL), Message: "exec: no program given"}
	}
	u, err := s.users.find(r.User)
	if err != nil {
		return nil, rpc.Delivery{}, err
	}
	p := &program{s: s, job: newJob(&s.files), exited: make(chan struct{})}
	if err := s.admit(p); err != nil {
		return nil, rpc.Delivery{}, err
	}
	if err := p.launch(r, u, environment(u, r.Terminal != nil, s.baseEnv(), r.Env)); err != nil {
		s.dismiss(p)
		if r.Stdin != nil {
			r.Stdin.Close()
		}
		var refused *refusal
		if errors.As(err, &refused) {
			return nil, refused.delivery(), nil
		}
		return nil, rpc.Delivery{}, err
	}
	return p.hold(ctx, r.Hold)
}

// note sends a message to the host's log. It waits until the host has it, so no lock is held and no goroutine but a
// program's own calls it.
func (s *Supervisor) note(level slog.Level, text string) {
	s.mu.Lock()
	log := s.log
	s.mu.Unlock()
	if log != nil {
		log(level, text)
	}
}

func (s *Supervisor) baseEnv() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.env
}

func (s *Supervisor) admit(p *program) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.programs) >= maxPrograms {
		return &rpc.Error{Kind: rpc.KindLimit, Errno: int32(syscall.EAGAIN), Message: "too many programs run at once in this VM (limit 512)"}
	}
	s.programs[p] = struct{}{}
	return nil
}

func (s *Supervisor) dismiss(p *program) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.programs, p)
}

// SetClock sets the wall clock.
func (s *Supervisor) SetClock(t time.Time) error {
	tv := syscall.NsecToTimeval(t.UnixNano())
	return os.NewSyscallError("set clock", syscall.Settimeofday(&tv))
}
