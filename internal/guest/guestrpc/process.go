package guestrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/guest/guestrpc/guestwire"
	"agentvm/internal/host/errno"
)

// Process is a program running in the guest, or one that ran there.
type Process struct {
	c      *Client
	remote guestwire.Process // null once the program has ended
	stop   context.CancelFunc
	done   chan struct{} // closed after status and err are set
	status ExitStatus
	err    error
}

// Exec starts a program and its streams' goroutine. It returns once the guest has answered: at the latest after
// ClientConfig.Hold, a terminal's program at once. ctx covers the start only; when it ends first, the program is killed.
// A program that cannot be found or executed is no error here but an ExitStatus with Code 127 or 126, as in a shell;
// a Dir or User that does not exist is an *Error.
//
// Every Process must be waited for, or killed and waited for.
func (c *Client) Exec(ctx context.Context, p ExecParams) (*Process, error) {
	if len(p.Args) == 0 {
		return nil, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: "exec: no program given"}
	}
	future, release := c.supervisor.Exec(ctx, func(call guestwire.Supervisor_exec_Params) error {
		w, err := call.NewParams()
		if err != nil {
			return err
		}
		if p.Terminal == nil {
			w.SetHoldMillis(uint16(c.cfg.Hold / time.Millisecond))
		}
		return p.Write(w)
	})
	defer release()
	r, err := future.Struct()
	if err != nil {
		return nil, c.fault("exec", err)
	}
	return c.adopt(r, p.Stdout, p.Stderr)
}

// Adopt continues with a program that was started with that Key before the machine was saved, and that Restored.Programs had. received is how
// many bytes of output, of both streams together, the host had got when the machine was saved: the writers get what follows. stdin is what
// follows of the input of a program that was started with some; nil ends it. When there is no such program it is an *Error with ENOENT.
func (c *Client) Adopt(ctx context.Context, key string, received uint64, stdin io.Reader, stdout, stderr io.Writer) (*Process, error) {
	future, release := c.supervisor.Adopt(ctx, func(call guestwire.Supervisor_adopt_Params) error {
		call.SetReceived(received)
		if stdin != nil {
			if err := call.SetStdin(newStdin(stdin)); err != nil {
				return err
			}
		}
		return call.SetKey(key)
	})
	defer release()
	r, err := capnprpc.Await(c.fault, "continue with a program", future.Struct)
	if err != nil {
		return nil, err
	}
	return c.launch(r.Process(), output{}, stdout, stderr), nil
}

func (p ExecParams) Write(w guestwire.ExecParams) error {
	if err := errors.Join(capnprpc.WriteTexts(w.NewArgs, p.Args), capnprpc.WriteTexts(w.NewEnv, p.Env), w.SetDir(p.Dir), w.SetUser(p.User), w.SetKey(p.Key)); err != nil {
		return err
	}
	if p.Terminal != nil {
		size, err := w.NewTerminal()
		if err != nil {
			return err
		}
		p.Terminal.Write(size)
	}
	return writeInput(w, p.Stdin)
}

func (s Size) Write(w guestwire.Size) {
	w.SetColumns(s.Columns)
	w.SetRows(s.Rows)
}

// launched is what exec and run return alike.
type launched interface {
	Process() guestwire.Process
	Output() (guestwire.Output, error)
	Failure() (streamwire.Failure, error)
}

// adopt makes a Process of an answer and starts its goroutine. It copies what it keeps of the answer.
func (c *Client) adopt(r launched, stdout, stderr io.Writer) (*Process, error) {
	if err := capnprpc.FailureOf(r.Failure()); err != nil {
		return nil, err
	}
	output, err := r.Output()
	if err != nil {
		return nil, err
	}
	first, err := readOutput(output)
	if err != nil {
		return nil, err
	}
	return c.launch(r.Process(), first, stdout, stderr), nil
}

// launch starts the goroutine of a Process.
func (c *Client) launch(remote guestwire.Process, first output, stdout, stderr io.Writer) *Process {
	ctx, stop := context.WithCancel(context.Background())
	p := &Process{c: c, remote: remote.AddRef(), stop: stop, done: make(chan struct{})}
	c.running.Add(1)
	go p.pump(ctx, first, &sink{w: stdout}, &sink{w: stderr})
	return p
}

// pump moves output until the exit.
func (p *Process) pump(ctx context.Context, o output, stdout, stderr *sink) {
	defer p.c.running.Done()
	defer close(p.done)
	defer p.stop()
	defer p.remote.Release()
	for {
		stdout.write(o.stdout)
		stderr.write(o.stderr)
		if o.exit != nil {
			p.status, p.err = *o.exit, errors.Join(stdout.err, stderr.err)
			return
		}
		var err error
		if o, err = p.poll(ctx); err != nil {
			p.err = p.c.fault("wait", err)
			return
		}
	}
}

func (p *Process) poll(ctx context.Context) (output, error) {
	future, release := p.remote.Poll(ctx, nil)
	defer release()
	r, err := future.Struct()
	if err != nil {
		return output{}, err
	}
	w, err := r.Output()
	if err != nil {
		return output{}, err
	}
	return readOutput(w)
}

// Wait returns when the program has ended and all its output has been written. Output of processes that it leaves running is taken
// until 100 ms have passed without any, and discarded afterwards. When ctx ends first, the program runs on.
func (p *Process) Wait(ctx context.Context) (ExitStatus, error) {
	select {
	case <-p.done:
		return p.status, p.err
	case <-ctx.Done():
		return ExitStatus{}, ctx.Err()
	}
}

// Done is closed when Wait returns at once.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends a signal (Linux number) to the program's process group. A program that has ended gives an *Error with
// ESRCH.
func (p *Process) Signal(ctx context.Context, signal int) error {
	if p.ended() {
		return errEnded
	}
	future, release := p.remote.Signal(ctx, func(w guestwire.Process_signal_Params) error {
		w.SetNumber(int32(signal))
		return nil
	})
	defer release()
	return capnprpc.Done(p.fault, "signal", future.Struct)
}

// Kill ends the program and everything that it started, in whatever group or session that is. It is no error when the program has
// ended. Wait still has to be called.
func (p *Process) Kill(ctx context.Context) error {
	if p.ended() {
		return nil
	}
	future, release := p.remote.Kill(ctx, nil)
	defer release()
	r, err := future.Struct()
	if err == nil {
		return capnprpc.FailureOf(r.Failure())
	}
	if err = p.fault("kill", err); errors.Is(err, errEnded) {
		return nil
	}
	return err
}

// Resize changes the size of the program's terminal.
func (p *Process) Resize(ctx context.Context, columns, rows uint16) error {
	if p.ended() {
		return errEnded
	}
	future, release := p.remote.Resize(ctx, func(w guestwire.Process_resize_Params) error {
		size, err := w.NewSize()
		if err != nil {
			return err
		}
		Size{columns, rows}.Write(size)
		return nil
	})
	defer release()
	return capnprpc.Done(p.fault, "resize", future.Struct)
}

var errEnded = &capnprpc.Error{Kind: capnprpc.KindSystem, Errno: errno.ESRCH, Message: "the program has ended"}

func (p *Process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return !p.remote.IsValid()
	}
}

// fault explains an error of a call: the program may have ended meanwhile.
func (p *Process) fault(what string, err error) error {
	if p.ended() {
		return errEnded
	}
	return p.c.fault(what, err)
}

// output is one delivery, with copied bytes.
type output struct {
	stdout, stderr []byte
	exit           *ExitStatus
}

func readOutput(w guestwire.Output) (o output, err error) {
	if o.stdout, err = capnprpc.CopyData(w.Stdout()); err != nil {
		return o, err
	}
	if o.stderr, err = capnprpc.CopyData(w.Stderr()); err != nil {
		return o, err
	}
	exit, err := w.Exit()
	if err != nil || !exit.IsValid() {
		return o, err
	}
	cause, err := exit.Failure()
	if err != nil {
		return o, err
	}
	o.exit = &ExitStatus{
		Code: int(exit.Code()), Signal: int(exit.Signal()),
		Cause: capnprpc.FailureOf(cause, nil), ShellEnded: w.ShellEnded(),
	}
	if o.exit.Signal != 0 {
		o.exit.Code = 128 + o.exit.Signal
	}
	return o, nil
}

// sink writes until the first error and remembers it.
type sink struct {
	w   io.Writer
	err error
}

func (s *sink) write(b []byte) {
	if len(b) == 0 || s.w == nil || s.err != nil {
		return
	}
	if _, err := s.w.Write(b); err != nil {
		s.err = fmt.Errorf("write output: %w", err)
	}
}
