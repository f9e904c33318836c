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
	// forwards are the sockets of Start.
	forwards forwards

	mu       sync.Mutex
	env      []string // of Start
	programs map[*program]struct{}
	shells   int
	log      func(slog.Level, string)
	// disconnect ends the renewal of the network's lease.
	disconnect func()
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
		programs: make(map[*program]struct{}), disconnect: func() {},
		denials: denials{dir: denialsDir},
	}, nil
}

// Close kills every program and waits until nothing of it is left.
func (s *Supervisor) Close() error {
	s.mu.Lock()
	for p := range s.programs {
		p.Release()
	}
	s.disconnect()
	s.mu.Unlock()
	s.forwards.close()
	s.reaper.close()
	s.tasks.Wait()
	s.files.close()
	s.groups.close()
	return syscall.Close(s.null)
}

// Start sets what the host wants to be set before the first program.
func (s *Supervisor) Start(p rpc.StartParams, log func(slog.Level, string)) (rpc.GuestInfo, error) {
	s.mu.Lock()
	s.env, s.log = p.Env, log
	s.mu.Unlock()
	if !p.Time.IsZero() {
		if err := s.SetClock(p.Time); err != nil {
			return rpc.GuestInfo{}, err
		}
	}
	if p.Hostname != "" {
		if err := syscall.Sethostname([]byte(p.Hostname)); err != nil {
			return rpc.GuestInfo{}, os.NewSyscallError("set host name", err)
		}
	}
	if p.NoNewPrivileges {
		if err := noNewPrivileges(); err != nil {
			return rpc.GuestInfo{}, err
		}
	}
	if err := trust("", p.CACertificate, bundles()); err != nil { // before shares are mounted: theirs are the host's files
		return rpc.GuestInfo{}, err
	}
	connected := s.connect(p.Network)
	for _, m := range p.Mounts {
		if err := mountShare(m); err != nil {
			return rpc.GuestInfo{}, err
		}
	}
	warning := connected()
	if err := s.forwards.open(p.UnixSockets, p.Connect); err != nil {
		return rpc.GuestInfo{}, err
	}
	info, err := guestInfo()
	info.NetworkWarning = warning
	return info, err
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
