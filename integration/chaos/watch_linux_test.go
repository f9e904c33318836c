package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A watch sees every call with which the programs under it change files, in order, and before it is done: seccomp's user notifications. At one
// of them it kills the process, or has the call fail because the disk is full.
type watch struct {
	mu     sync.Mutex
	own    bool // only calls of commands begun while it is armed count, not those of daemons that were there
	armed  bool
	seen   int // since it was armed
	at     int // the call to meet; 0: none
	full   bool
	struck string // the call that was met
	ended  sync.WaitGroup
}

// launchEnv has the test's program put itself under the watch at the other end of descriptor 3, and become its arguments.
const launchEnv = "AGENTVM_TEST_LAUNCH"

// newWatchedWorld is a world whose program runs under a watch. Where the kernel does not let programs be watched, the test is skipped.
func newWatchedWorld(t *testing.T) (*world, *watch) {
	t.Helper()
	w, watch := newWorld(t), &watch{}
	w.run = watch.run
	if _, err := w.try("version"); errors.Is(err, unix.EPERM) || err != nil && strings.Contains(err.Error(), "seccomp") {
		t.Skip(err)
	}
	return w, watch
}

func TestMain(m *testing.M) {
	if os.Getenv(launchEnv) != "" {
		fmt.Fprintln(os.Stderr, launch())
		os.Exit(125)
	}
	os.Exit(m.Run())
}

// watched are the calls: those with which Go's library makes, names and removes files, and makes them durable.
var watched = map[int]string{
	unix.SYS_MKDIRAT: "mkdirat", unix.SYS_LINKAT: "linkat", unix.SYS_RENAMEAT: "renameat", unix.SYS_UNLINKAT: "unlinkat",
	unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync", unix.SYS_PWRITE64: "pwrite64",
	unix.SYS_OPENAT: "openat", // with O_CREAT
}

// filter is the BPF program: struct seccomp_data has the number at 0, and the low half of the third argument at 32.
func filter() []unix.SockFilter {
	const load, equal, set, give = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	list := []unix.SockFilter{{Code: load}}
	for nr := range watched {
		if nr != unix.SYS_OPENAT {
			list = append(list, unix.SockFilter{Code: equal, Jf: 1, K: uint32(nr)}, unix.SockFilter{Code: give, K: unix.SECCOMP_RET_USER_NOTIF})
		}
	}
	return append(list,
		unix.SockFilter{Code: equal, Jf: 3, K: unix.SYS_OPENAT}, unix.SockFilter{Code: load, K: 32}, unix.SockFilter{Code: set, Jf: 1, K: unix.O_CREAT},
		unix.SockFilter{Code: give, K: unix.SECCOMP_RET_USER_NOTIF}, unix.SockFilter{Code: give, K: unix.SECCOMP_RET_ALLOW})
}

// launch becomes the program in the arguments. It returns when it cannot.
func launch() error {
	runtime.LockOSThread() // the filter is this thread's, and execve leaves no other
	if err := os.Unsetenv(launchEnv); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	list := filter()
	program := unix.SockFprog{Len: uint16(len(list)), Filter: &list[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	if err := unix.Sendmsg(3, []byte{1}, unix.UnixRights(int(fd)), nil, 0); err != nil {
		return fmt.Errorf("hand over the watch: %w", err)
	}
	unix.CloseOnExec(3)
	return syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
}

// put puts a command under the watch. Its Start is to be followed by attach.
func (w *watch) put(c *exec.Cmd) (attach func() error, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	own, other := pair[0], os.NewFile(uintptr(pair[1]), "watch")
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c.Path, c.Args = self, append([]string{self, c.Path}, c.Args[1:]...)
	c.Env, c.ExtraFiles = append(c.Env, launchEnv+"=1"), []*os.File{other}
	return func() error {
		defer unix.Close(own)
		other.Close()
		rights := make([]byte, unix.CmsgSpace(4))
		_, n, _, _, err := unix.Recvmsg(own, make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC)
		if err != nil || n == 0 {
			return errors.Join(errors.New("it did not put itself under the watch"), err)
		}
		messages, err := unix.ParseSocketControlMessage(rights[:n])
		if err != nil {
			return err
		}
		list, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			return err
		}
		w.mu.Lock()
		counts := w.armed || !w.own
		w.mu.Unlock()
		w.ended.Go(func() { w.serve(list[0], counts) })
		return nil
	}, nil
}

// notification and answer are struct seccomp_notif and struct seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type answer struct {
	id    uint64
	value int64
	err   int32
	flags uint32
}

// serve answers until all processes under the filter have ended. Their calls may be met if they count.
func (w *watch) serve(fd int, counts bool) {
	defer unix.Close(fd)
	for {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err == unix.EINTR {
			continue
		} else if err != nil || poll[0].Revents&unix.POLLIN == 0 {
			return
		}
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno != 0 {
			continue // the caller has been killed meanwhile
		}
		a := answer{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if counts && w.meets(n) {
			if w.full {
				a.flags, a.err = 0, -int32(unix.ENOSPC)
			} else {
				_ = unix.Kill(int(n.pid), unix.SIGKILL)
				continue
			}
		}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a)))
	}
}

// needsRoom are the calls that fail where there is no room.
var needsRoom = []int32{unix.SYS_MKDIRAT, unix.SYS_LINKAT, unix.SYS_OPENAT, unix.SYS_FTRUNCATE, unix.SYS_PWRITE64, unix.SYS_FSYNC, unix.SYS_FDATASYNC}

// meets counts a call, and says whether it is the one.
func (w *watch) meets(n notification) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.armed || w.full && !slices.Contains(needsRoom, n.nr) {
		return false
	}
	w.seen++
	if w.seen != w.at {
		return false
	}
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", n.pid))
	w.struck = fmt.Sprintf("call %d, %s of %s", w.at, watched[int(n.nr)], bytes.TrimSpace(name))
	return true
}

// during does something with the call at counted from its begin met, and says how many there were and what was met.
func (w *watch) during(at int, full bool, do func()) (seen int, struck string) {
	w.mu.Lock()
	w.armed, w.seen, w.at, w.full, w.struck = true, 0, at, full, ""
	w.mu.Unlock()
	do()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed = false
	return w.seen, w.struck
}
