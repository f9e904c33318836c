//go:build linux

package guest

import (
	"context"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
)

// program is one exec: a process group in a session of its own, and its streams.
//
//	launch ──► hold ──exit in time──► answer carries everything; nothing remains
//	              └──time is up──► stream ──► job is polled by the host until the exit
type program struct {
	*job
	s        *Supervisor
	group    *group // nil without cgroups; under job.mu
	pid      int
	streams  [2]int          // read ends of stdout and stderr until stream hands them to the job
	terminal *quietFile      // master, or nil
	input    *os.File        // write end of the stdin pipe, when a goroutine feeds it
	ctx      context.Context // of that goroutine
	cancel   context.CancelFunc
	exited   chan struct{} // closed by the reaper, after status is set
	fed      chan struct{} // under job.mu: closed when the goroutine that feeds it has ended; nil: there never was one
	status   guestrpc.ExitStatus
	once     sync.Once
	released atomic.Bool // killed because the host has dropped it
	user     account     // of a shell
	retired  bool        // under job.mu: the host has the exit or has dropped the program
	keyed    bool        // a later session may adopt it
}

// launch starts the process and, if there is more input than was sent, the goroutine that feeds it.
func (p *program) launch(r guestrpc.Request, u account, env []string) error {
	path, err := searchPath(r.Args[0], lookup(env, "PATH"), r.Dir)
	if err != nil {
		return err
	}
	if r.Stdin != nil {
		p.ctx, p.cancel = context.WithCancel(context.Background())
	}
	var child [3]int
	if r.Terminal != nil {
		err = p.openTerminal(&child, *r.Terminal, u)
	} else {
		err = p.openPipes(&child, r)
	}
	if err != nil {
		return err
	}
	err = p.fork(path, r, u, env, child)
	p.closeChild(child)
	if err != nil {
		p.closeOwn()
		return err
	}
	if r.Stdin != nil {
		p.feed(r.Stdin)
	}
	return nil
}

func (p *program) fork(path string, r guestrpc.Request, u account, env []string, child [3]int) error {
	attr := &syscall.ProcAttr{
		Dir: r.Dir, Env: env,
		Files: []uintptr{uintptr(child[0]), uintptr(child[1]), uintptr(child[2])},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: p.terminal != nil},
	}
	if attr.Dir == "" {
		attr.Dir = u.home
	}
	if u.uid != 0 || u.gid != 0 || len(u.groups) > 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: u.uid, Gid: u.gid, Groups: u.groups}
	}
	if p.group = p.s.groups.acquire(); p.group != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, p.group.fd
	}
	pid, err := p.s.reaper.start(path, r.Args, attr, p.ended)
	if err == syscall.ENOENT && r.Dir == "" && attr.Dir != "/" && isMissing(attr.Dir) {
		attr.Dir = "/" // a home that does not exist, as login(1) does
		pid, err = p.s.reaper.start(path, r.Args, attr, p.ended)
	}
	if err != nil {
		p.s.groups.release(p.group)
		return explain(err, path, r, attr.Dir)
	}
	p.pid = pid
	return nil
}

// openPipes makes the pipes. Without input, /dev/null takes the place of the first.
func (p *program) openPipes(child *[3]int, r guestrpc.Request) error {
	in, err := p.openInput(r)
	if err != nil {
		return err
	}
	var out, errs [2]int
	if err = syscall.Pipe2(out[:], syscall.O_CLOEXEC); err == nil {
		if err = syscall.Pipe2(errs[:], syscall.O_CLOEXEC); err == nil {
			*child = [3]int{in, out[1], errs[1]}
			p.streams = [2]int{out[0], errs[0]}
			return nil
		}
		_ = syscall.Close(out[0])
		_ = syscall.Close(out[1])
	}
	if in != p.s.null {
		_ = syscall.Close(in)
	}
	if p.input != nil {
		_ = p.input.Close()
	}
	return os.NewSyscallError("pipe", err)
}

// openInput returns the child's standard input. Input in the request fits into a pipe and is written at once.
func (p *program) openInput(r guestrpc.Request) (int, error) {
	if r.Stdin == nil && len(r.Input) == 0 {
		return p.s.null, nil
	}
	if len(r.Input) > readSize {
		return 0, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EMSGSIZE, Message: "exec: more than 64 KiB of input in the request"}
	}
	var in [2]int
	if err := syscall.Pipe2(in[:], syscall.O_CLOEXEC); err != nil {
		return 0, os.NewSyscallError("pipe", err)
	}
	if _, err := syscall.Write(in[1], r.Input); err != nil && len(r.Input) > 0 {
		_ = syscall.Close(in[0])
		_ = syscall.Close(in[1])
		return 0, os.NewSyscallError("write input", err)
	}
	if r.Stdin == nil {
		return in[0], syscall.Close(in[1])
	}
	p.input = pollable(in[1], "stdin")
	return in[0], nil
}

// pollable makes a file of a descriptor whose Read and Write can be interrupted by Close.
func pollable(fd int, name string) *os.File {
	_ = syscall.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), name)
}

// closeChild closes the child's ends in this process.
func (p *program) closeChild(child [3]int) {
	if p.terminal != nil {
		_ = syscall.Close(child[0]) // the same three times
		return
	}
	if child[0] != p.s.null {
		_ = syscall.Close(child[0])
	}
	_ = syscall.Close(child[1])
	_ = syscall.Close(child[2])
}

// closeOwn closes this process's ends after a failed start.
func (p *program) closeOwn() {
	if p.terminal != nil {
		_ = p.terminal.Close()
		return
	}
	_ = syscall.Close(p.streams[0])
	_ = syscall.Close(p.streams[1])
	if p.input != nil {
		_ = p.input.Close()
	}
}

// feed starts the goroutine that moves standard input from the host, after what an earlier host has sent. It ends with the input, with the
// program, or when no process has the other end open.
func (p *program) feed(in *guestrpc.Input) {
	p.mu.Lock()
	earlier, done := p.fed, make(chan struct{})
	p.fed = done
	p.mu.Unlock()
	p.s.tasks.Add(1)
	go func() {
		defer p.s.tasks.Done()
		defer close(done)
		defer in.Close()
		if earlier != nil {
			<-earlier
		}
		if p.move(in) && p.input != nil {
			_ = p.input.Close()
		}
	}()
}

// move reports whether the input has ended; otherwise the next host has more.
func (p *program) move(in *guestrpc.Input) (ended bool) {
	var w io.Writer = p.input
	if p.terminal != nil {
		w = p.terminal
	}
	b := p.s.files.buffer()
	defer p.s.files.recycle(b)
	for {
		n, err := in.Read(p.ctx, b[:])
		p.job.input.Add(1)
		if _, werr := w.Write(b[:n]); werr != nil {
			return true
		}
		switch {
		case err == nil:
			continue
		case err == io.EOF && p.terminal != nil:
			_, _ = w.Write([]byte{4}) // what a user types to end input (^D)
		case err == io.EOF || p.ctx.Err() != nil:
		case p.keyed && in.Kept():
			return false
		default:
			p.s.logToHost(slog.LevelWarn, "standard input broke off: "+err.Error())
		}
		return true
	}
}

// stopFeeding ends the goroutine of feed, even when it waits for room in a pipe that another process keeps open.
func (p *program) stopFeeding() {
	if p.cancel == nil {
		return
	}
	p.cancel()
	if p.input != nil {
		_ = p.input.Close()
	}
}

// ended is called by the reaper, and does not block.
func (p *program) ended(status syscall.WaitStatus) {
	p.status = exitStatus(status)
	close(p.exited)
	p.stopFeeding()
	p.s.removeProgram(p)
	p.end(p.status)
}

func exitStatus(status syscall.WaitStatus) guestrpc.ExitStatus {
	if status.Signaled() {
		return guestrpc.ExitStatus{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
	}
	return guestrpc.ExitStatus{Code: status.ExitStatus()}
}

// hold waits at most limit for the end: most programs are short, and then one answer carries everything. Otherwise it returns held, which is the
// program or its holder.
func (p *program) hold(ctx context.Context, limit time.Duration, held guestrpc.Program) (guestrpc.Program, guestrpc.Delivery, error) {
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		select {
		case <-p.exited:
			if d, ok := p.finish(); ok {
				return nil, d, nil
			}
		case <-t.C:
		case <-ctx.Done():
			if guestrpc.Keeps(ctx) {
				defer held.Detach()
			} else {
				defer held.Release()
			}
		}
	}
	p.stream()
	return held, guestrpc.Delivery{}, nil
}

// stream hands the streams to the job's goroutines.
func (p *program) stream() {
	if p.terminal != nil {
		p.read(0, p.terminal)
		return
	}
	for i, fd := range p.streams {
		if fd >= 0 {
			p.read(i, newQuietFile(fd))
		}
	}
}

// Poll waits for output or the end; see guestrpc.Program.
func (p *program) Poll(ctx context.Context) (guestrpc.Delivery, error) {
	d, err := p.job.Poll(ctx)
	if d.Exit != nil {
		p.retire()
	}
	return d, err
}

// retire releases the cgroup. From now on Kill does nothing.
func (p *program) retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.s.groups.release(p.group)
	p.retired, p.group = true, nil
}

// Signal signals the process group.
func (p *program) Signal(number int) error {
	select {
	case <-p.exited:
		return &capnprpc.Error{Kind: capnprpc.KindSystem, Errno: errno.ESRCH, Message: "the program has ended"}
	default:
		return os.NewSyscallError("kill", syscall.Kill(-p.pid, syscall.Signal(number)))
	}
}

// Kill ends everything the program started. It is no error when nothing is left.
func (p *program) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retired {
		return nil
	}
	if p.group != nil {
		return p.group.kill()
	}
	if err := syscall.Kill(-p.pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return os.NewSyscallError("kill", err)
	}
	return nil
}

// Detach lets the program continue without the host: its output is read and discarded.
func (p *program) Detach() {
	p.once.Do(func() {
		p.stopFeeding()
		p.abandon()
		p.retire()
	})
}

// Release is called when the host has dropped the program.
func (p *program) Release() {
	p.once.Do(func() {
		p.released.Store(true)
		select {
		case <-p.exited: // the processes that it left continue
		default:
			_ = p.Kill()
		}
		p.abandon()
		p.retire()
	})
}
