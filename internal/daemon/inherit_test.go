package daemon

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"
)

func TestEnvironment(t *testing.T) {
	all := []string{"HOME=/h", "SECRET=s", "AWS_SECRET_ACCESS_KEY=k", "https_proxy=p", "HOMEX=x", "AGENTVM_STORE=/s", "AGENTVM_TOKEN=t", "MORE=m", "=C:=C:\\"}
	want := []string{"HOME=/h", "https_proxy=p", "AGENTVM_STORE=/s", "MORE=m"}
	if got := environment(all, []string{"MORE"}); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestDaemonInheritsNothing starts a daemon from a process that has a pipe, a lock and a secret, like one that a shell started with
// 3>&1, 9>file and an exported variable.
func TestDaemonInheritsNothing(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("descriptors are of other systems")
	}
	s := testStore(t, roleStarter)
	lock := filepath.Join(t.TempDir(), "lock")
	file, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	starter := exec.Command(os.Args[0], s.Dir, "dev")
	starter.Env = append(os.Environ(), "SECRET=of the starter's")
	starter.ExtraFiles = []*os.File{writer, file}
	if out, err := starter.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() { _, _ = s.Stop(t.Context(), "dev", 0) })
	if err := errors.Join(writer.Close(), file.Close()); err != nil {
		t.Error(err)
	}
	status, err := s.Status(t.Context(), "dev")
	if err != nil || status.State != Running {
		t.Fatalf("%+v, %v", status, err)
	}
	if err := reader.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a process has the pipe: %v", err)
	}
	unlock, err := lockFile(t.Context(), lock, time.Second)
	if err != nil {
		t.Errorf("a process holds the lock: %v", err)
	} else if err := unlock(); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile("/proc/" + strconv.Itoa(status.Info.Pid) + "/environ"); runtime.GOOS == "linux" && (err != nil || len(b) == 0 || bytes.Contains(b, []byte("SECRET"))) {
		t.Errorf("environment %q, %v", b, err)
	}
	if how, err := s.Stop(t.Context(), "dev", time.Second); err != nil || how != StoppedByAsk {
		t.Errorf("%v, %v", how, err)
	}
}

// startFromOutside is the process that starts the daemon. Descriptor 4 is a file that it locks.
func startFromOutside(s Store, name string) error {
	if err := flockDescriptor(4); err != nil {
		return err
	}
	if err := os.Setenv(roleEnv, roleFake); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	s.Command, s.Environment = []string{program, s.Dir}, []string{roleEnv}
	c, err := s.Start(context.Background(), name, Config{}, nil)
	if err != nil {
		return err
	}
	return c.Close()
}
