//go:build unix

package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func terminate(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// flockDescriptor locks a descriptor's file for as long as any process has it open.
func flockDescriptor(fd int) error { return syscall.Flock(fd, syscall.LOCK_EX) }

// freeze stops a process (SIGSTOP).
func freeze(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// One thread takes the signal and stops the others: on a busy computer they run until then.
	running := func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // none where there is no /proc
		return slices.ContainsFunc(threads, func(name string) bool {
			stat, err := os.ReadFile(name)
			_, state, _ := strings.Cut(string(stat), ") ")
			return err == nil && !strings.HasPrefix(state, "T")
		})
	}
	for wait := time.Now().Add(time.Minute); running(); time.Sleep(time.Millisecond) {
		if time.Now().After(wait) {
			t.Fatal("the process still runs")
		}
	}
}

// tryAsStranger runs in a process that root starts: it becomes another user and tries to connect to a daemon.
func tryAsStranger(socket, token string) error {
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(strangerID), syscall.Setuid(strangerID)); err != nil {
		return err
	}
	conn, err := net.Dial("unix", socket)
	if err == nil {
		err = handshake(conn, token, Control)
	}
	fmt.Println("admitted:", err == nil, err)
	return nil
}

// strangerID is a user without files.
const strangerID = 65534

// TestStartOnABusyHost: a daemon that lives and has no time to answer is asked again.
func TestStartOnABusyHost(t *testing.T) {
	d, held := startUsed(t, Config{})
	defer func() { _ = held.Close() }()
	p := d.paths()
	st, err := p.readState("dev")
	if err != nil {
		t.Fatal(err)
	}
	answering := p.socket() + ".2"
	if err := os.Rename(p.socket(), answering); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", p.socket())
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	defer work.Wait()
	defer func() { _ = l.Close() }()
	work.Go(func() {
		for first := true; ; first = false {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer func() { _ = conn.Close() }()
				if first {
					_, _ = io.Copy(io.Discard, conn) // until it is given up
					return
				}
				daemon, err := net.Dial("unix", answering)
				if err != nil {
					t.Error(err)
					return
				}
				work.Go(func() { _, _ = io.Copy(conn, daemon) })
				_, _ = io.Copy(daemon, conn)
				_ = daemon.Close()
			})
		}
	})
	c := &child{store: d.store, name: "dev", paths: p, pid: st.Pid, over: make(chan struct{})}
	c.kill = func() error {
		t.Error("it is killed")
		close(c.over)
		return nil
	}
	client, err := c.await(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}
