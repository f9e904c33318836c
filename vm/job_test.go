package vm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/share/guestfs/guestfstest"
	"agentvm/internal/storage/journal"
	"agentvm/vm"
)

// readOutput reads from a place to the end. It returns each stream, and what was lost.
func readOutput(t testing.TB, r vm.Job, from journal.Cursor, max int) (stdout, stderr string, lost uint64, end vm.JobOutput) {
	t.Helper()
	var streams [3]bytes.Buffer
	for {
		o, err := r.Output(limited(t), from, max)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range o.Chunks {
			streams[c.Stream].Write(c.Data)
		}
		lost += o.Lost
		if from = o.Next; o.End != nil {
			return streams[journal.Stdout].String(), streams[journal.Stderr].String(), lost, o
		}
	}
}

func startJob(t testing.TB, v *vm.VM, line string, d vm.JobOptions) vm.Job {
	t.Helper()
	p, err := v.StartJob(limited(t), vm.Command{Line: line}, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill(context.Background())
		_, _ = p.Wait(context.Background())
		_ = p.Remove(context.Background())
	})
	return p
}

func TestJob(t *testing.T) {
	v := sharedVM(t)
	for _, dir := range []string{"", filepath.Join(t.TempDir(), "jobs", "x")} {
		p := startJob(t, v, "echo out; echo err >&2; cat; exit 3", vm.JobOptions{Dir: dir})
		if _, err := io.WriteString(p.Stdin(), "input\n"); err != nil {
			t.Fatal(err)
		}
		if err := p.Stdin().Close(); err != nil {
			t.Fatal(err)
		}
		r, err := p.Wait(limited(t))
		if err != nil || r.Code != 3 {
			t.Fatalf("Wait = %+v, %v", r, err)
		}
		for range 2 { // whoever comes, and whenever
			stdout, stderr, lost, end := readOutput(t, p, 0, 3)
			if stdout != "out\ninput\n" || stderr != "err\n" || lost != 0 {
				t.Errorf("stdout %q, stderr %q, lost %d", stdout, stderr, lost)
			}
			if end.Err != nil || *end.End != r {
				t.Errorf("end = %+v, %v", end.End, end.Err)
			}
		}
		if again, err := p.Wait(limited(t)); err != nil || again.Code != 3 {
			t.Errorf("Wait again = %+v, %v", again, err)
		}
		if _, err := p.Output(limited(t), 1<<20, 1); !errors.Is(err, journal.ErrCursor) {
			t.Errorf("Output behind the end: %v", err)
		}
	}
}

func TestJobs(t *testing.T) {
	v := sharedVM(t)
	first := startJob(t, v, "sleep 60", vm.JobOptions{ID: "first"})
	second := startJob(t, v, "true", vm.JobOptions{})
	if _, err := v.StartJob(limited(t), vm.Command{Line: "true"}, vm.JobOptions{ID: "first"}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the same id again: %v", err)
	}
	for _, id := range []string{"../x", "a b", ".hidden", strings.Repeat("x", 65), "a\x00"} {
		if _, err := v.StartJob(limited(t), vm.Command{Line: "true"}, vm.JobOptions{ID: id}); err == nil {
			t.Errorf("id %q was taken", id)
		}
	}
	if _, err := v.StartJob(limited(t), vm.Command{Line: "true", Stdout: io.Discard}, vm.JobOptions{}); err == nil {
		t.Error("a writer for the output was taken")
	}
	if _, err := v.StartJob(limited(t), vm.Command{Line: "true", Dir: "/none"}, vm.JobOptions{ID: "none"}); err == nil {
		t.Error("a process started in a directory that is none")
	}
	var ids []string
	list, err := v.Jobs(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range list {
		ids = append(ids, j.ID)
	}
	if diff := cmp.Diff([]string{"first", second.ID()}, ids); diff != "" {
		t.Error(diff)
	}
	if p, err := v.Job(limited(t), "first"); p != first || err != nil {
		t.Errorf("Job = %v, %v", p, err)
	}
	if err := first.Remove(limited(t)); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Remove of one that runs: %v", err)
	}
	if err := first.Kill(limited(t)); err != nil {
		t.Fatal(err)
	}
	if r, err := first.Wait(limited(t)); err != nil || r.Signal != 9 {
		t.Errorf("Wait = %+v, %v", r, err)
	}
	if _, err := io.WriteString(first.Stdin(), "late"); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("input after the end: %v", err)
	}
	if err := first.Remove(limited(t)); err != nil {
		t.Error(err)
	}
	if _, err := v.Job(limited(t), "first"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Job of what was removed: %v", err)
	}
}

func TestJobTimeout(t *testing.T) {
	v := sharedVM(t)
	p, err := v.StartJob(limited(t), vm.Command{Line: "echo begun; sleep 60", Timeout: 2 * time.Second}, vm.JobOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait(limited(t))
	if err != nil || !r.TimedOut {
		t.Errorf("Wait = %+v, %v", r, err)
	}
	if stdout, _, _, end := readOutput(t, p, 0, 0); stdout != "begun\n" || !end.End.TimedOut {
		t.Errorf("output %q, result %+v", stdout, end.End)
	}
	if err := p.Remove(context.Background()); err != nil {
		t.Error(err)
	}
}

// Of much output the beginning and the end are kept, and readers that follow it miss nothing.
func TestJobOutputIsCapped(t *testing.T) {
	v := sharedVM(t)
	p := startJob(t, v, "seq 20000", vm.JobOptions{Head: 16 << 10, Tail: 16 << 10})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			stdout, _, lost, end := readOutput(t, p, 0, 1<<20)
			if uint64(len(stdout))+lost != uint64(end.Next) {
				t.Errorf("%d bytes and %d lost of %d", len(stdout), lost, end.Next)
			}
		})
	}
	readers.Wait()
	stdout, _, lost, end := readOutput(t, p, 0, 0)
	want := seq(20000)
	if int(end.Next) != len(want) || lost == 0 || !strings.HasPrefix(want, stdout[:16<<10]) || !strings.HasSuffix(want, stdout[16<<10:]) {
		t.Errorf("%d of %d bytes, %d lost", len(stdout), len(want), lost)
	}
}

func seq(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}

// Input waits while it is not read, and arrives whole.
func TestJobInput(t *testing.T) {
	v := sharedVM(t)
	p := startJob(t, v, "sleep 0.3; md5sum", vm.JobOptions{})
	data := guestfstest.Noise(1 << 20)
	for i := 0; i < len(data); i += 100_000 {
		if _, err := p.Stdin().Write(data[i:min(i+100_000, len(data))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	want := mustRun(t, v, vm.Command{Line: "md5sum", Stdin: bytes.NewReader(data)})
	if stdout, _, _, _ := readOutput(t, p, 0, 0); stdout != string(want.Stdout) {
		t.Errorf("sum %q, want %q", stdout, want.Stdout)
	}
}

// The output is read after the VM has ended, by the Job and by who opens its directory later.
func TestJobReplay(t *testing.T) {
	dir := t.TempDir()
	v := ownVM(t, nil)
	ended := startJob(t, v, "seq 100; exit 7", vm.JobOptions{Dir: dir + "/ended"})
	running := startJob(t, v, "echo before; sleep 60", vm.JobOptions{Dir: dir + "/running"})
	if _, err := ended.Wait(limited(t)); err != nil {
		t.Fatal(err)
	}
	if o, err := running.Output(limited(t), 0, 0); err != nil || len(o.Chunks) != 1 {
		t.Fatalf("Output = %+v, %v", o, err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := running.Wait(limited(t)); !errors.Is(err, vm.ErrStopped) {
		t.Errorf("Wait after Close: %v", err)
	}
	if stdout, _, _, end := readOutput(t, running, 0, 0); stdout != "before\n" || end.Err == nil {
		t.Errorf("output %q, end %+v", stdout, end)
	}
	if err := ended.Close(); err != nil {
		t.Fatal(err)
	}
	record, err := vm.OpenJob(dir + "/ended")
	if err != nil {
		t.Fatal(err)
	}
	defer record.Close()
	if stdout, _, _, end := readOutput(t, record, 0, 0); stdout != seq(100) || end.Err != nil || end.End.Code != 7 {
		t.Errorf("output %q, end %+v", stdout, end)
	}
	if stdout, _, _, _ := readOutput(t, record, 286, 2); stdout != "99\n100\n"[1:] {
		t.Errorf("output from byte 286 on: %q", stdout)
	}
	if err := record.Remove(limited(t)); err != nil {
		t.Error(err)
	}
	if _, err := vm.OpenJob(dir + "/ended"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenJob of nothing: %v", err)
	}
}

// A journal that was not finished, as after kill -9, can be read to its end, which says so.
func TestJobThatWasInterrupted(t *testing.T) {
	dir := t.TempDir()
	log, err := journal.Create(filepath.Join(dir, "journal"), journal.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(log.Append(journal.Stderr, []byte("half")), log.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r, err := vm.OpenJob(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, stderr, _, end := readOutput(t, r, 0, 0); stderr != "half" || !errors.Is(end.Err, vm.ErrInterrupted) {
			t.Errorf("output %q, end %+v", stderr, end)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "journal"), []byte("anything"), 0o600); err != nil {
		t.Fatal(err)
	}
	var corrupt *journal.CorruptError
	if _, err := vm.OpenJob(dir); !errors.As(err, &corrupt) {
		t.Errorf("OpenJob of a damaged journal: %v", err)
	}
}

// What earlier versions' StartProcess wrote, a journal alone with another end, can be read.
func TestJobOfAnEarlierVersion(t *testing.T) {
	for text, want := range map[string]vm.JobEnd{
		`{"result":{"Stdout":null,"Stderr":null,"StdoutTruncated":{"offset":0,"dropped":0},"ExitCode":137,"Signal":9,"TimedOut":true,"Duration":5}}`: {Code: 137, Signal: 9, TimedOut: true},
		`{"error":"the program that ran the VM ended first"}`:    {Error: "the program that ran the VM ended first"},
		`{"result":{"ExitCode":0},"error":"the guest panicked"}`: {Error: "the guest panicked"},
	} {
		dir := t.TempDir()
		log, err := journal.Create(filepath.Join(dir, "journal"), journal.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(log.Append(journal.Stdout, []byte("x")), log.Finish([]byte(text)), log.Close()); err != nil {
			t.Fatal(err)
		}
		j, err := vm.OpenJob(dir)
		if err != nil {
			t.Fatal(err)
		}
		if stdout, _, _, end := readOutput(t, j, 0, 0); stdout != "x" || *end.End != want || (end.Err == nil) != (want.Error == "") ||
			errors.Is(end.Err, vm.ErrInterrupted) != (want.Error == vm.ErrInterrupted.Error()) {
			t.Errorf("%s: output %q, end %+v, %v", text, stdout, end.End, end.Err)
		}
		if err := j.Remove(limited(t)); err != nil {
			t.Error(err)
		}
	}
}
