package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/work/job"
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

// sidecarState is how a sidecar is, and what a daemon that continues with it needs.
type sidecarState struct {
	daemonrpc.SidecarInfo
	Pause Duration  `json:"pause,omitzero"` // the next one, or the present one
	Until time.Time `json:"until,omitzero"` // of the present one
}

// savedSidecar is a sidecar that runSidecars begins with. Its job is nil when it does not run.
type savedSidecar struct {
	sidecarState
	run *job.Job
}

// findSidecars says how the sidecars are in a VM that has just begun to run. It finds the programs of those that ran when it was hibernated:
// their output is appended to their journals.
func (d *daemon) findSidecars(v VM, restore *Restoration) (list []savedSidecar) {
	ctx, cancel := context.WithTimeout(context.Background(), wakeTime)
	defer cancel()
	now := time.Now().UTC()
	for _, s := range d.config.Sidecars {
		one := savedSidecar{sidecarState: sidecarState{SidecarInfo: daemonrpc.SidecarInfo{Name: s.Name, State: daemonrpc.SidecarStarting, Since: now}}}
		if restore.wakes() {
			for _, saved := range restore.Sidecars {
				if saved.Name == s.Name {
					one.sidecarState = saved
				}
			}
		} else if restore != nil && restore.KeepPrograms && !restore.FilesOnly {
			one.State = daemonrpc.SidecarUnwatched
		}
		if one.State == daemonrpc.SidecarRunning {
			d.findSidecar(ctx, v, &one)
		}
		list = append(list, one)
	}
	return list
}

// findSidecar finds the program of a sidecar that ran.
func (d *daemon) findSidecar(ctx context.Context, v VM, s *savedSidecar) {
	var err error
	if s.run, err = d.jobs.adopt(ctx, v, s.Job); err == nil {
		return
	}
	d.logger.Warn("a sidecar is not found in the VM that was hibernated", "sidecar", s.Name, "job", s.Job, "error", err)
	j, unknown := d.jobs.Find(s.Job)
	switch {
	case unknown != nil, errors.Is(err, job.ErrDamaged): // its files are gone, or of no use: it is started again, and must not run twice
		s.State = daemonrpc.SidecarStarting
		if p, err := v.Adopt(ctx, 0, vm.Command{Key: s.Job}); err == nil {
			err = p.Kill(ctx)
			d.logger.Warn("a sidecar without files is ended", "sidecar", s.Name, "error", err)
		}
	case errors.Is(err, fs.ErrNotExist): // a program of the VM has ended it in a way that the guest's supervisor does not know
		j.Lose(err)
		s.run = j
	case errors.Is(err, vm.ErrStopped): // it ends with the VM
		s.State = daemonrpc.SidecarUnwatched
	default:
		j.Lose(err)
		s.State = daemonrpc.SidecarUnwatched
	}
}

// runSidecars starts the sidecars, or continues with them, and starts the goroutines that restart them. stop, which may be called again, ends
// those goroutines; the programs end with the VM.
func (d *daemon) runSidecars(v VM, list []savedSidecar) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	d.mu.Lock()
	for _, s := range list {
		d.sidecars = append(d.sidecars, s.sidecarState)
	}
	d.mu.Unlock()
	for i, s := range list {
		switch s.State {
		case daemonrpc.SidecarUnwatched:
			d.logger.Warn("a sidecar runs on with the other programs and is not watched until the VM's next start", "sidecar", s.Name)
		case daemonrpc.SidecarOver:
		default:
			running.Go(func() { d.keepRunning(ctx, v, d.config.Sidecars[i], i, s) })
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
func (d *daemon) noteSidecar(i int, state daemonrpc.SidecarState, change func(*sidecarState)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sidecars[i].State, d.sidecars[i].Since = state, time.Now().UTC()
	change(&d.sidecars[i])
}

// sidecarStates are what another daemon continues with.
func (d *daemon) sidecarStates() []sidecarState {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.sidecars)
}

// infosOf is what Info says about sidecars.
func infosOf(sidecars []sidecarState) (list []daemonrpc.SidecarInfo) {
	for _, s := range sidecars {
		list = append(list, s.SidecarInfo)
	}
	return list
}

// holdSidecars keeps sidecars from starting until starting is unlocked: the guest has each program, or has never heard of it. It reports whether none
// is being started.
func (d *daemon) holdSidecars() bool {
	for range 100 {
		if d.starting.TryLock() {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// SidecarLabel is the label of a sidecar's jobs.
func SidecarLabel(name string) string { return "sidecar " + name }

// startSidecar starts a sidecar's program.
func (d *daemon) startSidecar(ctx context.Context, v VM, s Sidecar) (*job.Job, error) {
	d.starting.RLock()
	defer d.starting.RUnlock()
	if d.asleep.Load() {
		return nil, vm.ErrStopped
	}
	return d.jobs.start(ctx, v, guestrpc.Request{Args: s.Args, Env: s.Env, Dir: s.Dir, User: s.User},
		daemonrpc.JobOptions{Durable: true, Label: SidecarLabel(s.Name)}, forVM)
}

// keepRunning restarts a sidecar, the i-th, until its policy or the VM's end forbids it.
func (d *daemon) keepRunning(ctx context.Context, v VM, s Sidecar, i int, saved savedSidecar) {
	first := cmp.Or(time.Duration(s.Backoff), defaultBackoff)
	pause := max(first, time.Duration(saved.Pause))
	j, began, err := saved.run, saved.Since, error(nil)
	last, _ := d.jobs.Find(saved.Job)
	if saved.State == daemonrpc.SidecarWaiting && !sleep(ctx, min(time.Until(saved.Until), pause)) {
		return
	}
	for ; ; j = nil {
		if j == nil {
			began = time.Now()
			if j, err = d.startSidecar(ctx, v, s); err == nil {
				d.forgetRun(last)
				last = j
				d.noteSidecar(i, daemonrpc.SidecarRunning, func(s *sidecarState) { s.Job = j.ID() })
			}
		}
		if err == nil {
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
			d.noteSidecar(i, daemonrpc.SidecarOver, func(s *sidecarState) { s.Last = how })
			d.logger.Info("a sidecar is over", "sidecar", s.Name, "how", how)
			return
		}
		if time.Since(began) >= maxBackoff {
			pause = first
		}
		now := pause
		pause = max(first, min(2*pause, maxBackoff))
		d.noteSidecar(i, daemonrpc.SidecarWaiting, func(s *sidecarState) {
			s.Last, s.Restarts, s.Pause, s.Until = how, s.Restarts+1, Duration(pause), time.Now().Add(now).UTC()
		})
		d.logger.Warn("a sidecar has ended and is started again", "sidecar", s.Name, "how", how, "in", now)
		if !sleep(ctx, now) {
			return
		}
	}
}

// sleep returns false when ctx ends first.
func sleep(ctx context.Context, pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		return false
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
