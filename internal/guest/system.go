//go:build linux

package guest

import (
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
)

// configureSystem sets what is the same in each guest and no mount.
func configureSystem(o options) error {
	if err := syscall.Sethostname([]byte(o.hostname)); err != nil {
		return os.NewSyscallError("set host name", err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	linkDevices()
	for _, s := range settings {
		_ = os.WriteFile(s.path, []byte(s.value), 0) // a kernel without the setting needs none
	}
	offerHugePages()
	slowMonitor()
	return setLimits()
}

// settings are those of the kernel that differ from its defaults.
var settings = []struct{ path, value string }{
	// Else the kernel looks twice a second for memory to compact before anything needs it.
	{"/proc/sys/vm/compaction_proactiveness", "0"},
	// What watches source trees takes a watch for each directory; the default of a small machine is 8192. Instances are for each user.
	{"/proc/sys/fs/inotify/max_user_watches", "524288"},
	{"/proc/sys/fs/inotify/max_user_instances", "1024"},
	// Any group may send echo requests without privileges, as under systemd.
	{"/proc/sys/net/ipv4/ping_group_range", "0 2147483647"},
}

// offerHugePages lets programs advise their memory to be in huge pages, which the kernel switches off in machines of less than 512 MiB. It
// then also keeps 22 MiB free for them, which is too much of a small machine.
func offerHugePages() {
	const enabled, reserve = "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/sys/vm/min_free_kbytes"
	before, err := os.ReadFile(reserve)
	if err == nil && os.WriteFile(enabled, []byte("madvise"), 0) == nil {
		_ = os.WriteFile(reserve, before, 0)
	}
}

const (
	// monitorSlack is how late the runtime's monitor thread may wake up, in nanoseconds.
	monitorSlack = 10_000_000
	// usualSlack is the kernel's default, in nanoseconds. Programs keep it.
	usualSlack = 50_000
)

// slowMonitor makes Go's monitor thread (runtime.sysmon) sleep longer. While anything runs, that thread would wake up every 20 us,
// which in this machine is every 2000 instructions, each time with two switches of threads; with the larger slack the kernel wakes it
// every 10 ms. The runtime starts it before all other threads except the first, so it has the second lowest number.
func slowMonitor() {
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

// linkDevices completes /dev as programs expect it. It ignores errors: a program that needs a missing device reports it.
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

// setLimits sets the limits that programs inherit: many descriptors, but few enough by default that a program which closes them
// all does so quickly; no core files.
func setLimits() error {
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 16384, Max: 1 << 20}); err != nil {
		return os.NewSyscallError("limit of open files", err)
	}
	return os.NewSyscallError("limit of core files", syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{Cur: 0, Max: unix.RLIM_INFINITY}))
}

// ignoreChildSignals sets SIGCHLD to its default, which is to do nothing: the reaper waits in wait4, and Go's handler would only
// cost an interruption for each child. (With SIG_IGN children would end without a status.)
func ignoreChildSignals() {
	var action [4]uint64 // handler SIG_DFL, no flags, empty mask
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(syscall.SIGCHLD), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}

// noNewPrivileges holds for every thread, and so for everything started from now on.
func noNewPrivileges() error {
	_, _, errno := syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("set no_new_privs", errno)
	}
	return nil
}

func guestInfo() (guestrpc.GuestInfo, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return guestrpc.GuestInfo{}, os.NewSyscallError("uname", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return guestrpc.GuestInfo{}, os.NewSyscallError("read the clock", err)
	}
	return guestrpc.GuestInfo{Release: unix.ByteSliceToString(name.Release[:]), Boot: time.Duration(now.Nano())}, nil
}
