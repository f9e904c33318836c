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
		return os.Rename(filepath.Join(room, "secret"), filepath.Join(room, "write", "mine"))
	}, unix.EACCES, true},
	{"link another file here", func(room string) error {
		return os.Link(filepath.Join(room, "secret"), filepath.Join(room, "write", "mine"))
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
	{"make a FIFO", func(room string) error { return unix.Mkfifo(filepath.Join(room, "write", "fifo"), 0o600) }, unix.EPERM, false},
	{"make a device", func(room string) error {
		return unix.Mknod(filepath.Join(room, "write", "zero"), unix.S_IFCHR|0o600, 1<<8|5)
	}, unix.EPERM, false},

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
	{"keys", raw(unix.SYS_KEYCTL, 0, 0, 0, 0, 0), unix.EPERM, false},
	{"packets", raw(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0), unix.EAFNOSUPPORT, false},
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
		for _, a := range attempts {
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
	r.Layers = Process(Rules{
		Read:  []string{filepath.Join(room, "read"), filepath.Join(room, "one"), filepath.Join(room, "missing")},
		Write: []string{filepath.Join(room, "write")}, Sockets: []string{filepath.Join(room, "sockets")},
	})
	close(begin)
	all.Go(func() { runtime.LockOSThread(); try("new") })
	all.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		panic(err)
	}
}

func TestProcess(t *testing.T) {
	room := t.TempDir()
	for _, dir := range []string{"read", "write", "sockets"} {
		if err := os.Mkdir(filepath.Join(room, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"read/file", "one", "secret"} {
		if err := os.WriteFile(filepath.Join(room, file), []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../secret", filepath.Join(room, "write", "link")); err != nil {
		t.Fatal(err)
	}
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
	filter := program(1)
	if filter[0].K != dataArch || filter[1].K != architectures[runtime.GOARCH] || filter[2].K != refuse(unix.EPERM) {
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
