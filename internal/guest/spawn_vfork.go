//go:build linux && (riscv64 || arm64)

package guest

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cloneArgs is struct clone_args (clone(2)), version 2.
type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// spawnCall is a system call that the child makes. spawn.keep keeps its pointers alive.
type spawnCall struct {
	number uintptr
	args   [4]uintptr
}

// signalMasks are the signals that are blocked during the fork, and those that were before. The assembler relies on their order.
type signalMasks struct{ all, old uint64 }

// vforkExec makes a child that shares this process's memory until it has called execve, the last of its calls. Meanwhile the calling
// thread waits. It returns the child's number or the negated error of clone3; the error of one of the child's calls is left in failure.
//
//go:noescape
func vforkExec(clone *cloneArgs, calls *spawnCall, count uintptr, masks *signalMasks, failure *uintptr) (result int)

// spawn does what syscall.ForkExec does, as far as the host's programs need it, at less than half of the cost: the kernel resets Go's
// sixty signal handlers in one step, errors need no pipe, and the child runs no Go code.
type spawn struct {
	clone   cloneArgs
	masks   signalMasks
	failure uintptr
	calls   []spawnCall
	keep    []unsafe.Pointer // what calls point to
	err     error
}

func forkAndExec(path string, args []string, attr *syscall.ProcAttr) (int, error) {
	for _, fd := range attr.Files {
		if fd <= 2 { // an earlier dup3 would overwrite it
			return syscall.ForkExec(path, args, attr)
		}
	}
	s := &spawn{masks: signalMasks{all: ^uint64(0)}}
	s.clone = cloneArgs{flags: unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_CLEAR_SIGHAND, exitSignal: uint64(syscall.SIGCHLD)}
	if attr.Sys.UseCgroupFD {
		s.clone.flags |= unix.CLONE_INTO_CGROUP
		s.clone.cgroup = uint64(attr.Sys.CgroupFD)
	}
	s.plan(path, args, attr)
	if s.err != nil {
		return 0, s.err
	}
	syscall.ForkLock.Lock()
	result := vforkExec(&s.clone, &s.calls[0], uintptr(len(s.calls)), &s.masks, &s.failure)
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(s)
	switch {
	case result < 0:
		return 0, syscall.Errno(-result)
	case s.failure != 0:
		collect(result)
		return 0, syscall.Errno(s.failure)
	}
	return result, nil
}

// plan lists the child's calls, in the order of syscall.ForkExec.
func (s *spawn) plan(path string, args []string, attr *syscall.ProcAttr) {
	s.calls, s.keep = make([]spawnCall, 0, 11), make([]unsafe.Pointer, 0, 6)
	if attr.Sys.Setsid {
		s.call(syscall.SYS_SETSID)
	}
	if c := attr.Sys.Credential; c != nil {
		groups := append([]uint32(nil), c.Groups...)
		s.call(syscall.SYS_SETGROUPS, uintptr(len(groups)), s.address(unsafe.Pointer(unsafe.SliceData(groups))))
		s.call(syscall.SYS_SETGID, uintptr(c.Gid))
		s.call(syscall.SYS_SETUID, uintptr(c.Uid))
	}
	if attr.Dir != "" {
		s.call(syscall.SYS_CHDIR, s.text(attr.Dir))
	}
	for i, fd := range attr.Files {
		s.call(syscall.SYS_DUP3, fd, uintptr(i))
	}
	if attr.Sys.Setctty {
		s.call(syscall.SYS_IOCTL, 0, unix.TIOCSCTTY, 1)
	}
	s.call(syscall.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, s.address(unsafe.Pointer(&s.masks.old)), 0, 8)
	s.call(syscall.SYS_EXECVE, s.text(path), s.texts(args), s.texts(attr.Env))
}

func (s *spawn) call(number uintptr, args ...uintptr) {
	c := spawnCall{number: number}
	copy(c.args[:], args)
	s.calls = append(s.calls, c)
}

// address returns p, which points to the heap, as a number, and keeps it alive.
func (s *spawn) address(p unsafe.Pointer) uintptr {
	s.keep = append(s.keep, p)
	return uintptr(p)
}

// text returns the address of a C string.
func (s *spawn) text(t string) uintptr {
	p, err := syscall.BytePtrFromString(t)
	if err != nil {
		s.err = err
	}
	return s.address(unsafe.Pointer(p))
}

// texts returns the address of an array of C strings.
func (s *spawn) texts(list []string) uintptr {
	p, err := syscall.SlicePtrFromStrings(list)
	if err != nil {
		s.err = err
	}
	return s.address(unsafe.Pointer(unsafe.SliceData(p)))
}

// collect reaps a child whose execve failed, unless the reaper has done so.
func collect(pid int) {
	for {
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != syscall.EINTR {
			return
		}
	}
}
