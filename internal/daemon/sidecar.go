package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"agentvm/internal/daemonrpc"
	"agentvm/internal/guestrpc"
	"agentvm/internal/job"
	"agentvm/vm"
)

// Sidecar is a program that runs as long as its VM: a durable job that the daemon starts, and restarts.
//
//	VM runs ─► start ─► runs ─► ended ─── never, or on-failure and exit 0 ──► over
//	             ▲                │
//	             └──── pause ◄────┘   backoff, doubled with each end up to a minute; reset by a run of a minute
//
// It does not count as use of the VM for Config.IdleTimeout.
type Sidecar struct {
	Name    string        `json:"name"` // unique within the VM
	Args    []string      `json:"args"`
	Env     []string      `json:"env,omitempty"`     // KEY=VALUE
	Dir     string        `json:"dir,omitempty"`     // default: the image's, or /
	User    string        `json:"user,omitempty"`    // default: root
	Restart RestartPolicy `json:"restart,omitempty"` // default: Always
	Backoff Duration      `json:"backoff,omitzero"`  // default: 1 s
}

// RestartPolicy says when a sidecar, or a VM, that has ended is started again.
type RestartPolicy string

// Policies.
const (
	Always    RestartPolicy = "always"
	OnFailure RestartPolicy = "on-failure" // its exit code is not 0, or it could not be started
	Never     RestartPolicy = "never"
)

const (
	defaultBackoff = time.Second
	// maxBackoff bounds the pause. It is also how long a sidecar must run to reset the pause.
	maxBackoff  = time.Minute
	maxSidecars = 64
)

func validRestart(p RestartPolicy) bool {
	return slices.Contains([]RestartPolicy{"", Always, OnFailure, Never}, p)
}

func checkSidecars(list []Sidecar) error {
	if len(list) > maxSidecars {
		return fmt.Errorf("%d sidecars: a VM can have at most %d", len(list), maxSidecars)
	}
	names := make(map[string]bool)
	for _, s := range list {
		switch {
		case s.Name == "" || len(s.Name) > 64 || names[s.Name]:
			return fmt.Errorf("sidecar %.80q: want a name of its own, of up to 64 bytes", s.Name)
		case len(s.Args) == 0 || s.Args[0] == "":
			return fmt.Errorf("sidecar %s: it has no command", s.Name)
		case !validRestart(s.Restart):
			return fmt.Errorf("sidecar %s: restart %.40q: want always, on-failure or never", s.Name, s.Restart)
		case s.Backoff < 0:
			return fmt.Errorf("sidecar %s: backoff %v: want a positive time, or 0 for %v", s.Name, time.Duration(s.Backoff), defaultBackoff)
		}
		for _, kv := range s.Env {
			if key, _, found := strings.Cut(kv, "="); key == "" || !found {
				return fmt.Errorf("sidecar %s: environment variable %.80q: want KEY=VALUE", s.Name, kv)
			}
		}
		names[s.Name] = true
	}
	return nil
}

// runSidecars starts the sidecars and the goroutines that restart them. stop, which may be called again, ends those goroutines; the
// programs end with the VM.
func (d *daemon) runSidecars(v VM, restore *Restoration) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	list := d.config.Sidecars
	state := daemonrpc.SidecarStarting
	if len(list) > 0 && restore != nil && restore.KeepPrograms {
		d.logger.Warn("sidecars run on with the other programs and are not watched until the VM's next start")
		state = daemonrpc.SidecarUnwatched
	}
	d.mu.Lock()
	for _, s := range list {
		d.sidecars = append(d.sidecars, daemonrpc.SidecarInfo{Name: s.Name, State: state, Since: time.Now().UTC()})
	}
	d.mu.Unlock()
	if state == daemonrpc.SidecarStarting {
		for i, s := range list {
			running.Go(func() { d.keepRunning(ctx, v, s, i) })
		}
	}
	return func() {
		cancel()
		running.Wait()
		d.mu.Lock()
		d.sidecars = nil
		d.mu.Unlock()
	}
}

// noteSidecar changes what Info says about a sidecar.
func (d *daemon) noteSidecar(i int, state daemonrpc.SidecarState, change func(*daemonrpc.SidecarInfo)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sidecars[i].State, d.sidecars[i].Since = state, time.Now().UTC()
	change(&d.sidecars[i])
}

// SidecarLabel is the label of a sidecar's jobs.
func SidecarLabel(name string) string { return "sidecar " + name }

// keepRunning restarts a sidecar, the i-th, until its policy or the VM's end forbids it.
func (d *daemon) keepRunning(ctx context.Context, v VM, s Sidecar, i int) {
	first := time.Duration(s.Backoff)
	if first == 0 {
		first = defaultBackoff
	}
	pause := first
	var last *job.Job
	for {
		began := time.Now()
		j, err := d.jobs.start(ctx, v, guestrpc.Request{Args: s.Args, Env: s.Env, Dir: s.Dir, User: s.User},
			daemonrpc.JobOptions{Durable: true, Label: SidecarLabel(s.Name)}, forVM)
		if err == nil {
			d.forgetRun(last)
			last = j
			d.noteSidecar(i, daemonrpc.SidecarRunning, func(s *daemonrpc.SidecarInfo) { s.Job = j.ID() })
			select {
			case <-j.Done():
			case <-ctx.Done():
				return
			}
		}
		if ctx.Err() != nil || errors.Is(err, vm.ErrStopped) {
			return
		}
		how := howEnded(j, err)
		if !s.again(j, err) {
			d.noteSidecar(i, daemonrpc.SidecarOver, func(s *daemonrpc.SidecarInfo) { s.Last = how })
			d.logger.Info("a sidecar is over", "sidecar", s.Name, "how", how)
			return
		}
		if time.Since(began) >= maxBackoff {
			pause = first
		}
		d.noteSidecar(i, daemonrpc.SidecarWaiting, func(s *daemonrpc.SidecarInfo) { s.Last, s.Restarts = how, s.Restarts+1 })
		d.logger.Warn("a sidecar has ended and is started again", "sidecar", s.Name, "how", how, "in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = max(first, min(2*pause, maxBackoff))
	}
}

// forgetRun removes an earlier run of a sidecar, so that a sidecar that ends often does not push out other jobs.
func (d *daemon) forgetRun(j *job.Job) {
	if j == nil {
		return
	}
	if err := j.Remove(); err != nil {
		d.logger.Warn("forget a run of a sidecar", "job", j.ID(), "error", err)
	}
}

// again reports whether a sidecar that has ended, or could not be started, is to be restarted.
func (s Sidecar) again(j *job.Job, err error) bool {
	switch s.Restart {
	case Never:
		return false
	case OnFailure:
		return err != nil || j.Info().Exit == nil || j.Info().Exit.Code != 0
	}
	return true
}

func howEnded(j *job.Job, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case j.Info().Error != "":
		return j.Info().Error
	}
	return fmt.Sprintf("exit code %d", j.Info().Exit.Code)
}
