//go:build linux

package guest

import (
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reaper waits for every child of this process, orphans included, in one blocking wait4. It needs no signal handler and no
// descriptor for each child.
type reaper struct {
	mu       sync.Mutex // held from a fork until the child is in waiting, so that run finds it there
	waiting  map[int]func(syscall.WaitStatus)
	born     chan struct{} // capacity 1: there is, or was, a child to wait for
	quit     chan struct{}
	finished chan struct{}
}

func newReaper() *reaper {
	r := &reaper{
		waiting: make(map[int]func(syscall.WaitStatus)),
		born:    make(chan struct{}, 1), quit: make(chan struct{}), finished: make(chan struct{}),
	}
	go r.run()
	return r
}

// start forks and execs; ended is called once, from the reaper's goroutine, when the child has ended. It must not block.
func (r *reaper) start(path string, args []string, attr *syscall.ProcAttr, ended func(syscall.WaitStatus)) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := forkExec(path, args, attr)
	if err != nil {
		return 0, err
	}
	r.waiting[pid] = ended
	select {
	case r.born <- struct{}{}:
	default:
	}
	return pid, nil
}

// forkExec gives the child the usual timer slack. A child inherits the slack of the thread that forks, and a thread that of the one
// that started it, which may be the thread of slowMonitor.
func forkExec(path string, args []string, attr *syscall.ProcAttr) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, unix.PR_SET_TIMERSLACK, usualSlack, 0)
	return forkAndExec(path, args, attr)
}

func (r *reaper) run() {
	defer close(r.finished)
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // ECHILD: there is no child
			select {
			case <-r.born:
			case <-r.quit:
				return
			}
		default:
			r.deliver(pid, status)
		}
	}
}

func (r *reaper) deliver(pid int, status syscall.WaitStatus) {
	r.mu.Lock()
	ended := r.waiting[pid]
	delete(r.waiting, pid)
	r.mu.Unlock()
	if ended != nil {
		ended(status)
	}
}

// close waits for the goroutine, which ends once this process has no children.
func (r *reaper) close() {
	close(r.quit)
	<-r.finished
}
