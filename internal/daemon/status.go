package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
)

// State is the state of a VM.
type State string

// States.
const (
	Starting State = "starting" // its daemon does not listen yet
	Booting  State = "booting"
	// Restarting is a VM whose guest has restarted itself: it boots again, at once or, when that happens often, after a pause.
	Restarting State = "restarting"
	Paused     State = "paused"
	Running    State = "running"
	Stopping   State = "stopping"
	Failed     State = "failed" // it ended by itself, or could not be started: see Status.Error
	Stopped    State = "stopped"
	Hibernated State = "hibernated" // it is saved, and continues when a client connects; Status.Error says why it could not the last time
	Crashed    State = "crashed"    // the daemon was killed
	// Unreachable is a VM whose daemon lives and does not answer: see Status.Error.
	Unreachable State = "unreachable"
)

// Status describes a VM.
type Status struct {
	Name   string    `json:"name"`
	State  State     `json:"state"`
	Error  string    `json:"error,omitempty"`
	Ended  time.Time `json:"ended,omitzero"`   // when the last daemon ended, unless one lives
	Reason string    `json:"reason,omitempty"` // what ended it
	// Restarts is how often the guest has restarted itself under the present daemon, and Restarted the time of the last one.
	Restarts  int       `json:"restarts,omitempty"`
	Restarted time.Time `json:"restarted,omitzero"`
	Config    Config    `json:"config"`
	// Image is the one that the VM's files belong to; empty for a VM that keeps none or has never run.
	Image string `json:"image,omitempty"`
	// Platform is the image's; empty as Image.
	Platform string `json:"platform,omitempty"`
	// Info is the daemon's answer; nil when there is none.
	Info *daemonrpc.Info `json:"info,omitempty"`
	// Ports are those that the activator holds for a VM that is hibernated, as Info has them.
	Ports []string `json:"ports,omitempty"`
	// Door is the address at which the daemon listens for clients: "unix:daemon.sock", a socket in the VM's folder, or 127.0.0.1:PORT.
	// Empty when it does not answer.
	Door string `json:"door,omitempty"`
	// Metrics is the address at which the daemon serves /metrics; empty when it does not, or when no daemon lives.
	Metrics string `json:"metrics,omitempty"`
}

const (
	// askTime is how long a daemon may take to describe itself.
	askTime = 2 * time.Second
	askers  = 8
	// dyingTime is how long a daemon that refuses connections, or does not listen, may take to begin or to end.
	dyingTime = time.Second
)

// List describes every VM of the store, sorted by name, and cleans up after daemons that died.
func (s Store) List(ctx context.Context) ([]Status, error) {
	s.reviveActivator()
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found := make([]*Status, len(entries))
	var asking sync.WaitGroup
	slots := make(chan struct{}, askers)
	for i, e := range entries {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			status, err := s.Status(ctx, e.Name())
			if errors.Is(err, private.ErrNotPrivate) {
				status, err = Status{Name: e.Name(), State: Failed, Error: err.Error()}, nil
			}
			if err == nil {
				found[i] = &status
			}
		})
	}
	asking.Wait()
	var list []Status
	for _, status := range found {
		if status != nil {
			list = append(list, *status)
		}
	}
	return list, ctx.Err()
}

// Status describes one VM. When there is none of that name the error is ErrNotFound.
func (s Store) Status(ctx context.Context, name string) (Status, error) {
	p, err := s.existing(name)
	if err != nil {
		return Status{}, err
	}
	var status Status
	known := Status{Name: name}
	if known.Config, err = readConfig(p.config()); err != nil {
		known.Error = err.Error()
	}
	if image, _ := p.readDiskImage(); image.Name != "" {
		known.Image, known.Platform = image.Name, image.Architecture.Platform()
	}
	for deadline := time.Now().Add(dyingTime); ; time.Sleep(goneRetry) { // a daemon may end, or another begin, meanwhile
		status = known
		alive, unlock, err := probe(p)
		if err != nil {
			return status, err
		}
		if !alive {
			err := errors.Join(status.past(p), unlock())
			atomicfile.RemoveAllTemporary(p.dir)
			return status, err
		}
		if s.ask(ctx, p, &status) || time.Now().After(deadline) || ctx.Err() != nil {
			if status.State == Failed && p.asleep() { // to wake, and its daemon has not ended yet
				status.State = Hibernated
			}
			return status, nil
		}
	}
}

// past sets the state from the files of a daemon that has ended.
func (s *Status) past(p paths) error {
	cleanUp(p)
	end, err := p.readEnd()
	switch {
	case errors.Is(err, fs.ErrNotExist): // never started
		s.State = Stopped
		return nil
	case err != nil:
		s.State, s.Error = Stopped, err.Error()
		return nil
	}
	s.State, s.Ended, s.Error, s.Reason = Stopped, end.Ended, end.Error, end.Reason
	switch {
	case p.asleep(): // also when its daemon was killed after it had saved the VM, or could not wake it
		s.State = Hibernated
		if r := p.heldPorts(); r != nil {
			for _, port := range r.Ports {
				s.Ports = append(s.Ports, describePort(port))
			}
		}
	case end.Crashed:
		s.State = Crashed
	case end.Error != "":
		s.State = Failed
	}
	return nil
}

// ask sets the state from the answer of a living daemon. It reports whether that is final.
func (s Store) ask(ctx context.Context, p paths, status *Status) bool {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	st, err := p.readState(status.Name)
	if errors.Is(err, fs.ErrNotExist) {
		status.State = Starting
		if end, err := p.readEnd(); err == nil {
			status.State = Stopping
			if end.Error != "" { // it only has to release the lock
				status.State, status.Ended, status.Error = Failed, end.Ended, end.Error
			}
		}
		return false
	}
	if err != nil {
		status.State, status.Error = Unreachable, err.Error()
		return true
	}
	info, err := s.askInfo(ctx, p, st)
	if _, statErr := os.Stat(p.saving()); err != nil && statErr == nil {
		status.State = Stopping
		return true
	}
	if err != nil {
		status.State, status.Error = Unreachable, err.Error()
		var version *VersionError
		return ctx.Err() != nil || errors.As(err, &version) // a daemon that was just killed refuses connections for a moment before its lock is free
	}
	status.State, status.Error, status.Info = stateOf(info.State), info.Error, &info
	status.Door, status.Metrics, status.Restarts, status.Restarted = st.Address, st.Metrics, st.Restarts, st.Restarted
	if status.State == Booting && st.Restarts > 0 {
		status.State = Restarting
	}
	return true
}

// stateOf converts the state in a daemon's answer. A daemon that answers has started, so that its "starting" is Booting.
func stateOf(s daemonrpc.State) State {
	if s == daemonrpc.Starting {
		return Booting
	}
	return State(s.String())
}

// State is the VM's state.
func (c *Client) State(ctx context.Context) (State, error) {
	info, err := c.Info(ctx)
	return stateOf(info.State), err
}

func (s Store) askInfo(ctx context.Context, p paths, st state) (daemonrpc.Info, error) {
	client, err := s.dial(ctx, st.Name, p, st)
	if err != nil {
		return daemonrpc.Info{}, err
	}
	info, err := client.Info(ctx)
	return info, errors.Join(err, client.Close())
}

// cleanUp removes the files of a dead daemon, and records that it was killed when it has not recorded its end. The caller holds the
// lock, shared or not. After an error the next caller tries again.
func cleanUp(p paths) {
	_ = os.Remove(p.process())
	_ = os.Remove(p.socket())
	_, err := os.Stat(p.state())
	if err != nil {
		return
	}
	if _, err := p.readEnd(); err != nil {
		if err := p.writeEnd(ending{Crashed: true, Reason: "its daemon was killed, or ended without a word"}); err != nil {
			return
		}
		noteCrash(p)
	}
	_ = os.Remove(p.state())
}
