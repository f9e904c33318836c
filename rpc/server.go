package rpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"agentvm/rpc/wire"
)

// supervisor serves the bootstrap capability from a Handler.
type supervisor struct{ h Handler }

// results is what every method's results have.
type results interface {
	NewFailure() (wire.Failure, error)
}

// reply writes err, if any, into the results: only trouble with the message itself is an error of the call.
func reply(r results, err error) error {
	if err == nil {
		return nil
	}
	f, err2 := r.NewFailure()
	if err2 != nil {
		return err2
	}
	return setFailure(f, err)
}

func (s *supervisor) Start(_ context.Context, call wire.Supervisor_start) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	w, err := call.Args().Params()
	if err != nil {
		return err
	}
	p, err := readStartParams(w)
	if err != nil {
		return err
	}
	info, err := s.h.Start(p, logTo(w.Log().AddRef()))
	if err != nil {
		return reply(r, err)
	}
	out, err := r.NewInfo()
	if err != nil {
		return err
	}
	out.SetBootNanoseconds(uint64(info.Boot))
	return out.SetRelease(info.Release)
}

// logTo makes a function of the host's sink. It waits until the host has the message.
func logTo(sink wire.LogSink) func(slog.Level, string) {
	if !sink.IsValid() {
		return nil
	}
	return func(level slog.Level, text string) {
		_, release := sink.Log(context.Background(), func(w wire.LogSink_log_Params) error {
			w.SetLevel(wire.LogLevel(min(max(int(level)/4+1, 0), 3)))
			return w.SetText(text)
		})
		release()
	}
}

func (s *supervisor) Exec(ctx context.Context, call wire.Supervisor_exec) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	w, err := call.Args().Params()
	if err != nil {
		return err
	}
	q, err := readRequest(w)
	if err != nil {
		return err
	}
	call.Go()
	p, d, err := s.h.Exec(ctx, q)
	return deliver(r, p, d, err)
}

func (s *supervisor) OpenShell(_ context.Context, call wire.Supervisor_openShell) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	w, err := call.Args().Params()
	if err != nil {
		return err
	}
	q, err := readRequest(w)
	if err != nil {
		return err
	}
	call.Go()
	c, err := s.h.OpenShell(q)
	if err != nil {
		return reply(r, err)
	}
	return r.SetShell(wire.Shell_ServerToClient(&shell{c}))
}

func (s *supervisor) PollStats(_ context.Context, call wire.Supervisor_pollStats) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	stats, err := s.h.Stats()
	if err != nil {
		return reply(r, err)
	}
	w, err := r.NewStats()
	if err != nil {
		return err
	}
	writeStats(w, stats)
	return nil
}

func (s *supervisor) SyncClock(_ context.Context, call wire.Supervisor_syncClock) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	t, err := call.Args().Time()
	if err != nil {
		return err
	}
	return reply(r, s.h.SetClock(readTime(t)))
}

func (s *supervisor) PowerOff(_ context.Context, call wire.Supervisor_powerOff) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	call.Go()
	return reply(r, s.h.Shutdown())
}

// readRequest copies what outlives the call.
func readRequest(w wire.ExecParams) (q Request, err error) {
	if q.Args, err = readTexts(w.Args()); err != nil {
		return q, err
	}
	if q.Env, err = readTexts(w.Env()); err != nil {
		return q, err
	}
	if q.Dir, err = w.Dir(); err != nil {
		return q, err
	}
	if q.User, err = w.User(); err != nil {
		return q, err
	}
	size, err := w.Terminal()
	if err != nil {
		return q, err
	}
	if size.IsValid() {
		q.Terminal = &Size{size.Columns(), size.Rows()}
	}
	if q.Input, err = copyData(w.Input()); err != nil {
		return q, err
	}
	q.Stdin = newInput(w.Stdin())
	q.Hold = time.Duration(w.HoldMillis()) * time.Millisecond
	return q, nil
}

// deliveryResults is what the results of exec and run share.
type deliveryResults interface {
	results
	NewOutput() (wire.Output, error)
	SetProcess(wire.Process) error
}

func deliver(r deliveryResults, p Program, d Delivery, err error) error {
	if err != nil {
		return reply(r, err)
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
	return r.SetProcess(wire.Process_ServerToClient(&process{p}))
}

func (d Delivery) write(w wire.Output) error {
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
	return setFailure(f, d.Exit.Cause)
}

// process serves a Program.
type process struct{ p Program }

func (s *process) Poll(ctx context.Context, call wire.Process_poll) error {
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

func (s *process) Signal(_ context.Context, call wire.Process_signal) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	return reply(r, s.p.Signal(int(call.Args().Number())))
}

func (s *process) Kill(_ context.Context, call wire.Process_kill) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	return reply(r, s.p.Kill())
}

func (s *process) Resize(_ context.Context, call wire.Process_resize) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	size, err := call.Args().Size()
	if err != nil {
		return err
	}
	return reply(r, s.p.Resize(Size{size.Columns(), size.Rows()}))
}

// Shutdown is called when the host has dropped the capability.
func (s *process) Shutdown() { s.p.Release() }

// shell serves Commands.
type shell struct{ c Commands }

func (s *shell) Run(ctx context.Context, call wire.Shell_run) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	w, err := call.Args().Params()
	if err != nil {
		return err
	}
	var q Request
	if q.Line, err = w.Command(); err != nil {
		return err
	}
	if q.Input, err = copyData(w.Input()); err != nil {
		return err
	}
	q.Stdin = newInput(w.Stdin())
	q.Hold = time.Duration(w.HoldMillis()) * time.Millisecond
	call.Go()
	p, d, err := s.c.Run(ctx, q)
	return deliver(r, p, d, err)
}

func (s *shell) Shutdown() { s.c.Release() }

// Input is the host's end of a program's standard input, seen from the guest.
type Input struct{ remote wire.Stdin }

func newInput(remote wire.Stdin) *Input {
	if !remote.IsValid() {
		return nil
	}
	return &Input{remote.AddRef()}
}

// Read asks the host for up to len(b) bytes and waits for at least one. io.EOF comes alone or with the last bytes.
func (in *Input) Read(ctx context.Context, b []byte) (int, error) {
	future, release := in.remote.Read(ctx, func(w wire.Stdin_read_Params) error {
		w.SetMax(uint32(min(len(b), maxChunk)))
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

// Close tells the host that nothing more will be read.
func (in *Input) Close() { in.remote.Release() }
