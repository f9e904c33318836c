package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"time"

	"agentvm/rpc/wire"
)

// DaemonClient is the client's end of a connection to a daemon. Close it to free what it holds; that kills its jobs that
// are not durable, and leaves the VM running.
type DaemonClient struct {
	conn   *conn
	daemon wire.Daemon
}

// DialDaemon speaks to a daemon over stream, on which the handshake is done. From now on the client owns stream; Close, or an
// error here, closes it. ctx bounds DialDaemon only.
func DialDaemon(ctx context.Context, stream io.ReadWriteCloser) (*DaemonClient, error) {
	c := &DaemonClient{conn: startConn(stream, stream, stream, nil)}
	boot, err := c.conn.bootstrap(ctx)
	if err != nil {
		c.conn.close()
		return nil, c.fault("first call to the daemon", err)
	}
	c.daemon = wire.Daemon(boot)
	return c, nil
}

// Done is closed when the connection has ended, for whatever reason.
func (c *DaemonClient) Done() <-chan struct{} { return c.conn.done }

// Close ends the connection and waits for its goroutines.
func (c *DaemonClient) Close() error {
	c.daemon.Release()
	c.conn.close()
	return nil
}

// fault says what a call was for whose failure is not the daemon's answer.
func (c *DaemonClient) fault(what string, err error) error {
	if c.conn.ctx.Err() != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		err = ErrDaemonClosed
	}
	return fmt.Errorf("%s: %w", what, err)
}

// failing is what the results of most methods have.
type failing interface {
	Failure() (wire.Failure, error)
}

// daemonResult waits for an answer. The results are valid until the call is released.
func daemonResult[R failing](c *DaemonClient, what string, future interface{ Struct() (R, error) }) (R, error) {
	r, err := future.Struct()
	if err != nil {
		return r, c.fault(what, err)
	}
	return r, failureOf(r.Failure())
}

// Info describes the daemon.
func (c *DaemonClient) Info(ctx context.Context) (DaemonInfo, error) {
	future, release := c.daemon.Info(ctx, nil)
	defer release()
	r, err := future.Struct()
	if err != nil {
		return DaemonInfo{}, c.fault("ask for information", err)
	}
	return readDaemonInfo(r.Info())
}

// AwaitReady returns when the VM runs, or why it cannot. progress is called meanwhile, one line at a time; nil discards.
func (c *DaemonClient) AwaitReady(ctx context.Context, progress func(slog.Level, string)) error {
	future, release := c.daemon.AwaitReady(ctx, func(w wire.Daemon_awaitReady_Params) error {
		if progress == nil {
			return nil
		}
		return w.SetProgress(wire.LogSink_ServerToClient(progressSink{progress}))
	})
	defer release()
	_, err := daemonResult(c, "wait for the VM", future)
	return err
}

type progressSink struct{ tell func(slog.Level, string) }

func (s progressSink) Log(_ context.Context, call wire.LogSink_log) error {
	text, err := call.Args().Text()
	if err != nil {
		return err
	}
	s.tell(slog.Level(4*(int(call.Args().Level())-1)), text)
	return nil
}

// StartJob starts a program. Of p, Args, Env, Dir, User and Terminal count; input is the beginning of its standard input,
// at most MaxInput bytes.
func (c *DaemonClient) StartJob(ctx context.Context, p ExecParams, input []byte, o JobOptions) (*JobClient, error) {
	p.Stdin = nil
	future, release := c.daemon.Start(ctx, func(call wire.Daemon_start_Params) error {
		w, err := call.NewParams()
		if err != nil {
			return err
		}
		options, err := call.NewOptions()
		if err != nil {
			return err
		}
		return errors.Join(p.write(w), w.SetInput(input), o.write(options))
	})
	defer release()
	r, err := daemonResult(c, "start a program", future)
	if err != nil {
		return nil, err
	}
	id, err := r.Id()
	if err != nil {
		return nil, err
	}
	return &JobClient{c: c, id: id, remote: r.Job().AddRef()}, nil
}

// Job finds a job. errors.Is(err, fs.ErrNotExist) when there is none.
func (c *DaemonClient) Job(ctx context.Context, id string) (*JobClient, error) {
	future, release := c.daemon.Job(ctx, func(w wire.Daemon_job_Params) error { return w.SetId(id) })
	defer release()
	r, err := daemonResult(c, "find a job", future)
	if err != nil {
		return nil, err
	}
	return &JobClient{c: c, id: id, remote: r.Job().AddRef()}, nil
}

// Jobs lists the jobs, oldest first.
func (c *DaemonClient) Jobs(ctx context.Context) ([]JobInfo, error) {
	future, release := c.daemon.Jobs(ctx, nil)
	defer release()
	r, err := daemonResult(c, "list jobs", future)
	if err != nil {
		return nil, err
	}
	list, err := r.Jobs()
	if err != nil {
		return nil, err
	}
	var jobs []JobInfo
	for i := range list.Len() {
		info, err := readJobInfo(list.At(i), nil)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, info)
	}
	return jobs, nil
}

// Stop stops the VM and then the daemon. Without grace (in steps of 1 ms) the VM is switched off. A connection that is
// lost while it waits is success: the daemon has gone.
func (c *DaemonClient) Stop(ctx context.Context, grace time.Duration) error {
	select {
	case <-c.Done():
		return fmt.Errorf("stop: %w", ErrDaemonClosed)
	default:
	}
	future, release := c.daemon.Stop(ctx, func(w wire.Daemon_stop_Params) error {
		w.SetGraceMillis(uint32(min(max(grace.Milliseconds(), 0), math.MaxUint32)))
		return nil
	})
	defer release()
	_, err := daemonResult(c, "stop", future)
	if errors.Is(err, ErrDaemonClosed) {
		return nil
	}
	return err
}

// Stats reads the guest's counters.
func (c *DaemonClient) Stats(ctx context.Context) (Stats, error) {
	future, release := c.daemon.Stats(ctx, nil)
	defer release()
	r, err := daemonResult(c, "stats", future)
	if err != nil {
		return Stats{}, err
	}
	w, err := r.Stats()
	return readStats(w), err
}

// Ask puts a question in JSON, see package daemon, and returns the answer.
func (c *DaemonClient) Ask(ctx context.Context, name string, json []byte) ([]byte, error) {
	future, release := c.daemon.Ask(ctx, func(w wire.Daemon_ask_Params) error {
		return errors.Join(w.SetName(name), w.SetJson(json))
	})
	defer release()
	r, err := daemonResult(c, "ask for "+name, future)
	if err != nil {
		return nil, err
	}
	return copyData(r.Json())
}

// Pause has the VM stand still until Resume: it takes no processor time, and what is asked of its guest waits.
func (c *DaemonClient) Pause(ctx context.Context) error {
	future, release := c.daemon.Pause(ctx, nil)
	defer release()
	_, err := daemonResult(c, "pause", future)
	return err
}

// Resume has a paused VM go on.
func (c *DaemonClient) Resume(ctx context.Context) error {
	future, release := c.daemon.Resume(ctx, nil)
	defer release()
	_, err := daemonResult(c, "resume", future)
	return err
}

// Snapshot has the VM written into a file, and returns the file's description in JSON.
func (c *DaemonClient) Snapshot(ctx context.Context, o SnapshotOrder) ([]byte, error) {
	future, release := c.daemon.Snapshot(ctx, func(w wire.Daemon_snapshot_Params) error {
		w.SetLayered(o.Layered)
		return errors.Join(w.SetPath(o.Path), w.SetComment(o.Comment))
	})
	defer release()
	r, err := daemonResult(c, "snapshot", future)
	if err != nil {
		return nil, err
	}
	return copyData(r.Json())
}

// Files gives access to the guest's files over this connection. Close it before the connection.
func (c *DaemonClient) Files(ctx context.Context) (*FilesClient, error) {
	future, release := c.daemon.Files(ctx, nil)
	defer release()
	r, err := daemonResult(c, "open the guest's files", future)
	if err != nil {
		return nil, err
	}
	return &FilesClient{conn: c.conn, remote: r.Files().AddRef()}, nil
}
