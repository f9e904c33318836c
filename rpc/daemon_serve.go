package rpc

import (
	"context"
	"io"
	"log/slog"
	"time"

	"capnproto.org/go/capnp/v3"

	"agentvm/rpc/wire"
)

// ServeDaemon serves one client on stream until it leaves, sends what it must not, or ctx ends, and closes stream. Whatever
// the client does, it ends no more than its own connection. All its views of jobs are released when ServeDaemon returns;
// calls of the handler's that it has begun may end a little later, their contexts are cancelled.
func ServeDaemon(ctx context.Context, stream io.ReadWriteCloser, h DaemonHandler) {
	c := startConn(stream, stream, stream, func(c *conn) capnp.Client { return capnp.Client(wire.Daemon_ServerToClient(&daemon{h, c})) })
	stop := context.AfterFunc(ctx, c.close)
	defer stop()
	<-c.done
}

// daemon serves the bootstrap capability from a DaemonHandler. Methods that wait let the next call begin.
type daemon struct {
	h DaemonHandler
	c *conn
}

func (d *daemon) Info(_ context.Context, call wire.Daemon_info) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	call.Go()
	w, err := r.NewInfo()
	if err != nil {
		return err
	}
	return d.h.Info().write(w)
}

func (d *daemon) AwaitReady(ctx context.Context, call wire.Daemon_awaitReady) error {
	sink := call.Args().Progress().AddRef()
	defer sink.Release()
	call.Go()
	return perform(call.AllocResults, func() error { return linuxFailure(d.h.AwaitReady(ctx, progressTo(ctx, sink))) })
}

// progressTo makes a function of a client's sink; it does nothing when there is none.
func progressTo(ctx context.Context, sink wire.LogSink) func(slog.Level, string) {
	return func(level slog.Level, text string) {
		if !sink.IsValid() {
			return
		}
		_, release := sink.Log(ctx, func(w wire.LogSink_log_Params) error {
			w.SetLevel(wire.LogLevel(min(max(int(level)/4+1, 0), 3)))
			return w.SetText(text)
		})
		release()
	}
}

func (d *daemon) Start(ctx context.Context, call wire.Daemon_start) error {
	r, q, err := open(call.AllocResults, call.Args().Params, readRequest)
	if err != nil {
		return err
	}
	if q.Stdin != nil {
		q.Stdin.Close()
		q.Stdin = nil
	}
	o, err := readJobOptions(call.Args().Options())
	if err != nil {
		return err
	}
	call.Go()
	j, err := d.h.StartJob(ctx, q, o)
	if err != nil {
		return reply(r, linuxFailure(err))
	}
	// From here on the capability owns j: whatever goes wrong releases it.
	client := wire.Job_ServerToClient(&job{j})
	if err := r.SetId(j.Info().ID); err != nil {
		client.Release()
		return err
	}
	return r.SetJob(client)
}

func (d *daemon) Job(_ context.Context, call wire.Daemon_job) error {
	id, err := call.Args().Id()
	if err != nil {
		return err
	}
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	j, err := d.h.Job(id)
	if err != nil {
		return reply(r, linuxFailure(err))
	}
	return r.SetJob(wire.Job_ServerToClient(&job{j}))
}

func (d *daemon) Jobs(_ context.Context, call wire.Daemon_jobs) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	list := d.h.Jobs()
	w, err := r.NewJobs(int32(len(list)))
	if err != nil {
		return err
	}
	for i, info := range list {
		if err := info.write(w.At(i)); err != nil {
			return err
		}
	}
	return nil
}

func (d *daemon) Stop(ctx context.Context, call wire.Daemon_stop) error {
	grace := time.Duration(call.Args().GraceMillis()) * time.Millisecond
	call.Go()
	return perform(call.AllocResults, func() error { return linuxFailure(d.h.Stop(ctx, grace)) })
}

func (d *daemon) Stats(ctx context.Context, call wire.Daemon_stats) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	call.Go()
	stats, err := d.h.Stats(ctx)
	if err != nil {
		return reply(r, linuxFailure(err))
	}
	w, err := r.NewStats()
	if err != nil {
		return err
	}
	writeStats(w, stats)
	return nil
}

func (d *daemon) Ask(ctx context.Context, call wire.Daemon_ask) error {
	name, err := call.Args().Name()
	if err != nil {
		return err
	}
	question, err := call.Args().Json()
	if err != nil {
		return err
	}
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	call.Go()
	answer, err := d.h.Ask(ctx, name, question)
	if err != nil {
		return reply(r, linuxFailure(err))
	}
	return r.SetJson(answer)
}

func (d *daemon) Pause(ctx context.Context, call wire.Daemon_pause) error {
	call.Go()
	return perform(call.AllocResults, func() error { return linuxFailure(d.h.Pause(ctx)) })
}

func (d *daemon) Resume(ctx context.Context, call wire.Daemon_resume) error {
	call.Go()
	return perform(call.AllocResults, func() error { return linuxFailure(d.h.Resume(ctx)) })
}

func (d *daemon) Snapshot(ctx context.Context, call wire.Daemon_snapshot) error {
	path, err := call.Args().Path()
	if err != nil {
		return err
	}
	comment, err := call.Args().Comment()
	if err != nil {
		return err
	}
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	call.Go()
	description, err := d.h.Snapshot(ctx, SnapshotOrder{path, comment, call.Args().Layered()})
	if err != nil {
		return reply(r, linuxFailure(err))
	}
	return r.SetJson(description)
}

// Files passes the guest's capability on: calls on it go through this process unread.
func (d *daemon) Files(ctx context.Context, call wire.Daemon_files) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	call.Go()
	f, err := d.h.Files(ctx)
	if err != nil {
		return reply(r, linuxFailure(err))
	}
	return r.SetFiles(f.remote.AddRef())
}

// job serves a JobHandler.
type job struct{ j JobHandler }

func (s *job) Info(_ context.Context, call wire.Job_info) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	w, err := r.NewInfo()
	if err != nil {
		return err
	}
	return s.j.Info().write(w)
}

func (s *job) Output(ctx context.Context, call wire.Job_output) error {
	args := call.Args()
	from, limit := args.From(), int(min(max(args.Max(), 1), maxOutputBytes))
	wait := time.Duration(args.WaitMillis()) * time.Millisecond
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	call.Go()
	o, err := s.j.Output(ctx, from, limit, wait)
	if err != nil {
		return reply(r, linuxFailure(err))
	}
	r.SetNext(o.Next)
	r.SetLost(o.Lost)
	r.SetTimedOut(o.TimedOut)
	if err := writeExit(r.NewExit, o.Exit); err != nil {
		return err
	}
	return writeChunks(r, o.Chunks)
}

func writeChunks(r wire.Job_output_Results, chunks []JobChunk) error {
	list, err := r.NewChunks(int32(len(chunks)))
	if err != nil {
		return err
	}
	for i, c := range chunks {
		w := list.At(i)
		w.SetStream(uint8(c.Stream))
		if err := w.SetData(c.Data); err != nil {
			return err
		}
	}
	return nil
}

func (s *job) Input(ctx context.Context, call wire.Job_input) error {
	data, err := call.Args().Data()
	if err != nil {
		return err
	}
	call.Go()
	return perform(call.AllocResults, func() error { return linuxFailure(s.j.Input(ctx, data, call.Args().End())) })
}

func (s *job) Signal(ctx context.Context, call wire.Job_signal) error {
	call.Go()
	return perform(call.AllocResults, func() error { return linuxFailure(s.j.Signal(ctx, int(call.Args().Number()))) })
}

func (s *job) Kill(ctx context.Context, call wire.Job_kill) error {
	call.Go()
	return perform(call.AllocResults, func() error { return linuxFailure(s.j.Kill(ctx)) })
}

// Resize keeps the order of calls: the last size is the one that stays.
func (s *job) Resize(ctx context.Context, call wire.Job_resize) error {
	size, err := call.Args().Size()
	if err != nil {
		return err
	}
	return perform(call.AllocResults, func() error { return linuxFailure(s.j.Resize(ctx, Size{size.Columns(), size.Rows()})) })
}

func (s *job) Remove(_ context.Context, call wire.Job_remove) error {
	return perform(call.AllocResults, func() error { return linuxFailure(s.j.Remove()) })
}

// Shutdown is called when the client has dropped the capability.
func (s *job) Shutdown() { s.j.Release() }
