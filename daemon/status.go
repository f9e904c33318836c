package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"agentvm/rpc"
)

// State says how a VM is.
type State string

// States.
const (
	Starting State = "starting" // its daemon does not listen yet
	Booting  State = "booting"
	Paused   State = "paused"
	Running  State = "running"
	Stopping State = "stopping"
	Failed   State = "failed" // it ended by itself, or could not be started: see Status.Error
	Stopped  State = "stopped"
	Crashed  State = "crashed" // the daemon was killed; nothing of it is left
	// Unreachable is a daemon that lives and does not answer: see Status.Error.
	Unreachable State = "unreachable"
)

// Status is what is known of a VM.
type Status struct {
	Name   string    `json:"name"`
	State  State     `json:"state"`
	Error  string    `json:"error,omitempty"`
	Ended  time.Time `json:"ended,omitzero"` // when the last daemon ended, unless one lives
	Config Config    `json:"config"`
	// Info is the daemon's answer; nil when there is none.
	Info *rpc.DaemonInfo `json:"info,omitempty"`
	// Metrics is where the daemon serves /metrics; empty when it does not, or none lives.
	Metrics string `json:"metrics,omitempty"`
}

const (
	// askTime is how long a daemon may take to say how it is.
	askTime = 2 * time.Second
	askers  = 8
)

// List tells about every VM of the store, sorted by name, and cleans up after daemons that died.
func (s Store) List(ctx context.Context) ([]Status, error) {
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
			if status, err := s.Status(ctx, e.Name()); err == nil {
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

// Status tells about one VM. ErrNotFound when there is none of that name.
func (s Store) Status(ctx context.Context, name string) (Status, error) {
	p, err := s.existing(name)
	if err != nil {
		return Status{}, err
	}
	status := Status{Name: name}
	if status.Config, err = readConfig(p.config()); err != nil {
		status.Error = err.Error()
	}
	for range 2 { // a daemon may end, or another begin, while it is asked
		alive, unlock, err := probe(p)
		if err != nil {
			return status, err
		}
		if !alive {
			err := status.past(p)
			return status, errors.Join(err, unlock())
		}
		if s.ask(ctx, p, &status) {
			break
		}
	}
	return status, nil
}

// past fills in what a dead daemon has left.
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
	s.State, s.Ended, s.Error = Stopped, end.Ended, end.Error
	switch {
	case end.Crashed:
		s.State = Crashed
	case end.Error != "":
		s.State = Failed
	}
	return nil
}

// ask asks a living daemon; it says whether the answer is final.
func (s Store) ask(ctx context.Context, p paths, status *Status) bool {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	st, err := p.readState(status.Name)
	if errors.Is(err, fs.ErrNotExist) {
		status.State = Starting
		if end, err := p.readEnd(); err == nil {
			status.State = Stopping
			if end.Error != "" { // all that is left to it is to let go of the lock
				status.State, status.Ended, status.Error = Failed, end.Ended, end.Error
			}
		}
		return false
	}
	var info rpc.DaemonInfo
	if err == nil {
		info, err = s.askInfo(ctx, p, st)
	}
	if err != nil {
		status.State, status.Error = Unreachable, err.Error()
		return false
	}
	status.State, status.Error, status.Info = stateOf(info.State), info.Error, &info
	status.Metrics = st.Metrics
	return true
}

// stateOf is what a daemon that answers says; only one that boots has not started.
func stateOf(s rpc.DaemonState) State {
	if s == rpc.DaemonStarting {
		return Booting
	}
	return State(s.String())
}

func (s Store) askInfo(ctx context.Context, p paths, st state) (rpc.DaemonInfo, error) {
	client, err := s.dial(ctx, st.Name, p, st)
	if err != nil {
		return rpc.DaemonInfo{}, err
	}
	info, err := client.Info(ctx)
	return info, errors.Join(err, client.Close())
}

// cleanUp removes what a dead daemon has left behind and notes that it was killed when it could not say how it ended.
// The caller holds the lock, shared or not; errors are for the next one to find again.
func cleanUp(p paths) {
	_, err := os.Stat(p.state())
	if err != nil {
		return
	}
	if _, err := p.readEnd(); err != nil {
		if err := p.writeEnd(ending{Crashed: true}); err != nil {
			return
		}
	}
	_ = os.Remove(p.state())
}
