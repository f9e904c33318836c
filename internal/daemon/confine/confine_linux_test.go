package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// In the environment of the process that confines itself: the directory with what it may and may not reach.
const roomEnv = "AGENTVM_TEST_CONFINE"

func TestMain(m *testing.M) {
	if room := os.Getenv(roomEnv); room != "" {
		confined(room)
		return
	}
	os.Exit(m.Run())
}

// attempt is what a confined process tries.
type attempt struct {
	name string
	do   func(room string) error
	want syscall.Errno // 0: it works
	file bool          // it is Landlock that decides
}

func call(number uintptr, arguments ...uintptr) error {
	a := append(arguments, 0, 0, 0, 0, 0, 0)
	if _, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

func raw(number uintptr, arguments ...uintptr) func(string) error {
	return func(string) error { return call(number, arguments...) }
}

func open(flags int, path ...string) func(string) error {
	return func(room string) error {
		f, err := os.OpenFile(filepath.Join(append([]string{room}, path...)...), flags, 0o600)
		if err == nil {
			err = f.Close()
		}
		return err
	}
}

var parent = uintptr(os.Getppid())

var attempts = []attempt{
	// What it keeps.
	{"read what may be read", open(os.O_RDONLY, "read", "file"), 0, true},
	{"list what may be read", func(room string) error { _, err := os.ReadDir(filepath.Join(room, "read")); return err }, 0, true},
	{"read a file that alone may be read", open(os.O_RDONLY, "one"), 0, true},
	{"make, change, move and remove what may be written", writes, 0, true},
	{"what was open before", func(string) error { _, err := before.ReadAt(make([]byte, 1), 0); return err }, 0, true},
	{"an anonymous file", func(string) error {
		fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
		return errors.Join(err, unix.Close(fd))
	}, 0, false},
	{"connections", connects, 0, false},
	{"threads", threads, 0, false},
	{"the list of interfaces", func(string) error { _, err := net.InterfaceAddrs(); return err }, 0, false},
	{"a signal to itself", func(string) error { return unix.Kill(os.Getpid(), 0) }, 0, false},
	{"memory that is executed", func(string) error {
		m, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		return errors.Join(err, unix.Mprotect(m, unix.PROT_READ|unix.PROT_EXEC), unix.Munmap(m))
	}, 0, false},

	{"its limits", limited, 0, false},

	// Files.
	{"read another file", open(os.O_RDONLY, "secret"), unix.EACCES, true},
	{"read /etc/shadow", func(string) error { return open(os.O_RDONLY, "shadow")("/etc") }, unix.EACCES, true},
	{"list the directory above", func(room string) error { _, err := os.ReadDir(room); return err }, unix.EACCES, true},
	{"read through a link", open(os.O_RDONLY, "write", "link"), unix.EACCES, true},
	{"write what may be read", open(os.O_WRONLY, "read", "file"), unix.EACCES, true},
	{"truncate what may be read", func(room string) error { return os.Truncate(filepath.Join(room, "read", "file"), 0) }, unix.EACCES, true},
	{"make a file elsewhere", open(os.O_RDWR|os.O_CREATE, "new"), unix.EACCES, true},
	{"remove another file", func(room string) error { return os.Remove(filepath.Join(room, "secret")) }, unix.EACCES, true},
	{"move another file here", func(room string) error {
		return os.Rename(filepath.Join(room, "secret"), filepath.Join(room, "write", "moved"))
	}, unix.EACCES, true},
	{"link another file here", func(room string) error {
		return os.Link(filepath.Join(room, "secret"), filepath.Join(room, "write", "linked"))
	}, unix.EXDEV, true},
	{"make a socket where that is allowed", func(room string) error {
		l, err := net.Listen("unix", filepath.Join(room, "sockets", fmt.Sprint(unix.Gettid())))
		if err != nil {
			return err
		}
		return l.Close()
	}, 0, true},
	{"make a socket", func(room string) error {
		l, err := net.Listen("unix", filepath.Join(room, "write", "socket"))
		if err == nil {
			err = l.Close()
		}
		return err
	}, unix.EACCES, true},
	{"make a FIFO", node("write", unix.S_IFIFO|0o600), unix.EPERM, false},
	{"make a device", node("write", unix.S_IFCHR|0o600), unix.EPERM, false},
	{"change the owner of an open file", opened("write/mine", func(fd int) error { return unix.Fchown(fd, os.Getuid(), os.Getgid()) }), unix.EPERM, false},
	{"change the owner", named("secret", func(path string) error { return os.Chown(path, os.Getuid(), os.Getgid()) }), unix.EPERM, false},
	{"change the owner of a link", named("write/link", func(path string) error { return os.Lchown(path, os.Getuid(), os.Getgid()) }), unix.EPERM, false},
	{"change the mode", named("secret", func(path string) error { return unix.Chmod(path, 0o777) }), unix.EPERM, false},
	{"change the mode beside a link", named("secret", func(path string) error {
		return unix.Fchmodat(unix.AT_FDCWD, path, 0o777, unix.AT_SYMLINK_NOFOLLOW)
	}), unix.EPERM, false},
	{"set the times", named("secret", func(path string) error { return os.Chtimes(path, time.Now(), time.Now()) }), unix.EPERM, false},
	{"set an attribute", named("secret", func(path string) error { return unix.Setxattr(path, "user.x", []byte("x"), 0) }), unix.EPERM, false},
	{"set an attribute of a link", named("secret", func(path string) error { return unix.Lsetxattr(path, "user.x", []byte("x"), 0) }), unix.EPERM, false},
	{"remove an attribute", named("secret", func(path string) error { return unix.Removexattr(path, "user.x") }), unix.EPERM, false},
	{"watch a directory", func(room string) error {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err == nil {
			_, err = unix.InotifyAddWatch(fd, room, unix.IN_ALL_EVENTS)
			err = errors.Join(err, unix.Close(fd))
		}
		return err
	}, unix.EPERM, false},
	{"open by arguments in memory", raw(unix.SYS_OPENAT2, 0, 0, 0, 0), unix.ENOSYS, false},
	{"set the mode of an open file", opened("write/mine", func(fd int) error { return unix.Fchmod(fd, 0o640) }), 0, true},
	{"set the times of an open file", opened("write/mine", func(fd int) error {
		return call(unix.SYS_UTIMENSAT, uintptr(fd), 0, 0, 0)
	}), 0, true},
	{"set-user-ID bit of an open file", opened("write/mine", func(fd int) error { return unix.Fchmod(fd, unix.S_ISUID|0o777) }), unix.EPERM, false},
	{"set-group-ID bit of an open file", opened("write/mine", func(fd int) error { return unix.Fchmod(fd, unix.S_ISGID|0o777) }), unix.EPERM, false},
	{"make a set-user-ID file", named("write/program", func(path string) error {
		_, err := unix.Open(path, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, unix.S_ISUID|0o777)
		return err
	}), unix.EPERM, false},
	{"make a set-group-ID directory", named("write/dir", func(path string) error { return unix.Mkdir(path, unix.S_ISGID|0o777) }), unix.EPERM, false},

	// Programs and processes.
	{"run a program", func(string) error {
		_, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{})
		return err
	}, unix.EPERM, false},
	{"become a program", func(string) error { return syscall.Exec("/bin/true", []string{"true"}, nil) }, unix.EPERM, false},
	{"execveat", raw(unix.SYS_EXECVEAT, ^uintptr(0), 0, 0, 0, 0), unix.EPERM, false},
	{"fork", raw(unix.SYS_CLONE, uintptr(unix.SIGCHLD)), unix.EPERM, false},
	{"clone into a namespace", raw(unix.SYS_CLONE, unix.CLONE_THREAD|unix.CLONE_NEWUSER), unix.EPERM, false},
	{"clone3", raw(unix.SYS_CLONE3, 0, 0), unix.ENOSYS, false},
	{"trace the parent", raw(unix.SYS_PTRACE, unix.PTRACE_SEIZE, parent), unix.EPERM, false},
	{"be traced", raw(unix.SYS_PTRACE, unix.PTRACE_TRACEME), unix.EPERM, false},
	{"read the parent's memory", raw(unix.SYS_PROCESS_VM_READV, parent, 0, 0, 0, 0), unix.EPERM, false},
	{"write the parent's memory", raw(unix.SYS_PROCESS_VM_WRITEV, parent, 0, 0, 0, 0), unix.EPERM, false},
	{"signal the parent", raw(unix.SYS_KILL, parent, 0), unix.EPERM, false},
	{"signal the group", raw(unix.SYS_KILL, 0, 0), unix.EPERM, false},
	{"signal all", raw(unix.SYS_KILL, ^uintptr(0), 0), unix.EPERM, false},
	{"signal the parent's thread", raw(unix.SYS_TGKILL, parent, parent, 0), unix.EPERM, false},
	{"tkill", raw(unix.SYS_TKILL, parent, 0), unix.EPERM, false},
	{"take a descriptor of the parent's", raw(unix.SYS_PIDFD_OPEN, parent, 0), unix.EPERM, false},
	{"have the kernel signal the parent", opened("write/mine", func(fd int) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETOWN, int(parent))
		return err
	}), unix.EPERM, false},
	{"have the kernel signal the parent's thread", opened("write/mine", func(fd int) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETOWN_EX, 0)
		return err
	}), unix.EPERM, false},
	{"choose the signal", opened("write/mine", func(fd int) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETSIG, int(unix.SIGKILL))
		return err
	}), unix.EPERM, false},
	{"be signalled by a directory (DN_CREATE)", opened("write", func(fd int) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_NOTIFY, 4)
		return err
	}), unix.EPERM, false},
	{"own a descriptor (FIOSETOWN)", raw(unix.SYS_IOCTL, 0, 0x8901, 0), unix.EPERM, false},
	{"own a socket", raw(unix.SYS_IOCTL, 0, unix.SIOCSPGRP, 0), unix.EPERM, false},
	{"take a terminal's signals", raw(unix.SYS_IOCTL, 0, unix.TIOCSPGRP, 0), unix.EPERM, false},
	{"take a terminal", raw(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0), unix.EPERM, false},
	{"signal a terminal's programs", raw(unix.SYS_IOCTL, 0, unix.TIOCSIG, 0), unix.EPERM, false},
	{"slow down the parent", raw(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, parent, 19), unix.EPERM, false},
	{"slow down the parent's disk", raw(unix.SYS_IOPRIO_SET, 1, parent, 3<<13), unix.EPERM, false},
	{"schedule the parent", raw(unix.SYS_SCHED_SETSCHEDULER, parent, 5, 0), unix.EPERM, false},
	{"schedule the parent's attributes", raw(unix.SYS_SCHED_SETATTR, parent, 0, 0), unix.EPERM, false},
	{"schedule by parameters", raw(unix.SYS_SCHED_SETPARAM, parent, 0), unix.EPERM, false},
	{"move the parent to a processor", raw(unix.SYS_SCHED_SETAFFINITY, parent, 0, 0), unix.EPERM, false},
	{"compare with the parent", raw(unix.SYS_KCMP, parent, parent, 0, 0, 0), unix.EPERM, false},
	{"join another group of processes", raw(unix.SYS_SETPGID, 0, parent), unix.EPERM, false},
	{"an abstract socket of another process", func(room string) error {
		c, err := net.Dial("unix", abstractSocket(room))
		if err == nil {
			err = c.Close()
		}
		return err
	}, unix.EPERM, true},
	{"set the parent's limits", raw(unix.SYS_PRLIMIT64, parent, unix.RLIMIT_NOFILE, 0, 0), unix.EPERM, false},
	{"be another user", raw(unix.SYS_SETUID, 0), unix.EPERM, false},
	{"type for the user", raw(unix.SYS_IOCTL, 0, unix.TIOCSTI, 0), unix.EPERM, false},

	// The kernel.
	{"mount", raw(unix.SYS_MOUNT, 0, 0, 0, 0, 0), unix.EPERM, false},
	{"umount", raw(unix.SYS_UMOUNT2, 0, 0), unix.EPERM, false},
	{"fsopen", raw(unix.SYS_FSOPEN, 0, 0), unix.EPERM, false},
	{"pivot_root", raw(unix.SYS_PIVOT_ROOT, 0, 0), unix.EPERM, false},
	{"chroot", raw(unix.SYS_CHROOT, 0), unix.EPERM, false},
	{"unshare", raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER), unix.EPERM, false},
	{"setns", raw(unix.SYS_SETNS, 0, 0), unix.EPERM, false},
	{"open_by_handle_at", raw(unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0), unix.EPERM, false},
	{"bpf", raw(unix.SYS_BPF, 0, 0, 0), unix.EPERM, false},
	{"io_uring", raw(unix.SYS_IO_URING_SETUP, 1, 0), unix.EPERM, false},
	{"perf", raw(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0), unix.EPERM, false},
	{"userfaultfd", raw(unix.SYS_USERFAULTFD, 0), unix.EPERM, false},
	{"kexec", raw(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0), unix.EPERM, false},
	{"modules", raw(unix.SYS_INIT_MODULE, 0, 0, 0), unix.EPERM, false},
	{"a key", raw(unix.SYS_ADD_KEY, 0, 0, 0, 0, 0), unix.EPERM, false},
	{"aio", raw(unix.SYS_IO_SETUP, 1, 0), unix.EPERM, false},
	{"a call of a later kernel", raw(unix.SYS_LISTNS, 0, 0, 0, 0), unix.ENOSYS, false},
	{"keys", raw(unix.SYS_KEYCTL, 0, 0, 0, 0, 0), unix.EPERM, false},
	{"packets", raw(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0), unix.EAFNOSUPPORT, false},
	{"the kernel's events", raw(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT), unix.EPROTONOSUPPORT, false},
	{"the hypervisor's sockets", raw(unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0), unix.EAFNOSUPPORT, false},
	{"the kernel's cryptography", raw(unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET, 0), unix.EAFNOSUPPORT, false},
	{"new privileges", func(string) error {
		if set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || set != 1 {
			return fmt.Errorf("no_new_privs is %d, %v", set, err)
		}
		return nil
	}, 0, false},
	{"a memory dump", func(string) error {
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil || limit.Max > 1 {
			return fmt.Errorf("the limit is %d, %v", limit.Max, err)
		}
		return nil
	}, 0, false},
}

var before *os.File // open since before

// mountAttempts are what is different for a process with a mount that a guest can change.
var mountAttempts = []attempt{
	{"make a FIFO", node("mount", unix.S_IFIFO|0o600), 0, true},
	{"make a socket", node("mount", unix.S_IFSOCK|0o600), 0, true},
	{"make a file", node("mount", unix.S_IFREG|0o600), 0, true},
	{"make a FIFO elsewhere", node("write", unix.S_IFIFO|0o600), unix.EACCES, true},
	{"make a device", node("mount", unix.S_IFCHR|0o600), unix.EPERM, false},
	{"make a disk", node("mount", unix.S_IFBLK|0o600), unix.EPERM, false},
	{"make a set-user-ID file", node("mount", unix.S_IFREG|unix.S_ISUID|0o600), unix.EPERM, false},
	{"change the mode", named("mount", func(path string) error { return os.Chmod(path, 0o750) }), 0, true},
	{"change the mode beside a link", named("mount", func(path string) error {
		return unix.Fchmodat(unix.AT_FDCWD, path, 0o700, unix.AT_SYMLINK_NOFOLLOW)
	}), 0, true},
	{"set-user-ID bit", named("mount", func(path string) error { return unix.Fchmodat(unix.AT_FDCWD, path, 0o4777, 0) }), unix.EPERM, false},
	{"set-group-ID bit", named("mount", func(path string) error {
		return unix.Fchmodat(unix.AT_FDCWD, path, 0o2777, unix.AT_SYMLINK_NOFOLLOW)
	}), unix.EPERM, false},
	{"set the times", named("mount", func(path string) error { return os.Chtimes(path, time.Now(), time.Now()) }), 0, true},
	{"change the owner", named("mount", func(path string) error { return os.Chown(path, os.Getuid(), os.Getgid()) }), unix.EPERM, false},
	{"set an attribute", named("mount", func(path string) error { return unix.Setxattr(path, "user.x", []byte("x"), 0) }), unix.EPERM, false},
	{"watch a directory", named("mount", func(path string) error {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err == nil {
			_, err = unix.InotifyAddWatch(fd, path, unix.IN_ALL_EVENTS)
			err = errors.Join(err, unix.Close(fd))
		}
		return err
	}), 0, true},
}

// node makes a file of a kind in a directory, by a name of this thread's, and removes it.
func node(dir string, mode uint32) func(string) error {
	return func(room string) error {
		path := filepath.Join(room, dir, fmt.Sprint("node", unix.Gettid()))
		if err := unix.Mknod(path, mode, 1<<8|5); err != nil {
			return err
		}
		return os.Remove(path)
	}
}

func named(name string, do func(path string) error) func(string) error {
	return func(room string) error { return do(filepath.Join(room, name)) }
}

// opened is for a file that may be written.
func opened(name string, do func(fd int) error) func(string) error {
	return func(room string) error {
		fd, err := unix.Open(filepath.Join(room, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return errors.Join(do(fd), unix.Close(fd))
	}
}

// abstractSocket is where the process that is not confined listens.
func abstractSocket(room string) string { return "@agentvm-test" + room }

func writes(room string) error {
	at := func(path ...string) string { return filepath.Join(append([]string{room, "write"}, path...)...) }
	thread := fmt.Sprint(unix.Gettid()) // several threads do this at once
	err := errors.Join(os.MkdirAll(at(thread, "a"), 0o700), os.MkdirAll(at(thread, "b"), 0o700), os.WriteFile(at(thread, "a", "x"), []byte("long"), 0o600),
		os.WriteFile(at(thread, "a", "x"), []byte("y"), 0o600), os.Rename(at(thread, "a", "x"), at(thread, "b", "x")),
		os.Link(at(thread, "b", "x"), at(thread, "a", "z")), os.Symlink("z", at(thread, "a", "s")), os.RemoveAll(at(thread)))
	return err
}

func connects(string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return errors.Join(err, l.Close())
	}
	return errors.Join(c.Close(), l.Close())
}

// threads has the runtime make some.
func threads(string) error {
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { runtime.LockOSThread(); unix.Gettid() }) // the thread ends with the goroutine
	}
	all.Wait()
	return nil
}

// outcome is how an attempt ended.
type outcome struct {
	Thread, Name, Error string
	Errno               syscall.Errno
}

type report struct {
	Layers   []Layer
	Outcomes []outcome
}

// confined is the process. Every attempt is made in threads that were there before and in one that was not.
func confined(room string) {
	var err error
	if before, err = os.Open(filepath.Join(room, "secret")); err != nil {
		panic(err)
	}
	go func() { // signals as Go sends them to threads
		for {
			runtime.Gosched()
		}
	}()
	const old = 4
	var ready, all sync.WaitGroup
	begin := make(chan struct{})
	var mu sync.Mutex
	var r report
	try := func(thread string) {
		for _, a := range attemptsOf(room) {
			o := outcome{Thread: thread, Name: a.name}
			if err := a.do(room); err != nil {
				o.Error = err.Error()
				errors.As(err, &o.Errno)
			}
			mu.Lock()
			r.Outcomes = append(r.Outcomes, o)
			mu.Unlock()
		}
	}
	ready.Add(old)
	for i := range old {
		all.Go(func() {
			runtime.LockOSThread()
			ready.Done()
			<-begin
			try(fmt.Sprint("old ", i))
		})
	}
	ready.Wait()
	rules := Rules{
		Read:  []string{filepath.Join(room, "read"), filepath.Join(room, "one"), filepath.Join(room, "missing")},
		Write: []string{filepath.Join(room, "write")}, Sockets: []string{filepath.Join(room, "sockets")},
	}
	if mount := filepath.Join(room, "mount"); exists(mount) {
		rules.WriteMounts = []string{mount}
	}
	r.Layers = Process(rules)
	close(begin)
	all.Go(func() { runtime.LockOSThread(); try("new") })
	all.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		panic(err)
	}
}

// attemptsOf are those that are for what is in the room.
func attemptsOf(room string) []attempt {
	if exists(filepath.Join(room, "mount")) {
		return mountAttempts
	}
	return attempts
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestProcess(t *testing.T) { testProcess(t, attempts, "read", "write", "sockets") }

func TestProcessWithMount(t *testing.T) { testProcess(t, mountAttempts, "read", "write", "mount") }

func testProcess(t *testing.T, attempts []attempt, dirs ...string) {
	room := t.TempDir()
	for _, dir := range dirs {
		if err := os.Mkdir(filepath.Join(room, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"read/file", "write/mine", "one", "secret"} {
		if err := os.WriteFile(filepath.Join(room, file), []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../secret", filepath.Join(room, "write", "link")); err != nil {
		t.Fatal(err)
	}
	abstract, err := net.Listen("unix", abstractSocket(room))
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), roomEnv+"="+room)
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !slices.Equal(r.Layers, Available()) {
		t.Errorf("in force are %+v, available %+v", r.Layers, Available())
	}
	force := map[string]bool{}
	for _, l := range r.Layers {
		if force[l.Name] = l.InForce; !l.InForce {
			t.Logf("not tried, for this kernel has it not: %s (%s)", l.Name, l.Note)
		}
	}
	byName := map[string]attempt{}
	for _, a := range attempts {
		byName[a.name] = a
	}
	for _, o := range r.Outcomes {
		a := byName[o.Name]
		layer := nameSeccomp
		if a.file {
			layer = nameLandlock
		}
		if a.want != 0 && !force[layer] {
			continue
		}
		if o.Errno != a.want || a.want == 0 && o.Error != "" {
			t.Errorf("thread %s: %s: %q (%v), want %v", o.Thread, o.Name, o.Error, o.Errno, a.want)
		}
	}
	if want := 5 * len(attempts); len(r.Outcomes) != want {
		t.Errorf("%d outcomes, want %d", len(r.Outcomes), want)
	}
}

// TestFilterOfOtherProcessor: numbers of system calls of another processor mean something else.
func TestFilterOfOtherProcessor(t *testing.T) {
	filter := program(1, Rules{WriteMounts: []string{"/"}})
	if filter[0].K != dataArch || filter[1].K != architecture || filter[2].K != refuse(unix.EPERM) {
		t.Errorf("the filter begins with %+v", filter[:3])
	}
	if len(filter) > 4096 { // BPF_MAXINSNS
		t.Errorf("%d instructions", len(filter))
	}
}

// limited wants the limits to be in force.
func limited(string) (failed error) {
	for resource, value := range maxLimits {
		var now unix.Rlimit
		if err := unix.Getrlimit(resource, &now); err != nil || now.Cur > value || now.Max > value {
			failed = errors.Join(failed, fmt.Errorf("resource %d: %+v, want at most %d: %w", resource, now, value, err))
		}
	}
	return failed
}
