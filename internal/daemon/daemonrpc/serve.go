package daemonrpc

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"time"

	"capnproto.org/go/capnp/v3"

	"agentvm/egress"
	"agentvm/internal/daemon/confine"
	"agentvm/internal/daemon/daemonrpc/daemonwire"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/guest/guestrpc/guestwire"
	"agentvm/internal/host/errno"
	"agentvm/internal/storage/snapshot"
	"agentvm/vm"
)

// Serve serves one client on stream until it leaves, violates the protocol, or ctx ends, and closes stream. A hostile client ends at
// most its own connection. When Serve returns, all the client's views of jobs are released. Calls of the handler may return a little
// later; their contexts are cancelled.
func Serve(ctx context.Context, stream io.ReadWriteCloser, h Handler) {
	c := capnprpc.Start(stream, stream, stream, func(c *capnprpc.Conn) capnp.Client {
		return capnp.Client(daemonwire.Daemon_ServerToClient(&daemon{h, c}))
	})
	stop := context.AfterFunc(ctx, c.Close)
	defer stop()
	<-c.Done()
}

// daemon serves the bootstrap capability from a Handler. Methods that may wait let the connection's next call begin first.
type daemon struct {
	h Handler
	c *capnprpc.Conn
}

func (d *daemon) Info(_ context.Context, call daemonwire.Daemon_info) error {
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

func (d *daemon) AwaitReady(ctx context.Context, call daemonwire.Daemon_awaitReady) error {
	sink := call.Args().Progress().AddRef()
	defer sink.Release()
	call.Go()
	return capnprpc.Perform(call.AllocResults, func() error { return capnprpc.LinuxFailure(d.h.AwaitReady(ctx, progressTo(ctx, sink))) })
}

// progressTo makes a function of a client's sink. Without a sink it does nothing.
func progressTo(ctx context.Context, sink guestwire.LogSink) func(slog.Level, string) {
	return func(level slog.Level, text string) {
		if !sink.IsValid() {
			return
		}
		_, release := sink.Log(ctx, func(w guestwire.LogSink_log_Params) error {
			w.SetLevel(guestwire.LogLevel(min(max(int(level)/4+1, 0), 3)))
			return w.SetText(text)
		})
		release()
	}
}

func (d *daemon) Start(ctx context.Context, call daemonwire.Daemon_start) error {
	r, q, err := capnprpc.Begin(call.AllocResults, call.Args().Params, guestrpc.ReadRequest)
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
		return capnprpc.Reply(r, capnprpc.LinuxFailure(err))
	}
	// From here on the capability owns j.
	client := daemonwire.Job_ServerToClient(&job{j})
	if err := r.SetId(j.Info().ID); err != nil {
		client.Release()
		return err
	}
	return r.SetJob(client)
}

func (d *daemon) Job(_ context.Context, call daemonwire.Daemon_job) error {
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
		return capnprpc.Reply(r, capnprpc.LinuxFailure(err))
	}
	return r.SetJob(daemonwire.Job_ServerToClient(&job{j}))
}

func (d *daemon) Jobs(_ context.Context, call daemonwire.Daemon_jobs) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	return capnprpc.WriteList(r.NewJobs, d.h.Jobs(), func(info vm.JobInfo, w daemonwire.JobInfo) error { return writeJobInfo(w, info) })
}

func (d *daemon) Stop(ctx context.Context, call daemonwire.Daemon_stop) error {
	grace := time.Duration(call.Args().GraceMillis()) * time.Millisecond
	call.Go()
	return capnprpc.Perform(call.AllocResults, func() error { return capnprpc.LinuxFailure(d.h.Stop(ctx, grace)) })
}

// answer is a method that may wait: it lets the connection's next call begin, has do work, and writes the results or the error.
func answer[R capnprpc.Results, T any](results func() (R, error), letNext func(), do func() (T, error), write func(R, T) error) error {
	r, err := results()
	if err != nil {
		return err
	}
	letNext()
	value, err := do()
	if err != nil {
		return capnprpc.Reply(r, capnprpc.LinuxFailure(err))
	}
	return write(r, value)
}

// setJSON writes results that are JSON.
func setJSON[R interface{ SetJson(b []byte) error }, T any](r R, value T) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return r.SetJson(b)
}

func (d *daemon) Preview(ctx context.Context, call daemonwire.Daemon_preview) error {
	return answer(call.AllocResults, call.Go, func() (PreviewPlace, error) { return d.h.Preview(ctx) },
		func(r daemonwire.Daemon_preview_Results, place PreviewPlace) error {
			w, err := r.NewPlace()
			if err != nil {
				return err
			}
			w.SetPort(place.PreviewPort)
			return errors.Join(w.SetId(place.ID), w.SetAddress(place.Address))
		})
}

func (d *daemon) Confinement(_ context.Context, call daemonwire.Daemon_confinement) error {
	return answer(call.AllocResults, call.Go, func() ([]confine.Layer, error) { return d.h.Confinement(), nil },
		func(r daemonwire.Daemon_confinement_Results, layers []confine.Layer) error {
			w, err := r.NewLayers(int32(len(layers)))
			if err != nil {
				return err
			}
			for i, l := range layers {
				w.At(i).SetInForce(l.InForce)
				if err := errors.Join(w.At(i).SetName(l.Name), w.At(i).SetNote(l.Note)); err != nil {
					return err
				}
			}
			return nil
		})
}

func (d *daemon) Flows(ctx context.Context, call daemonwire.Daemon_flows) error {
	return answer(call.AllocResults, call.Go, func() ([]vm.Flow, error) { return d.h.Flows(ctx) }, setJSON)
}

func (d *daemon) Denials(ctx context.Context, call daemonwire.Daemon_denials) error {
	return answer(call.AllocResults, call.Go, func() ([]egress.Event, error) { return d.h.Denials(ctx) }, setJSON)
}

func (d *daemon) SetPolicy(ctx context.Context, call daemonwire.Daemon_setPolicy) error {
	b, err := call.Args().Json()
	if err != nil {
		return err
	}
	version, err := call.Args().Version()
	if err != nil {
		return err
	}
	var p egress.Policy
	parseErr := json.Unmarshal(b, &p)
	return answer(call.AllocResults, call.Go, func() (int, error) {
		if parseErr != nil {
			return 0, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: "policy: " + parseErr.Error()}
		}
		return d.h.SetPolicy(ctx, p, version)
	}, func(r daemonwire.Daemon_setPolicy_Results, cut int) error {
		r.SetCut(uint32(cut))
		return nil
	})
}

func (d *daemon) Forward(ctx context.Context, call daemonwire.Daemon_forward) error {
	forward, err := call.Args().Forward()
	if err != nil {
		return err
	}
	return answer(call.AllocResults, call.Go, func() (string, error) { return d.h.Forward(ctx, forward) }, daemonwire.Daemon_forward_Results.SetAddress)
}

func (d *daemon) LendForward(ctx context.Context, call daemonwire.Daemon_lendForward) error {
	forward, err := call.Args().Forward()
	if err != nil {
		return err
	}
	type port struct {
		address string
		lent    LentForward
	}
	return answer(call.AllocResults, call.Go, func() (p port, err error) {
		p.address, p.lent, err = d.h.LendForward(ctx, forward)
		return p, err
	}, func(r daemonwire.Daemon_lendForward_Results, p port) error {
		// From here on the capability owns p.lent.
		return errors.Join(r.SetLent(daemonwire.LentForward_ServerToClient(lentForward{p.lent})), r.SetAddress(p.address))
	})
}

// lentForward serves a LentForward.
type lentForward struct{ l LentForward }

func (s lentForward) Ended(ctx context.Context, call daemonwire.LentForward_ended) error {
	call.Go()
	return capnprpc.Perform(call.AllocResults, func() error { return capnprpc.LinuxFailure(s.l.Ended(ctx)) })
}

// Shutdown is called when the client has dropped the capability.
func (s lentForward) Shutdown() { s.l.Release() }

func (d *daemon) Pause(ctx context.Context, call daemonwire.Daemon_pause) error {
	call.Go()
	return capnprpc.Perform(call.AllocResults, func() error { return capnprpc.LinuxFailure(d.h.Pause(ctx)) })
}

func (d *daemon) Resume(ctx context.Context, call daemonwire.Daemon_resume) error {
	call.Go()
	return capnprpc.Perform(call.AllocResults, func() error { return capnprpc.LinuxFailure(d.h.Resume(ctx)) })
}

func (d *daemon) Snapshot(ctx context.Context, call daemonwire.Daemon_snapshot) error {
	path, err := call.Args().Path()
	if err != nil {
		return err
	}
	comment, err := call.Args().Comment()
	if err != nil {
		return err
	}
	o := SnapshotRequest{path, comment, call.Args().Layered()}
	return answer(call.AllocResults, call.Go, func() (snapshot.Meta, error) { return d.h.Snapshot(ctx, o) }, setJSON)
}

func (d *daemon) Mounts(ctx context.Context, call daemonwire.Daemon_mounts) error {
	return answer(call.AllocResults, call.Go, func() ([]MountInfo, error) { return d.h.Mounts(ctx) }, setJSON)
}

func (d *daemon) Change(ctx context.Context, call daemonwire.Daemon_change) error {
	b, err := call.Args().Json()
	if err != nil {
		return err
	}
	var c Change
	if err := json.Unmarshal(b, &c); err != nil {
		return err
	}
	call.Go()
	return capnprpc.Perform(call.AllocResults, func() error { return capnprpc.LinuxFailure(d.h.Change(ctx, c)) })
}

// job serves a JobHandler.
type job struct{ j JobHandler }

func (s *job) Info(_ context.Context, call daemonwire.Job_info) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	w, err := r.NewInfo()
	if err != nil {
		return err
	}
	return writeJobInfo(w, s.j.Info())
}

func (s *job) Output(ctx context.Context, call daemonwire.Job_output) error {
	args := call.Args()
	from, limit := args.From(), int(min(max(args.Max(), 1), maxOutputBytes))
	wait := time.Duration(args.WaitMillis()) * time.Millisecond
	return answer(call.AllocResults, call.Go, func() (vm.JobOutput, error) { return s.j.Output(ctx, vm.Cursor(from), limit, wait) },
		func(r daemonwire.Job_output_Results, o vm.JobOutput) error {
			r.SetNext(uint64(o.Next))
			r.SetLost(o.Lost)
			var exit *guestrpc.ExitStatus
			if o.End != nil {
				r.SetTimedOut(o.End.TimedOut)
				exit = &guestrpc.ExitStatus{Code: o.End.Code, Signal: o.End.Signal}
			}
			return errors.Join(guestrpc.WriteExit(r.NewExit, exit), writeChunks(r, o.Chunks))
		})
}

func writeChunks(r daemonwire.Job_output_Results, chunks []vm.JobChunk) error {
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

func (s *job) Input(ctx context.Context, call daemonwire.Job_input) error {
	data, err := call.Args().Data()
	if err != nil {
		return err
	}
	call.Go()
	return capnprpc.Perform(call.AllocResults, func() error { return capnprpc.LinuxFailure(s.j.Input(ctx, data, call.Args().End())) })
}

func (s *job) Signal(ctx context.Context, call daemonwire.Job_signal) error {
	call.Go()
	return capnprpc.Perform(call.AllocResults, func() error { return capnprpc.LinuxFailure(s.j.Signal(ctx, int(call.Args().Number()))) })
}

func (s *job) Kill(ctx context.Context, call daemonwire.Job_kill) error {
	call.Go()
	return capnprpc.Perform(call.AllocResults, func() error { return capnprpc.LinuxFailure(s.j.Kill(ctx)) })
}

// Resize does not let the next call begin first: the last size stays.
func (s *job) Resize(ctx context.Context, call daemonwire.Job_resize) error {
	size, err := call.Args().Size()
	if err != nil {
		return err
	}
	return capnprpc.Perform(call.AllocResults, func() error {
		return capnprpc.LinuxFailure(s.j.Resize(ctx, guestrpc.Size{Columns: size.Columns(), Rows: size.Rows()}))
	})
}

func (s *job) Remove(_ context.Context, call daemonwire.Job_remove) error {
	return capnprpc.Perform(call.AllocResults, func() error { return capnprpc.LinuxFailure(s.j.Remove()) })
}

// Shutdown is called when the client has dropped the capability.
func (s *job) Shutdown() { s.j.Release() }
