//go:build unix

package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/work/job"
	"agentvm/vm"
)

// withoutDescriptors runs do while this process cannot open files.
func withoutDescriptors(t *testing.T, do func()) {
	t.Helper()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	low := before
	low.Cur = 256
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	var held []*os.File
	defer func() {
		for _, f := range held {
			f.Close()
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
			t.Fatal(err)
		}
	}()
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		held = append(held, f)
	}
	do()
}

// A daemon without free descriptors does not remove the output of earlier jobs, and does not take its state file for another daemon's.
func TestShortageRemovesNothing(t *testing.T) {
	s := Store{Dir: filepath.Join(t.TempDir(), "vms")}
	p := keptVM(t, s, "dev")
	own := state{
		Version: protocolVersion, Name: "dev", Pid: os.Getpid(), Started: time.Now(), Address: "127.0.0.1:1", Token: newToken(),
	}
	if err := p.writeState(own); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	dir := filepath.Join(p.jobs(), "0a0b0c0d")
	m := newJobs(p.jobs(), log, time.Now, nil)
	_, err := m.Start(job.Options{ID: filepath.Base(dir), Dir: dir}, func(s job.Streams) (job.Process, error) {
		p, err := newFakeVM().Start(t.Context(), vm.Command{Args: []string{"echo", "output"}, Stdout: s.Stdout})
		return job.Wrap(p, func(r *vm.Result) job.End { return job.End{Code: r.ExitCode} }), err
	})
	if err != nil {
		t.Fatal(err)
	}
	m.Wait(vm.ErrStopped)
	m.Close()
	d := &daemon{store: s, name: "dev", paths: p, state: own, logger: log, booted: make(chan struct{})}
	withoutDescriptors(t, func() {
		if _, err := os.Open(job.JournalPath(dir)); err == nil {
			t.Error("there are descriptors")
		}
		newJobs(p.jobs(), log, time.Now, nil).Load(p.jobs(), errUnseen)
		if why := d.reasonToStop(time.Now()); why != "" {
			t.Errorf("the daemon stops: %s", why)
		}
	})
	if _, err := os.Stat(job.JournalPath(dir)); err != nil {
		t.Errorf("the job's output was removed: %v", err)
	}
	if why := d.reasonToStop(time.Now()); why != "" {
		t.Errorf("afterwards the daemon stops: %s", why)
	}
	if err := os.WriteFile(p.state(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if d.reasonToStop(time.Now()) == "" {
		t.Error("a damaged state is none")
	}
}
