//go:build linux

package guest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/files"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
)

// maxPrograms bounds the programs that run at once for the host; their own children do not count.
const maxPrograms = 512

// Supervisor runs programs for the host. It implements guestrpc.Handler.
type Supervisor struct {
	reaper *reaper
	groups *groups
	users  accounts
	null   int // /dev/null, shared by programs without input
	tasks  sync.WaitGroup
	files  outputs
	// denials is the file that ReportDenials writes.
	denials denials
	locals  locals // the host's connections and listeners on the loopback interface
	// starting is held during Start; it guards the four fields below.
	starting sync.Mutex
	shares   shares
	forwards forwards // sockets
	nic      nic
	ports    portAccess
	// isInit reports that this process is PID 1 and may change what belongs to the whole guest.
	isInit   bool
	upper    upper // of the root, when this process is PID 1
	deferred deferredRoot
	trimmer  atomic.Pointer[trimmer] // nil as long as there is no disk
	// archive serves files; nil where there is no bulk port.
	archive *files.Service

	down atomic.Bool // the machine is about to end, see shutDown

	mu       sync.Mutex
	closed   bool
	env      []string // of the last Start
	programs map[*program]struct{}
	keyed    keyed
	shells   int
	log      func(slog.Level, string)
	// stopHooks ends the programs that announceGeneration started.
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
		files:    outputs{open: make(map[*quietFile]struct{})},
		programs: make(map[*program]struct{}), keyed: keyed{programs: make(map[string]*holder)}, stopHooks: func() {},
		denials: denials{dir: runtimeDir}, isInit: os.Getpid() == 1,
	}, nil
}

// Close kills every program and waits until all goroutines have ended.
func (s *Supervisor) Close() error {
	s.mu.Lock()
	for p := range s.programs {
		p.Release()
	}
	s.closed = true
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

// Exec runs a program; see guestrpc.Handler.
func (s *Supervisor) Exec(ctx context.Context, r guestrpc.Request) (guestrpc.Program, guestrpc.Delivery, error) {
	if len(r.Args) == 0 || r.Args[0] == "" {
		return nil, guestrpc.Delivery{}, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: "exec: no program given"}
	}
	if err := s.refuseWhenDown(); err != nil {
		return nil, guestrpc.Delivery{}, err
	}
	u, err := s.users.find(r.User)
	if err != nil {
		return nil, guestrpc.Delivery{}, err
	}
	p := &program{s: s, job: newJob(&s.files), exited: make(chan struct{})}
	if err := s.addProgram(p); err != nil {
		return nil, guestrpc.Delivery{}, err
	}
	var h *holder
	if r.Key != "" {
		if h, err = s.enroll(p, r.Key); err != nil {
			s.removeProgram(p)
			return nil, guestrpc.Delivery{}, err
		}
	}
	if err := p.launch(r, u, environment(u, r.Terminal != nil, s.baseEnv(), r.Env)); err != nil {
		s.removeProgram(p)
		h.forget()
		if r.Stdin != nil {
			r.Stdin.Close()
		}
		var refused *refusal
		if errors.As(err, &refused) {
			return nil, refused.delivery(), nil
		}
		return nil, guestrpc.Delivery{}, err
	}
	if h == nil {
		return p.hold(ctx, r.Hold, p)
	}
	held, d, err := p.hold(ctx, r.Hold, h)
	if held == nil {
		h.forget()
	}
	return held, d, err
}

// logToHost sends a message to the host's log. It waits until the host has it, so callers hold no lock and have a goroutine of
// their own for it.
func (s *Supervisor) logToHost(level slog.Level, text string) {
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

func (s *Supervisor) addProgram(p *program) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.programs) >= maxPrograms {
		return &capnprpc.Error{Kind: capnprpc.KindLimit, Errno: errno.EAGAIN, Message: "too many programs run at once in this VM (limit 512)"}
	}
	s.programs[p] = struct{}{}
	return nil
}

func (s *Supervisor) removeProgram(p *program) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.programs, p)
}

// SetClock sets the wall clock.
func (s *Supervisor) SetClock(t time.Time) error {
	tv := syscall.NsecToTimeval(t.UnixNano())
	return os.NewSyscallError("set clock", syscall.Settimeofday(&tv))
}
