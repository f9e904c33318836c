//go:build linux

package guest

import (
	"bufio"
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
)

// shellRoot holds a directory for each shell.
var shellRoot = "/run/agentvm"

// shell is a shell whose script is a FIFO that the supervisor writes line by line. For command number 3 the line is
//
//	\command . DIR/3.sh <DIR/3.in >DIR/3.out 2>DIR/3.err; \command echo $? >DIR/status
//
// The command is a file that is sourced, so it runs in the shell itself: directory, variables and functions stay, a return
// or a break ends only the command, and so does a syntax error, because "command" takes from "." the power to end the
// shell. Output goes to FIFOs made for this command alone, so no markers have to be found in a stream, and a process that one
// command left in the background cannot write into the output of the next. The status comes through a FIFO too. No
// descriptor is reserved: a command may use any number.
//
// This works with dash, BusyBox ash and bash.
type shell struct {
	s      *Supervisor
	dir    string
	p      *program // the shell's own process; its job is not used
	script *os.File
	status *os.File

	mu      sync.Mutex
	count   int
	current *command
	closed  bool
}

// OpenShell starts a shell; see guestrpc.Handler.
func (s *Supervisor) OpenShell(r guestrpc.Request) (guestrpc.Commands, error) {
	if err := s.refuseWhenDown(); err != nil {
		return nil, err
	}
	u, err := s.users.find(r.User)
	if err != nil {
		return nil, err
	}
	sh := &shell{s: s}
	if err := sh.makeDir(u); err != nil {
		return nil, err
	}
	if err := sh.launch(r, u); err != nil {
		sh.remove()
		return nil, err
	}
	s.tasks.Add(1)
	go sh.watch()
	return sh, nil
}

func (sh *shell) makeDir(u account) error {
	s := sh.s
	s.mu.Lock()
	s.shells++
	sh.dir = shellRoot + "/shell." + strconv.Itoa(s.shells)
	s.mu.Unlock()
	if err := os.MkdirAll(shellRoot, 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(sh.dir, 0o700); err != nil {
		return err
	}
	var err error
	if sh.script, err = sh.fifo("script", os.O_RDWR); err == nil {
		sh.status, err = sh.fifo("status", os.O_RDWR)
	}
	if err == nil {
		err = sh.chown(u, "", "/script", "/status")
	}
	if err != nil {
		sh.remove()
	}
	return err
}

// fifo makes and opens a FIFO in the shell's directory. One that is open for reading and writing
// neither blocks nor ends.
func (sh *shell) fifo(name string, flags int) (*os.File, error) {
	fd, err := sh.openFIFO(name, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (sh *shell) openFIFO(name string, flags int) (int, error) {
	path := sh.dir + "/" + name
	if err := unix.Mkfifo(path, 0o600); err != nil && err != unix.EEXIST {
		return 0, &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	fd, err := syscall.Open(path, flags|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// chown changes the owner of files in the shell's directory to its user.
func (sh *shell) chown(u account, names ...string) error {
	if u.uid == 0 && u.gid == 0 {
		return nil
	}
	for _, name := range names {
		if err := os.Chown(sh.dir+name, int(u.uid), int(u.gid)); err != nil {
			return err
		}
	}
	return nil
}

func (sh *shell) launch(r guestrpc.Request, u account) error {
	path := "/bin/sh"
	if len(r.Args) > 0 && r.Args[0] != "" {
		path = r.Args[0]
	}
	sh.p = &program{s: sh.s, job: newJob(&sh.s.files), exited: make(chan struct{}), user: u}
	if err := sh.s.addProgram(sh.p); err != nil {
		return err
	}
	q := guestrpc.Request{Args: []string{path, sh.dir + "/script"}, Dir: r.Dir, User: r.User}
	err := sh.p.fork(path, q, u, environment(u, false, sh.s.baseEnv(), r.Env), [3]int{sh.s.null, sh.s.null, sh.s.null})
	if err != nil {
		sh.s.removeProgram(sh.p)
	}
	return err
}

// watch ends a running command when the shell ends.
func (sh *shell) watch() {
	defer sh.s.tasks.Done()
	sh.report()
	<-sh.p.exited
	sh.mu.Lock()
	sh.closed = true
	c := sh.current
	sh.current = nil
	sh.mu.Unlock()
	if c != nil {
		status := sh.p.status
		status.ShellEnded = true
		c.finish(status)
	}
	sh.p.retire()
	sh.remove()
}

// report reads the status FIFO and ends commands, until the shell has ended.
func (sh *shell) report() {
	stop := make(chan struct{})
	go func() {
		<-sh.p.exited
		_ = sh.status.Close()
		close(stop)
	}()
	lines := bufio.NewScanner(sh.status)
	for lines.Scan() {
		sh.handleStatus(lines.Text())
	}
	<-stop
}

// handleStatus handles a line of the status FIFO: "o" when a command's streams are open, then its status.
func (sh *shell) handleStatus(line string) {
	sh.mu.Lock()
	c := sh.current
	code, err := strconv.ParseUint(strings.TrimSpace(line), 10, 8)
	if err == nil {
		sh.current = nil
	}
	sh.mu.Unlock()
	switch {
	case c == nil:
	case err == nil:
		c.finish(guestrpc.ExitStatus{Code: int(code)})
	case line == "o":
		c.opened()
	}
}

// remove deletes the shell's directory.
func (sh *shell) remove() {
	for _, f := range []*os.File{sh.script, sh.status} {
		if f != nil {
			_ = f.Close()
		}
	}
	_ = os.RemoveAll(sh.dir)
}

// Detach lets the shell finish what it is running. Then it finds the end of its script.
func (sh *shell) Detach() {
	_ = sh.script.Close()
	sh.p.Detach()
}

// Release kills the shell and every process that it started.
func (sh *shell) Release() { sh.p.Release() }

// Run starts a command; see guestrpc.Commands.
func (sh *shell) Run(ctx context.Context, r guestrpc.Request) (guestrpc.Program, guestrpc.Delivery, error) {
	c, err := sh.begin(r)
	if err != nil {
		if r.Stdin != nil {
			r.Stdin.Close()
		}
		return nil, guestrpc.Delivery{}, err
	}
	return c.hold(ctx, r.Hold)
}

// begin makes the command's streams and tells the shell to run it.
func (sh *shell) begin(r guestrpc.Request) (*command, error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch {
	case sh.closed:
		return nil, &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.ESRCH, Message: "the shell has ended"}
	case sh.current != nil:
		return nil, &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.EBUSY, Message: "the shell is running another command"}
	}
	sh.count++
	c := &command{job: newJob(&sh.s.files), sh: sh, name: strconv.Itoa(sh.count), done: make(chan struct{})}
	line, err := c.prepare(r)
	if err == nil {
		_, err = sh.script.WriteString(line)
	}
	if err != nil {
		c.closeStreams()
		return nil, err
	}
	sh.current = c
	c.start(r.Stdin)
	return c, nil
}
