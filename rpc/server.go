package rpc

import (
	"context"
	"log/slog"
	"time"

	"agentvm/rpc/wire"
)

// supervisor serves the bootstrap capability from a Handler.
type supervisor struct {
	loopback
	h Handler
	c *conn
}

// results is what every method's results have.
type results interface {
	NewFailure() (wire.Failure, error)
}

// open is how a method with parameters begins: the results to fill, and what read makes of the parameters.
func open[R, W, P any](results func() (R, error), params func() (W, error), read func(W) (P, error)) (r R, p P, err error) {
	if r, err = results(); err != nil {
		return r, p, err
	}
	w, err := params()
	if err != nil {
		return r, p, err
	}
	p, err = read(w)
	return r, p, err
}

// perform is a method whose only result is whether it failed.
func perform[R results](results func() (R, error), do func() error) error {
	r, err := results()
	if err != nil {
		return err
	}
	return reply(r, do())
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
	deepen(false)
	var sink wire.LogSink
	var proxy wire.NetworkProxy
	r, p, err := open(call.AllocResults, call.Args().Params, func(w wire.StartParams) (StartParams, error) {
		sink, proxy = w.Log(), w.Proxy()
		return readStartParams(w)
	})
	if err != nil {
		return err
	}
	p.Connect = s.c.connector(proxy.AddRef())
	info, err := s.h.Start(p, logTo(sink.AddRef()))
	if err != nil {
		return reply(r, err)
	}
	out, err := r.NewInfo()
	if err != nil {
		return err
	}
	return info.write(out)
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
	deepen(false)
	r, q, err := open(call.AllocResults, call.Args().Params, readRequest)
	if err != nil {
		return err
	}
	call.Go()
	p, d, err := s.h.Exec(ctx, q)
	return s.c.deliver(r, p, d, err)
}

func (s *supervisor) OpenShell(_ context.Context, call wire.Supervisor_openShell) error {
	r, q, err := open(call.AllocResults, call.Args().Params, readRequest)
	if err != nil {
		return err
	}
	call.Go()
	c, err := s.h.OpenShell(q)
	if err != nil {
		return reply(r, err)
	}
	return r.SetShell(wire.Shell_ServerToClient(&shell{c, s.c}))
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

func (s *supervisor) Sockets(_ context.Context, call wire.Supervisor_sockets) error {
	r, q, err := open(call.AllocResults, call.Args().Query, readSocketQuery)
	if err != nil {
		return err
	}
	call.Go() // it may look at every process
	list, err := s.h.Sockets(q)
	if err != nil {
		return reply(r, err)
	}
	return writeSockets(r.NewSockets, list)
}

func (s *supervisor) ReportDeny(_ context.Context, call wire.Supervisor_reportDeny) error {
	lines, err := readTexts(call.Args().Lines())
	if err != nil {
		return err
	}
	return perform(call.AllocResults, func() error { return s.h.ReportDenials(lines) })
}

func (s *supervisor) SyncClock(_ context.Context, call wire.Supervisor_syncClock) error {
	t, err := call.Args().Time()
	if err != nil {
		return err
	}
	return perform(call.AllocResults, func() error { return s.h.SetClock(readTime(t)) })
}

func (s *supervisor) PowerOff(_ context.Context, call wire.Supervisor_powerOff) error {
	call.Go()
	return perform(call.AllocResults, s.h.Shutdown)
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
