//go:build linux && (riscv64 || arm64)

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refuse makes the system call called `number` fail with EPERM: load the number, compare, answer.
func refuse(number uint32) []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: number, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
}

// seccomp refuses getpriority to this thread alone, which ends with the goroutine.
func seccomp() (string, error) {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		result <- refuseGetpriority()
	}()
	return "", <-result
}

func refuseGetpriority() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := refuse(unix.SYS_GETPRIORITY)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	if _, err := unix.Getpriority(unix.PRIO_PROCESS, 0); !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("getpriority under the filter: %v, want EPERM", err)
	}
	return nil
}

func landlock() (string, error) {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return "", errno
	}
	return fmt.Sprint("version ", version), nil
}

func ioUring() (string, error) {
	var parameters [120]byte // struct io_uring_params
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 2, uintptr(unsafe.Pointer(&parameters)), 0)
	if errno != 0 {
		return "", errno
	}
	return "", unix.Close(int(fd))
}

// namespaces starts this program again in new ones of every kind, where it is pid 1 once more.
func namespaces() (string, error) {
	child := exec.Command("/proc/self/exe", "child")
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWNS |
			unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
	}
	output, err := child.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("child: %w: %s", err, output)
	}
	_, err = os.Stat("/proc/self/ns/time")
	return strings.TrimSpace(string(output)), err
}

func namespaceChild() int {
	if err := unix.Sethostname([]byte("inside")); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Printf("pid %d uid %d", os.Getpid(), os.Getuid())
	return 0
}
