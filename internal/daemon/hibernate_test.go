package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/nat"
	"agentvm/vm"
)

func sleeps(t testing.TB, s Store) {
	t.Helper()
	await(t, "hibernation", func() bool {
		p, _ := s.paths("dev")
		alive, unlock, err := probe(p)
		return err == nil && !alive && unlock() == nil && p.asleep()
	})
	if st, err := s.Status(t.Context(), "dev"); err != nil || st.State != Hibernated || !strings.Contains(st.Reason, "hibernated") {
		t.Fatalf("%+v, %v", st, err)
	}
}

// TestHibernate: a VM that is not used is saved, and its process ends. Whoever connects finds it as it was: its programs, its files, its
// address, and the time of now. Stop ends it in order.
func TestHibernate(t *testing.T) {
	config := realConfig(t)
	config.HibernateAfter = Duration(time.Second)
	s := testStore(t, roleReal)
	c, err := s.Start(t.Context(), "dev", config, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := s.paths("dev")
	showLog(t, p)
	const who = "cat /sys/class/net/eth0/address /etc/hostname"
	was, _ := shell(t, c, daemonrpc.JobOptions{}, who)
	shell(t, c, daemonrpc.JobOptions{}, "echo kept >/root/kept; (i=0; while sleep 0.1; do i=$((i+1)); echo $i >/root/next; mv /root/next /root/count; done) >/dev/null 2>&1 </dev/null & until [ -s /root/count ]; do sleep 0.1; done")
	checkFlows(t, c)
	pid := c.Pid()
	_ = c.Close()
	for round := range 2 {
		sleeps(t, s)
		time.Sleep(time.Second) // which the guest's clock must not miss

		if saved, _ := filepath.Glob(filepath.Join(p.dir, hibernatedFiles+"*")); len(saved) != 2 { // a disk is beside it
			t.Errorf("saved: %q", saved)
		}
		began := time.Now()
		c, err = s.Connect(t.Context(), "dev")
		if err != nil {
			t.Fatal(err)
		}
		out, _ := shell(t, c, daemonrpc.JobOptions{}, "date +%s; cat /root/kept; a=$(cat /root/count); i=0; until [ $(cat /root/count) -gt $a ] || [ $i = 300 ]; do sleep 0.1; i=$((i+1)); done; "+
			"[ $(cat /root/count) -gt $a ] && echo runs on; "+who)
		used := time.Now()
		t.Logf("woken and used after %v", time.Since(began))
		now, rest, _ := strings.Cut(out, "\n")
		if at, err := time.ParseDuration(now + "s"); err != nil || at < time.Duration(began.Unix()-1)*time.Second || at > time.Duration(used.Unix()+5)*time.Second {
			t.Errorf("clock: %s at %d", now, began.Unix())
		}
		if rest != "kept\nruns on\n"+was || c.Pid() == pid {
			t.Errorf("round %d: %q, before %q", round, rest, was)
		}
		_ = c.Close()
	}
	sleeps(t, s)
	if how, err := s.Stop(t.Context(), "dev", 10*time.Second); err != nil || how != StoppedByAsk {
		t.Errorf("%v, %v", how, err)
	}
	if st, err := s.Status(t.Context(), "dev"); err != nil || st.State != Stopped {
		t.Errorf("%+v, %v", st, err)
	}
	if _, err := s.Connect(t.Context(), "dev"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("stopped: %v", err)
	}
	if c, err = s.Start(t.Context(), "dev", config, nil); err != nil {
		t.Fatal(err)
	}
	if out, _ := shell(t, c, daemonrpc.JobOptions{}, "cat /root/kept; cat /proc/uptime >/dev/null && ls /root"); !strings.HasPrefix(out, "kept\n") {
		t.Errorf("after stop and start: %q", out)
	}
	if saved, _ := filepath.Glob(filepath.Join(p.dir, hibernatedFiles+"*")); len(saved) != 0 {
		t.Errorf("left: %q", saved)
	}
	if err := errors.Join(c.Stop(t.Context(), 0), c.Close()); err != nil {
		t.Error(err)
	}
}

// checkFlows: each kind of connection that a VM's network counts keeps it awake, and nothing else does.
func checkFlows(t *testing.T, c *Client) {
	t.Helper()
	stats, err := c.NetworkStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kinds := 0
	for _, l := range stats.Limits {
		if l.Used = 1; hasFlows(vm.NetworkStats{Limits: []nat.LimitUse{l}}) {
			kinds++
		}
	}
	if kinds != 3 || len(stats.Limits) < 6 || hasFlows(stats) { // TCP, UDP, port forwards
		t.Errorf("%d of %+v keep a VM awake", kinds, stats.Limits)
	}
}

// TestHibernateWhenIdle: clients, jobs and published ports keep a VM awake, other starts do not replace one that sleeps, and several clients
// wake it once.
func TestHibernateWhenIdle(t *testing.T) {
	s := testStore(t, roleFake)
	config := Config{HibernateAfter: Duration(time.Second)}
	c, err := s.Start(t.Context(), "dev", config, nil)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if st, err := s.Status(t.Context(), "dev"); err != nil || st.State != Running {
		t.Errorf("with a client: %+v, %v", st, err)
	}
	_ = c.Close()
	sleeps(t, s)
	other := config
	other.Labels = map[string]string{"a": "b"}
	if _, err := s.Start(t.Context(), "dev", other, nil); !errors.Is(err, ErrRunning) {
		t.Errorf("another configuration: %v", err)
	}
	pids, reported := make(chan int, 8), make(chan struct{})
	for range cap(pids) {
		go func() {
			c, err := s.Connect(t.Context(), "dev")
			if err != nil {
				t.Error(err)
				pids <- 0
				return
			}
			_ = c.AwaitReady(t.Context(), nil)
			pids <- c.Pid()
			<-reported // or it may hibernate before the others come
			_ = c.Close()
		}()
	}
	first := <-pids
	for range cap(pids) - 1 {
		if pid := <-pids; pid != first {
			t.Errorf("processes %d and %d", first, pid)
		}
	}
	close(reported)
	sleeps(t, s)
	if err := s.Rename(t.Context(), "dev", "dev2"); err != nil {
		t.Fatal(err)
	}
	if err := s.Rename(t.Context(), "dev2", "dev"); err != nil {
		t.Fatal(err)
	}
	if c, err = s.Start(t.Context(), "dev", config, nil); err != nil { // wakes it
		t.Fatal(err)
	}
	if err := errors.Join(c.Stop(t.Context(), 0), c.Close()); err != nil {
		t.Error(err)
	}
}

// TestHibernateInterrupted: a daemon that is killed before the VM is saved leaves a crashed VM; a saved one is hibernated however its daemon
// has ended, and what is not needed is removed.
func TestHibernateInterrupted(t *testing.T) {
	s := testStore(t, roleFake)
	c, err := s.Start(t.Context(), "dev", Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := s.paths("dev")
	half := strings.Replace(hibernatedFiles, "*", "1", 1)
	half = filepath.Join(p.dir, half)
	left := filepath.Join(p.dir, strings.Replace(hibernatedFiles, "*", "0", 1)+".0123456789abcdef.disk")
	if err := errors.Join(os.WriteFile(half, nil, 0o600), os.Mkdir(left, 0o700), os.WriteFile(p.saving(), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	process, _ := os.FindProcess(c.Pid())
	_ = process.Kill()
	_ = c.Close()
	if err := awaitGone(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Status(t.Context(), "dev"); err != nil || st.State != Crashed {
		t.Errorf("%+v, %v", st, err)
	}
	if _, err := s.Connect(t.Context(), "dev"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("%v", err)
	}
	if err := p.writeRestoration(Restoration{Snapshot: half, Hibernated: true, KeepPrograms: true, SameIdentity: true, Began: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Status(t.Context(), "dev"); err != nil || st.State != Hibernated {
		t.Errorf("%+v, %v", st, err)
	}
	if c, err = s.Connect(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitReady(t.Context(), nil); err != nil {
		t.Error(err)
	}
	for _, path := range []string{half, left, p.saving(), p.restore()} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
	if err := errors.Join(c.Stop(t.Context(), 0), c.Close()); err != nil {
		t.Error(err)
	}
}
