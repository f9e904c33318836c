//go:build linux

package guest

import (
	"cmp"
	"log/slog"
	"os"
	"syscall"
	"time"

	"agentvm/rpc"
)

// killPatience is how long Start waits for programs of an earlier session to be gone. They have been killed; one that waits for a
// device in the kernel takes longer.
const killPatience = time.Second

// Start sets what the host wants to be set before the first program, in the place of what an earlier Start has set.
//
//	restored: entropy ─► clock ─► old programs are gone ─► identity ─► host name ─► certificates ─► old shares go
//	   card: MAC, DHCP if need be ─┐                                                                     │
//	                               └─────────────────────────────────────────────► shares ─► sockets ◄───┘
//	                                                                                restored: generation ─► hooks
func (s *Supervisor) Start(p rpc.StartParams, log func(slog.Level, string)) (rpc.GuestInfo, error) {
	s.starting.Lock()
	defer s.starting.Unlock()
	s.locals.reset() // their other ends are in another machine, or gone
	if p.Restored != nil {
		if err := addEntropy(p.Restored.Entropy); err != nil {
			return rpc.GuestInfo{}, err
		}
	}
	begun, err := s.begin(p)
	if err != nil {
		return rpc.GuestInfo{}, err
	}
	if err := s.prepare(p, begun, log); err != nil {
		return rpc.GuestInfo{}, err
	}
	listenWarning := s.confine(p.ListenDenied)
	connected := s.connect(p.Network, p.Restored)
	shareWarning, err := s.shares.replace(p.Mounts, p.Restored != nil)
	networkWarning := connected()
	if begun && s.card != nil {
		networkWarning = cmp.Or(networkWarning, s.card.resolve()) // in this root, too
	}
	if err != nil {
		return rpc.GuestInfo{}, err
	}
	if err := s.forwards.open(p.UnixSockets, p.Connect); err != nil {
		return rpc.GuestInfo{}, err
	}
	if p.Restored != nil && !begun {
		s.announce(p.Restored)
	} else {
		s.expectAnnouncement()
	}
	info, err := guestInfo()
	info.NetworkWarning, info.ShareWarning, info.DiskWarning = cmp.Or(networkWarning, listenWarning), shareWarning, s.upper.warning
	return info, err
}

// prepare sets what needs no device. begun says that the root is the disk's from now on, with the machine's own files.
func (s *Supervisor) prepare(p rpc.StartParams, begun bool, log func(slog.Level, string)) error {
	s.mu.Lock()
	s.env, s.log = p.Env, log
	s.mu.Unlock()
	if !p.Time.IsZero() {
		if err := s.SetClock(p.Time); err != nil {
			return err
		}
	}
	s.awaitKilled(killPatience)
	if p.Restored != nil && !p.Restored.KeepPrograms {
		if err := s.groups.killLeft(killPatience); err != nil {
			return err
		}
	}
	if s.whole {
		s.identify(p.Restored, begun)
	}
	if p.Hostname != "" {
		if err := syscall.Sethostname([]byte(p.Hostname)); err != nil {
			return os.NewSyscallError("set host name", err)
		}
	}
	if p.NoNewPrivileges {
		if err := noNewPrivileges(); err != nil {
			return err
		}
	}
	return trust("", p.CACertificate, bundles()) // before shares are mounted: theirs are the host's files
}

// awaitKilled waits until the programs that were killed with their session have ended.
func (s *Supervisor) awaitKilled(limit time.Duration) {
	var waiting []*program
	s.mu.Lock()
	for p := range s.programs {
		if p.released.Load() {
			waiting = append(waiting, p)
		}
	}
	s.mu.Unlock()
	if len(waiting) == 0 {
		return
	}
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for _, p := range waiting {
		select {
		case <-p.exited:
		case <-timeout.C:
			return
		}
	}
}
