package guestrpc

import (
	"context"
	"log/slog"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// supervisor serves the bootstrap capability from a Handler.
type supervisor struct {
	loopback
	h Handler
	c *capnprpc.Conn
}

func (s *supervisor) Start(_ context.Context, call guestwire.Supervisor_start) error {
	capnprpc.Deepen(false)
	var sink guestwire.LogSink
	var proxy guestwire.NetworkProxy
	r, p, err := capnprpc.Begin(call.AllocResults, call.Args().Params, func(w guestwire.StartParams) (StartParams, error) {
		sink, proxy = w.Log(), w.Proxy()
		return readStartParams(w)
	})
	if err != nil {
		return err
	}
	p.Connect = connector(s.c, proxy.AddRef())
	info, err := s.h.Start(p, logTo(sink.AddRef()))
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	out, err := r.NewInfo()
	if err != nil {
		return err
	}
	return info.write(out)
}

// logTo makes a function of the host's sink. The function waits until the host has the message.
func logTo(sink guestwire.LogSink) func(slog.Level, string) {
	if !sink.IsValid() {
		return nil
	}
	return func(level slog.Level, text string) {
		_, release := sink.Log(context.Background(), func(w guestwire.LogSink_log_Params) error {
			w.SetLevel(guestwire.LogLevel(min(max(int(level)/4+1, 0), 3)))
			return w.SetText(text)
		})
		release()
	}
}

func (s *supervisor) Exec(ctx context.Context, call guestwire.Supervisor_exec) error {
	capnprpc.Deepen(false)
	r, q, err := capnprpc.Begin(call.AllocResults, call.Args().Params, ReadRequest)
	if err != nil {
		return err
	}
	q.Stdin.in(s.c)
	call.Go()
	p, d, err := s.h.Exec(ctx, q)
	return deliver(s.c, r, p, d, err)
}

func (s *supervisor) Adopt(_ context.Context, call guestwire.Supervisor_adopt) error {
	key, err := call.Args().Key()
	if err != nil {
		return err
	}
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	p, err := s.h.Adopt(key, call.Args().Received(), newInput(call.Args().Stdin()).in(s.c))
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	return r.SetProcess(guestwire.Process_ServerToClient(&process{p, s.c}))
}

func (s *supervisor) OpenShell(_ context.Context, call guestwire.Supervisor_openShell) error {
	r, q, err := capnprpc.Begin(call.AllocResults, call.Args().Params, ReadRequest)
	if err != nil {
		return err
	}
	call.Go()
	c, err := s.h.OpenShell(q)
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	return r.SetShell(guestwire.Shell_ServerToClient(&shell{c, s.c}))
}

func (s *supervisor) PollStats(_ context.Context, call guestwire.Supervisor_pollStats) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	stats, err := s.h.Stats()
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	w, err := r.NewStats()
	if err != nil {
		return err
	}
	WriteStats(w, stats)
	return nil
}

func (s *supervisor) Sockets(_ context.Context, call guestwire.Supervisor_sockets) error {
	r, q, err := capnprpc.Begin(call.AllocResults, call.Args().Query, readSocketQuery)
	if err != nil {
		return err
	}
	call.Go() // it may look at every process
	list, err := s.h.Sockets(q)
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	return WriteSockets(r.NewSockets, list)
}

func (s *supervisor) ReportDeny(_ context.Context, call guestwire.Supervisor_reportDeny) error {
	lines, err := capnprpc.ReadTexts(call.Args().Lines())
	if err != nil {
		return err
	}
	return capnprpc.Perform(call.AllocResults, func() error { return s.h.ReportDenials(lines) })
}

func (s *supervisor) MountShare(_ context.Context, call guestwire.Supervisor_mountShare) error {
	w, err := call.Args().Mount()
	if err != nil {
		return err
	}
	m, err := readMount(w)
	if err != nil {
		return err
	}
	t, err := call.Args().Time()
	if err != nil {
		return err
	}
	now := ReadTime(t)
	call.Go() // the share's server has to answer
	return capnprpc.Perform(call.AllocResults, func() error { return s.h.MountShare(m, now) })
}

func (s *supervisor) UnmountShare(_ context.Context, call guestwire.Supervisor_unmountShare) error {
	target, err := call.Args().Target()
	if err != nil {
		return err
	}
	detach := call.Args().Detach()
	call.Go()
	return capnprpc.Perform(call.AllocResults, func() error { return s.h.UnmountShare(target, detach) })
}

func (s *supervisor) SyncClock(_ context.Context, call guestwire.Supervisor_syncClock) error {
	t, err := call.Args().Time()
	if err != nil {
		return err
	}
	return capnprpc.Perform(call.AllocResults, func() error { return s.h.SetClock(ReadTime(t)) })
}

func (s *supervisor) WriteBack(_ context.Context, call guestwire.Supervisor_writeBack) error {
	call.Go()
	return capnprpc.Perform(call.AllocResults, s.h.WriteBack)
}

func (s *supervisor) PowerOff(_ context.Context, call guestwire.Supervisor_powerOff) error {
	call.Go()
	return capnprpc.Perform(call.AllocResults, s.h.Shutdown)
}

// ReadRequest copies what outlives the call.
func ReadRequest(w guestwire.ExecParams) (q Request, err error) {
	if q.Args, err = capnprpc.ReadTexts(w.Args()); err != nil {
		return q, err
	}
	if q.Env, err = capnprpc.ReadTexts(w.Env()); err != nil {
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
	if q.Input, err = capnprpc.CopyData(w.Input()); err != nil {
		return q, err
	}
	q.Stdin = newInput(w.Stdin())
	q.Hold = time.Duration(w.HoldMillis()) * time.Millisecond
	q.Key, err = w.Key()
	return q, err
}
