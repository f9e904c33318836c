package daemon

import (
	"slices"
	"strings"
	"testing"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/work/job"
)

// sidecarRuns are the jobs of a sidecar.
func sidecarRuns(t testing.TB, c *Client, name string) (list []job.Info) {
	t.Helper()
	all, err := c.Jobs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(i job.Info) bool { return i.Label != "sidecar "+name })
}

func TestSidecars(t *testing.T) {
	d := startInside(t, Config{Sidecars: []Sidecar{
		{Name: "steady", Args: []string{"sleep"}},
		{Name: "ends", Args: []string{"exit", "0"}, Backoff: Duration(time.Millisecond)},
		{Name: "fails", Args: []string{"exit", "3"}, Restart: OnFailure, Backoff: Duration(time.Millisecond)},
		{Name: "done", Args: []string{"exit", "0"}, Restart: OnFailure, Backoff: Duration(time.Millisecond)},
		{Name: "once", Args: []string{"exit", "3"}, Restart: Never, Backoff: Duration(time.Millisecond)},
		{Name: "refused", Args: []string{"refuse"}, Backoff: Duration(time.Millisecond)},
	}}, timing{}, nil)
	c := d.connect(t)
	for _, name := range []string{"ends", "fails"} {
		await(t, name+" to run", func() bool { return len(sidecarRuns(t, c, name)) > 0 })
		first := sidecarRuns(t, c, name)[0].ID
		await(t, name+" to run again, and its first run to be forgotten", func() bool {
			runs := sidecarRuns(t, c, name)
			return len(runs) > 0 && len(runs) <= 2 && runs[0].ID != first
		})
	}
	for _, name := range []string{"done", "once"} {
		await(t, name+" to end", func() bool {
			runs := sidecarRuns(t, c, name)
			return len(runs) == 1 && runs[0].Exit != nil
		})
	}
	once := sidecarRuns(t, c, "once")[0].ID
	await(t, "a job of the steady one", func() bool { return len(sidecarRuns(t, c, "steady")) == 1 })
	if runs := sidecarRuns(t, c, "once"); len(runs) != 1 || runs[0].ID != once {
		t.Errorf("once: %+v", runs)
	}
	states := func() (list map[string]daemonrpc.SidecarInfo) {
		info, err := c.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		list = make(map[string]daemonrpc.SidecarInfo)
		for _, s := range info.Sidecars {
			list[s.Name] = s
		}
		return list
	}
	await(t, "Info to say how they are", func() bool {
		s := states()
		return len(s) == 6 && s["steady"].State == daemonrpc.SidecarRunning && s["steady"].Restarts == 0 && s["fails"].Restarts > 0 &&
			s["once"] == daemonrpc.SidecarInfo{Name: "once", State: daemonrpc.SidecarOver, Since: s["once"].Since, Job: once, Last: "exit code 3"} &&
			s["done"].State == daemonrpc.SidecarOver && s["done"].Last == "exit code 0" && s["refused"].Job == "" && s["refused"].Restarts > 0
	})
	if err := c.Stop(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
	log, err := readTail(d.paths().log(), 1<<20)
	if text := string(log); err != nil || !strings.Contains(text, "sidecar=refused") || !strings.Contains(text, "sidecar=done") {
		t.Errorf("%v, log:\n%s", err, log)
	}
}

// TestSidecarIsNoUse: a VM that runs only a sidecar is idle.
func TestSidecarIsNoUse(t *testing.T) {
	d := startInside(t, Config{IdleTimeout: Duration(100 * time.Millisecond), Sidecars: []Sidecar{{Name: "a", Args: []string{"sleep"}}}}, timing{}, nil)
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
	if s := d.status(t); s.State != Stopped {
		t.Errorf("status %+v", s)
	}
}

func TestCheckSidecars(t *testing.T) {
	ok := Sidecar{Name: "a", Args: []string{"true"}}
	for name, list := range map[string][]Sidecar{
		"no name":       {{Args: []string{"true"}}},
		"two of a name": {ok, ok},
		"no command":    {{Name: "a"}},
		"policy":        {{Name: "a", Args: ok.Args, Restart: "no"}},
		"backoff":       {{Name: "a", Args: ok.Args, Backoff: -1}},
		"env":           {{Name: "a", Args: ok.Args, Env: []string{"A"}}},
		"too many":      make([]Sidecar, maxSidecars+1),
	} {
		if err := checkSidecars(list); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := checkSidecars([]Sidecar{ok}); err != nil {
		t.Error(err)
	}
}

// TestSidecarLost: a sidecar that is not found in the VM that was saved has ended, and is started again. A VM whose supervisor keeps none
// stays awake.
func TestSidecarLost(t *testing.T) {
	config := Config{HibernateAfter: Duration(50 * time.Millisecond), Sidecars: []Sidecar{
		{Name: "a", Args: []string{"sleep"}, Backoff: Duration(time.Millisecond)}, {Name: "once", Args: []string{"sleep"}, Restart: Never},
	}}
	d, c := startUsed(t, config)
	await(t, "both to run", func() bool {
		list := sidecarsOf(t, c)
		return list["a"].State == daemonrpc.SidecarRunning && list["once"].State == daemonrpc.SidecarRunning
	})
	_ = c.Close()
	if err := d.wait(t); err != nil {
		t.Fatal(err)
	}
	if s := d.status(t); s.State != Hibernated {
		t.Fatalf("%+v", s)
	}
	d.vm = newFakeVM()
	d.vm.forgot, d.vm.old = true, true
	d.restart(t, config, timing{}, nil)
	c = d.connect(t)
	await(t, "another run", func() bool {
		list := sidecarsOf(t, c)
		return list["a"].State == daemonrpc.SidecarRunning && list["a"].Restarts == 1 && strings.Contains(list["a"].Last, "no program") &&
			list["once"].State == daemonrpc.SidecarOver && strings.Contains(list["once"].Last, "no program")
	})
	_ = c.Close()
	await(t, "the reason to stay awake", func() bool {
		log, err := readTail(d.paths().log(), 1<<20)
		return err == nil && strings.Contains(string(log), "earlier version")
	})
	if s := d.status(t); s.State != Running {
		t.Errorf("%+v", s)
	}
}
