package guestrpc

import (
	"context"
	"errors"
	"io"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// deliveryResults are the fields that the results of exec and run share.
type deliveryResults interface {
	capnprpc.Results
	NewOutput() (guestwire.Output, error)
	SetProcess(guestwire.Process) error
}

func deliver(c *capnprpc.Conn, r deliveryResults, p Program, d Delivery, err error) error {
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	w, err := r.NewOutput()
	if err != nil {
		return err
	}
	if err := d.write(w); err != nil {
		return err
	}
	if p == nil {
		return nil
	}
	return r.SetProcess(guestwire.Process_ServerToClient(&process{p, c}))
}

func (d Delivery) write(w guestwire.Output) error {
	if len(d.Stdout) > 0 {
		if err := w.SetStdout(d.Stdout); err != nil {
			return err
		}
	}
	if len(d.Stderr) > 0 {
		if err := w.SetStderr(d.Stderr); err != nil {
			return err
		}
	}
	if d.Exit == nil {
		return nil
	}
	w.SetShellEnded(d.Exit.ShellEnded)
	e, err := w.NewExit()
	if err != nil {
		return err
	}
	e.SetSignal(uint8(d.Exit.Signal))
	e.SetCode(uint8(d.Exit.Code))
	if d.Exit.Cause == nil {
		return nil
	}
	f, err := e.NewFailure()
	if err != nil {
		return err
	}
	return capnprpc.SetFailure(f, d.Exit.Cause)
}

// process serves a Program.
type process struct {
	p Program
	c *capnprpc.Conn
}

func (s *process) Poll(ctx context.Context, call guestwire.Process_poll) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	call.Go()
	d, err := s.p.Poll(ctx)
	if err != nil {
		return err
	}
	w, err := r.NewOutput()
	if err != nil {
		return err
	}
	return d.write(w)
}

func (s *process) Signal(_ context.Context, call guestwire.Process_signal) error {
	return capnprpc.Perform(call.AllocResults, func() error { return s.p.Signal(int(call.Args().Number())) })
}

func (s *process) Kill(_ context.Context, call guestwire.Process_kill) error {
	return capnprpc.Perform(call.AllocResults, s.p.Kill)
}

func (s *process) Resize(_ context.Context, call guestwire.Process_resize) error {
	size, err := call.Args().Size()
	if err != nil {
		return err
	}
	return capnprpc.Perform(call.AllocResults, func() error { return s.p.Resize(Size{size.Columns(), size.Rows()}) })
}

// Shutdown is called when the host has dropped the capability.
func (s *process) Shutdown() { release(s.c, s.p) }

// release ends a program or shell that the host held, or lets it run on when the session ends with helloKeep.
func release(c *capnprpc.Conn, held interface {
	Release()
	Detach()
}) {
	if Keeps(c.Context()) {
		held.Detach()
		return
	}
	held.Release()
}

// shell serves Commands.
type shell struct {
	commands Commands
	c        *capnprpc.Conn
}

func (s *shell) Run(ctx context.Context, call guestwire.Shell_run) error {
	capnprpc.Deepen(false)
	r, q, err := capnprpc.Begin(call.AllocResults, call.Args().Params, readCommand)
	if err != nil {
		return err
	}
	call.Go()
	p, d, err := s.commands.Run(ctx, q)
	return deliver(s.c, r, p, d, err)
}

func readCommand(w guestwire.CommandParams) (q Request, err error) {
	if q.Line, err = w.Command(); err != nil {
		return q, err
	}
	if q.Input, err = capnprpc.CopyData(w.Input()); err != nil {
		return q, err
	}
	q.Stdin = newInput(w.Stdin())
	q.Hold = time.Duration(w.HoldMillis()) * time.Millisecond
	return q, nil
}

func (s *shell) Shutdown() { release(s.c, s.commands) }

// Input is the host's end of a program's standard input, seen from the guest.
type Input struct {
	remote  guestwire.Stdin
	session context.Context // nil for a shell's commands, which no later session adopts
}

func newInput(remote guestwire.Stdin) *Input {
	if !remote.IsValid() {
		return nil
	}
	return &Input{remote: remote.AddRef()}
}

// in notes the session, for Kept.
func (in *Input) in(c *capnprpc.Conn) *Input {
	if in != nil {
		in.session = c.Context()
	}
	return in
}

// Kept reports, after an error of Read, whether its reason is that the session has ended and programs run on: see Keeps.
func (in *Input) Kept() bool { return in.session != nil && Keeps(in.session) }

// Read asks the host for up to len(b) bytes and waits for at least one. io.EOF comes alone or with the last bytes.
func (in *Input) Read(ctx context.Context, b []byte) (int, error) {
	future, release := in.remote.Read(ctx, func(w guestwire.Stdin_read_Params) error {
		w.SetMax(uint32(min(len(b), capnprpc.MaxChunk)))
		return nil
	})
	defer release()
	r, err := future.Struct()
	if err != nil {
		return 0, err
	}
	data, err := r.Data()
	if err != nil {
		return 0, err
	}
	if len(data) > len(b) {
		return 0, errors.New("host sent more than was asked for")
	}
	n := copy(b, data)
	if r.End() {
		return n, io.EOF
	}
	return n, nil
}

// Close tells the host that the guest reads no more.
func (in *Input) Close() { in.remote.Release() }
