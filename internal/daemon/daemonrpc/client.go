package daemonrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"time"

	"agentvm/egress"
	"agentvm/internal/daemon/confine"
	"agentvm/internal/daemon/daemonrpc/daemonwire"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/guest/guestrpc/guestwire"
	"agentvm/internal/storage/snapshot"
	"agentvm/vm"
)

// Client is the client's end of a connection to a daemon. Close frees it and kills those of its jobs that are not durable. The VM
// continues to run.
type Client struct {
	conn   *capnprpc.Conn
	daemon daemonwire.Daemon
}

// Dial makes a client of stream, on which the handshake is done. From now on the client owns stream; Close, or an error here, closes
// it. ctx bounds Dial only.
func Dial(ctx context.Context, stream io.ReadWriteCloser) (*Client, error) {
	c := &Client{conn: capnprpc.Start(stream, stream, stream, nil)}
	boot, err := c.conn.Bootstrap(ctx)
	if err != nil {
		c.conn.Close()
		return nil, c.fault("first call to the daemon", err)
	}
	c.daemon = daemonwire.Daemon(boot)
	return c, nil
}

// Done is closed when the connection has ended, for whatever reason.
func (c *Client) Done() <-chan struct{} { return c.conn.Done() }

// Close ends the connection and waits for its goroutines.
func (c *Client) Close() error {
	c.daemon.Release()
	c.conn.Close()
	return nil
}

// fault adds what the call was for to an error that is not the daemon's answer.
func (c *Client) fault(what string, err error) error {
	if c.conn.Context().Err() != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		err = ErrClosed
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Info describes the daemon.
func (c *Client) Info(ctx context.Context) (Info, error) {
	future, release := c.daemon.Info(ctx, nil)
	defer release()
	r, err := future.Struct()
	if err != nil {
		return Info{}, c.fault("ask for information", err)
	}
	return readInfo(r.Info())
}

// AwaitReady returns nil when the VM runs, or the reason why it cannot. progress is called meanwhile, one line at a time; nil discards.
func (c *Client) AwaitReady(ctx context.Context, progress func(slog.Level, string)) error {
	future, release := c.daemon.AwaitReady(ctx, func(w daemonwire.Daemon_awaitReady_Params) error {
		if progress == nil {
			return nil
		}
		return w.SetProgress(guestwire.LogSink_ServerToClient(progressSink{progress}))
	})
	defer release()
	return capnprpc.Done(c.fault, "wait for the VM", future.Struct)
}

type progressSink struct{ report func(slog.Level, string) }

func (s progressSink) Log(_ context.Context, call guestwire.LogSink_log) error {
	text, err := call.Args().Text()
	if err != nil {
		return err
	}
	s.report(slog.Level(4*(int(call.Args().Level())-1)), text)
	return nil
}

// StartJob starts a program. It uses Args, Env, Dir, User, Terminal and Key of p. input is the beginning of its standard input, at most
// MaxInput bytes.
func (c *Client) StartJob(ctx context.Context, p guestrpc.ExecParams, input []byte, o JobOptions) (*JobClient, error) {
	p.Stdin = nil
	future, release := c.daemon.Start(ctx, func(call daemonwire.Daemon_start_Params) error {
		w, err := call.NewParams()
		if err != nil {
			return err
		}
		options, err := call.NewOptions()
		if err != nil {
			return err
		}
		return errors.Join(p.Write(w), w.SetInput(input), o.write(options))
	})
	defer release()
	r, err := capnprpc.Await(c.fault, "start a program", future.Struct)
	if err != nil {
		return nil, err
	}
	id, err := r.Id()
	if err != nil {
		return nil, err
	}
	return &JobClient{c: c, id: id, remote: r.Job().AddRef()}, nil
}

// Job finds a job. When there is none, errors.Is(err, fs.ErrNotExist) holds.
func (c *Client) Job(ctx context.Context, id string) (*JobClient, error) {
	future, release := c.daemon.Job(ctx, func(w daemonwire.Daemon_job_Params) error { return w.SetId(id) })
	defer release()
	r, err := capnprpc.Await(c.fault, "find a job", future.Struct)
	if err != nil {
		return nil, err
	}
	return &JobClient{c: c, id: id, remote: r.Job().AddRef()}, nil
}

// Jobs lists the jobs, oldest first.
func (c *Client) Jobs(ctx context.Context) ([]vm.JobInfo, error) {
	future, release := c.daemon.Jobs(ctx, nil)
	defer release()
	r, err := capnprpc.Await(c.fault, "list jobs", future.Struct)
	if err != nil {
		return nil, err
	}
	list, err := r.Jobs()
	return capnprpc.ReadList(list, err, math.MaxInt, func(w daemonwire.JobInfo) (vm.JobInfo, error) { return readJobInfo(w, nil) })
}

// Stop stops the VM and then the daemon. Without grace (in steps of 1 ms) the VM is switched off. Losing the connection meanwhile is
// success: the daemon has ended.
func (c *Client) Stop(ctx context.Context, grace time.Duration) error {
	select {
	case <-c.Done():
		return fmt.Errorf("stop: %w", ErrClosed)
	default:
	}
	future, release := c.daemon.Stop(ctx, func(w daemonwire.Daemon_stop_Params) error {
		w.SetGraceMillis(uint32(min(max(grace.Milliseconds(), 0), math.MaxUint32)))
		return nil
	})
	defer release()
	_, err := capnprpc.Await(c.fault, "stop", future.Struct)
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// Preview has the daemon serve the VM's previews, unless it does already.
func (c *Client) Preview(ctx context.Context) (place PreviewPlace, err error) {
	future, release := c.daemon.Preview(ctx, nil)
	defer release()
	r, err := capnprpc.Await(c.fault, "serve previews", future.Struct)
	if err != nil {
		return place, err
	}
	w, err := r.Place()
	if err != nil {
		return place, err
	}
	var read capnprpc.FieldReader
	return PreviewPlace{ID: read.Text(w.Id()), PreviewPort: w.Port(), Address: read.Text(w.Address())}, read.Err
}

// Confinement says what confines the daemon's process.
func (c *Client) Confinement(ctx context.Context) ([]confine.Layer, error) {
	future, release := c.daemon.Confinement(ctx, nil)
	defer release()
	r, err := capnprpc.Await(c.fault, "confinement", future.Struct)
	if err != nil {
		return nil, err
	}
	w, err := r.Layers()
	if err != nil {
		return nil, err
	}
	return capnprpc.ReadList(w, err, math.MaxInt, func(w daemonwire.ConfinementLayer) (confine.Layer, error) {
		var read capnprpc.FieldReader
		return confine.Layer{Name: read.Text(w.Name()), InForce: w.InForce(), Note: read.Text(w.Note())}, read.Err
	})
}

// resultJSON is result of a method whose answer is JSON.
func resultJSON[T any, R interface {
	capnprpc.Failing
	Json() ([]byte, error)
}](c *Client, what string, future interface{ Struct() (R, error) }) (v T, err error) {
	r, err := capnprpc.Await(c.fault, what, future.Struct)
	if err != nil {
		return v, err
	}
	b, err := r.Json()
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		return v, fmt.Errorf("%s: the daemon's answer: %w", what, err)
	}
	return v, nil
}

// Flows lists the flows that are open.
func (c *Client) Flows(ctx context.Context) ([]vm.Flow, error) {
	future, release := c.daemon.Flows(ctx, nil)
	defer release()
	return resultJSON[[]vm.Flow](c, "flows", future)
}

// Denials returns the last denials, newest last.
func (c *Client) Denials(ctx context.Context) ([]egress.Event, error) {
	future, release := c.daemon.Denials(ctx, nil)
	defer release()
	return resultJSON[[]egress.Event](c, "denials", future)
}

// SetPolicy replaces the policy of this version; "" is any. cut is how many flows the new one has ended. A daemon of an earlier program
// replaces whichever holds.
func (c *Client) SetPolicy(ctx context.Context, p egress.Policy, version string) (cut int, err error) {
	b, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	future, release := c.daemon.SetPolicy(ctx, func(w daemonwire.Daemon_setPolicy_Params) error {
		return errors.Join(w.SetJson(b), w.SetVersion(version))
	})
	defer release()
	r, err := capnprpc.Await(c.fault, "set the policy", future.Struct)
	if err != nil {
		return 0, err
	}
	return int(r.Cut()), nil
}

// Forward opens one more port, as nat.ParseForward reads it, until the VM ends, and returns the address at which it listens.
func (c *Client) Forward(ctx context.Context, forward string) (address string, err error) {
	future, release := c.daemon.Forward(ctx, func(w daemonwire.Daemon_forward_Params) error { return w.SetForward(forward) })
	defer release()
	r, err := capnprpc.Await(c.fault, "forward", future.Struct)
	if err != nil {
		return "", err
	}
	return r.Address()
}

// LentForwardClient is a port of the host that leads into the VM until Release, or the end of the client's connection.
type LentForwardClient struct {
	c       *Client
	remote  daemonwire.LentForward
	address string
}

// LendForward opens a port, as nat.ParseForward reads it, for this client. It waits while the VM boots.
func (c *Client) LendForward(ctx context.Context, forward string) (*LentForwardClient, error) {
	future, release := c.daemon.LendForward(ctx, func(w daemonwire.Daemon_lendForward_Params) error { return w.SetForward(forward) })
	defer release()
	r, err := capnprpc.Await(c.fault, "forward", future.Struct)
	if err != nil {
		return nil, err
	}
	address, err := r.Address()
	if err != nil {
		return nil, err
	}
	return &LentForwardClient{c: c, remote: r.Lent().AddRef(), address: address}, nil
}

// Address is where the port listens.
func (l *LentForwardClient) Address() string { return l.address }

// Ended waits until another client has closed the port, which is not an error, or the VM has ended.
func (l *LentForwardClient) Ended(ctx context.Context) error {
	future, release := l.remote.Ended(ctx, nil)
	defer release()
	return capnprpc.Done(l.c.fault, "wait for the end of port "+l.address, future.Struct)
}

// Release closes the port. It does not wait for that.
func (l *LentForwardClient) Release() { l.remote.Release() }

// Change changes settings of the VM and of its later starts.
func (c *Client) Change(ctx context.Context, change Change) error {
	b, err := json.Marshal(change)
	if err != nil {
		return err
	}
	future, release := c.daemon.Change(ctx, func(w daemonwire.Daemon_change_Params) error { return w.SetJson(b) })
	defer release()
	return capnprpc.Done(c.fault, "change the VM", future.Struct)
}

// Mounts lists the mounts of the VM.
func (c *Client) Mounts(ctx context.Context) ([]MountInfo, error) {
	future, release := c.daemon.Mounts(ctx, nil)
	defer release()
	return resultJSON[[]MountInfo](c, "mounts", future)
}

// Pause stops the VM until Resume: it takes no processor time, and requests to its guest wait.
func (c *Client) Pause(ctx context.Context) error {
	future, release := c.daemon.Pause(ctx, nil)
	defer release()
	return capnprpc.Done(c.fault, "pause", future.Struct)
}

// Resume continues a paused VM.
func (c *Client) Resume(ctx context.Context) error {
	future, release := c.daemon.Resume(ctx, nil)
	defer release()
	return capnprpc.Done(c.fault, "resume", future.Struct)
}

// Snapshot makes the daemon write the VM into a file, and returns the file's description.
func (c *Client) Snapshot(ctx context.Context, o SnapshotRequest) (snapshot.Meta, error) {
	future, release := c.daemon.Snapshot(ctx, func(w daemonwire.Daemon_snapshot_Params) error {
		w.SetLayered(o.Layered)
		return errors.Join(w.SetPath(o.Path), w.SetComment(o.Comment))
	})
	defer release()
	return resultJSON[snapshot.Meta](c, "snapshot", future)
}
