//go:build linux

package guest

import (
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// settle sets what is neither a mount nor the host's to say.
func settle(o options) error {
	if err := syscall.Sethostname([]byte(o.hostname)); err != nil {
		return os.NewSyscallError("set host name", err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	linkDevices()
	beQuiet()
	restMonitor()
	return setLimits()
}

// beQuiet ends what the kernel would do twice a second in a machine that waits: looking for memory to compact ahead of
// need. Where the kernel has no such setting there is nothing to end.
func beQuiet() {
	_ = os.WriteFile("/proc/sys/vm/compaction_proactiveness", []byte("0\n"), 0)
}

const (
	// monitorSlack is how late the runtime's monitor may wake up, in nanoseconds.
	monitorSlack = 10_000_000
	// usualSlack is the kernel's default, which programs are to have.
	usualSlack = 50_000
)

// restMonitor lets the thread of Go's runtime that watches all others (runtime.sysmon) sleep longer. While anything runs, it wants
// to wake up every 20 us, which on this machine is every 2000 instructions, each time with two switches of threads; the kernel
// now bundles that into 10 ms. The runtime starts that thread before all others, so it has the lowest number but for the first.
func restMonitor() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	own, monitor := os.Getpid(), 0
	for _, entry := range threads {
		if tid, err := strconv.Atoi(entry.Name()); err == nil && tid != own && (monitor == 0 || tid < monitor) {
			monitor = tid
		}
	}
	_ = os.WriteFile("/proc/"+strconv.Itoa(monitor)+"/timerslack_ns", strconv.AppendInt(nil, monitorSlack, 10), 0)
}

// linkDevices completes /dev as programs expect it. What the root or kernel lacks is not missed before it is used.
func linkDevices() {
	for link, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	} {
		_ = os.Symlink(target, link)
	}
	for _, device := range []string{"/dev/fuse", "/dev/net/tun"} {
		_ = os.Chmod(device, 0o666)
	}
}

// loopbackUp brings lo up; the kernel gives it 127.0.0.1 and ::1 by itself.
func loopbackUp() error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = syscall.Close(fd) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(request)))
	if errno != 0 {
		return os.NewSyscallError("bring up lo", errno)
	}
	return nil
}

// setLimits sets what programs inherit: many descriptors, but not so many by default that a program which closes them
// all takes long; no core files.
func setLimits() error {
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 16384, Max: 1 << 20}); err != nil {
		return os.NewSyscallError("limit of open files", err)
	}
	return os.NewSyscallError("limit of core files", syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{Cur: 0, Max: unix.RLIM_INFINITY}))
}
