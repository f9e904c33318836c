//go:build linux

package guest

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
)

// killTimeout bounds how long Start waits for the killed programs of an earlier session to end. One that waits for a device in the
// kernel takes longer.
const killTimeout = time.Second

// Start sets what the host wants before the first program runs. It replaces what an earlier Start has set.
//
//	restored: entropy ─► clock ─► old programs are gone ─► identity ─► host name ─► certificates ─► old shares go
//	             read-only root ◄─ sockets ◄─ directories ◄─ shares ◄─ hosts ◄─ network card ◄──────────┘
//	                                           └─► restored: generation ─► hooks
//
// A root that an earlier Start has made read-only is writable meanwhile.
func (s *Supervisor) Start(p guestrpc.StartParams, log func(slog.Level, string)) (guestrpc.GuestInfo, error) {
	s.starting.Lock()
	defer s.starting.Unlock()
	s.locals.reset() // their peers belong to an ended session, or to the machine that this one is a copy of
	if p.Restored != nil {
		if err := addEntropy(p.Restored.Entropy); err != nil {
			return guestrpc.GuestInfo{}, err
		}
		forgetHardwareBytes()
	}
	diskAttached, err := s.attachDisk(p)
	if err != nil {
		return guestrpc.GuestInfo{}, err
	}
	if err := s.setRootReadOnly(false); err != nil {
		return guestrpc.GuestInfo{}, err
	}
	if err := s.prepare(p, diskAttached, log); err != nil {
		return guestrpc.GuestInfo{}, err
	}
	listenWarning := s.denyPorts(p.ListenDenied)
	networkWarning := s.nic.configure(p.Network, p.Restored, diskAttached)
	if s.isInit {
		var own netip.Addr
		if p.Network != nil {
			own = p.Network.Address.Addr()
		}
		if err := writeHosts("/", hostname(), own, p.Hosts); err != nil {
			log(slog.LevelWarn, err.Error())
		}
		s.upper.confirm("/etc/hosts", machineID, machineIDDBus)
	}
	if err := s.shares.replace(p.Mounts, p.Restored != nil, s.upper, p.Time); err != nil {
		return guestrpc.GuestInfo{}, err
	}
	for _, dir := range p.Directories {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			log(slog.LevelWarn, fmt.Sprintf("make a directory of the image: %v", err))
		}
	}
	if err := s.forwards.open(p.UnixSockets, p.Connect); err != nil {
		return guestrpc.GuestInfo{}, err
	}
	if p.Flags&guestrpc.ReadOnlyRoot != 0 {
		if err := s.setRootReadOnly(true); err != nil {
			return guestrpc.GuestInfo{}, err
		}
	}
	if p.Restored != nil && !diskAttached {
		s.announceGeneration(p.Restored)
	} else {
		s.prepareAnnouncement()
	}
	info, err := guestInfo()
	info.Flags = p.Flags & guestrpc.KnownFlags
	info.NetworkWarning, info.DiskWarning = cmp.Or(networkWarning, listenWarning), s.upper.warning
	return info, err
}

// prepare sets what needs no device. With diskAttached, the root is the disk's since this Start, with the machine's own files.
func (s *Supervisor) prepare(p guestrpc.StartParams, diskAttached bool, log func(slog.Level, string)) error {
	var kept []string
	if p.Restored != nil {
		kept = p.Restored.Programs
	}
	s.mu.Lock()
	s.env, s.log = p.Env, log
	unwanted := s.keyed.await(kept)
	s.mu.Unlock()
	for _, h := range unwanted {
		h.program.Detach()
	}
	if !p.Time.IsZero() {
		if err := s.SetClock(p.Time); err != nil {
			return err
		}
	}
	s.awaitKilled(killTimeout)
	if p.Restored != nil && !p.Restored.KeepPrograms {
		if err := s.groups.killLeft(killTimeout); err != nil {
			return err
		}
	}
	if s.isInit {
		s.setIdentity(p.Restored, diskAttached)
	}
	if p.Hostname != "" {
		if err := syscall.Sethostname([]byte(p.Hostname)); err != nil {
			return os.NewSyscallError("set host name", err)
		}
	}
	if p.Flags&guestrpc.NoNewPrivileges != 0 {
		if err := noNewPrivileges(); err != nil {
			return err
		}
	}
	return trust("", p.CACertificate, bundles()) // before shares are mounted, so that files of the host do not change
}

// setRootReadOnly makes the root read-only, or writable again. It fails while a program has a file of the root open for writing.
func (s *Supervisor) setRootReadOnly(on bool) error {
	var st unix.Statfs_t
	if err := unix.Statfs("/", &st); err != nil {
		return os.NewSyscallError("statfs", err)
	}
	if !s.isInit || on == (st.Flags&unix.ST_RDONLY != 0) {
		return nil
	}
	flags := uintptr(syscall.MS_REMOUNT)
	if on {
		flags |= syscall.MS_RDONLY
	}
	switch err := syscall.Mount("", "/", "", flags, ""); {
	case err == syscall.EBUSY:
		return fmt.Errorf("read-only root: a program that was kept has files of it open for writing: %w", err)
	case err != nil:
		return fmt.Errorf("remount the root: %w", err)
	}
	for _, dir := range containerDirs {
		_ = syscall.Mount("", dir, "", flags|syscall.MS_BIND, "") // those that are no mounts are the root's
	}
	return nil
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
