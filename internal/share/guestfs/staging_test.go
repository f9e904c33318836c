//go:build linux

package guestfs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/share/guestfs"
	"agentvm/internal/share/guestfs/guestfstest"
)

// copyOutForever is a process of its own that copies out of a guest that never sends the end.
func copyOutForever(t *testing.T, to string) {
	what := os.Getenv("AGENTVM_TEST_COPY")
	l := &liar{read: func(b []byte, offset int64) (int, error) {
		if offset > 1<<20 {
			time.Sleep(time.Hour)
		}
		return len(b), nil
	}, size: 1 << 30}
	if what == "file" {
		l.stat = func(string) (guestrpc.FileInfo, error) {
			return guestrpc.FileInfo{Name: "x", Mode: 0o644, Size: 1 << 30}, nil
		}
	}
	l.pack = func(ctx context.Context, w io.Writer) error {
		_, err := w.Write(archive(t, fileItem("f", strings.Repeat("x", 1<<20)))[:1<<19])
		<-ctx.Done()
		return err
	}
	_, err := serveFiles(t, l).CopyFrom(t.Context(), "/x", to, guestfs.CopyOptions{})
	t.Fatal("the copy has ended: ", err)
}

// TestCopyOutKilled kills a process while it copies. What it leaves is removed by the next copy to the same place, but nothing of
// a copy that still runs.
func TestCopyOutKilled(t *testing.T) {
	if to := os.Getenv("AGENTVM_TEST_COPY_TO"); to != "" {
		copyOutForever(t, to)
	}
	for _, what := range []string{"file", "tree", "tree into one"} {
		t.Run(what, func(t *testing.T) {
			host := t.TempDir()
			start := func(to string) *exec.Cmd {
				t.Helper()
				before := stagings(t, host)
				c := exec.Command(os.Args[0], "-test.run=^TestCopyOutKilled$")
				c.Env = append(os.Environ(), "AGENTVM_TEST_COPY="+strings.Fields(what)[0], "AGENTVM_TEST_COPY_TO="+to)
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
				for end := time.Now().Add(time.Minute); !slices.ContainsFunc(stagings(t, host), func(name string) bool { return !slices.Contains(before, name) }); time.Sleep(10 * time.Millisecond) {
					if time.Now().After(end) {
						t.Fatal("it does not begin to copy")
					}
				}
				return c
			}
			to := host + "/new"
			if what == "tree into one" {
				to = host + "/"
			}
			killed := start(to)
			if err := killed.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = killed.Wait()
			left := stagings(t, host)
			if len(left) != 1 {
				t.Fatalf("it leaves %q", left)
			}
			start(to)
			now := stagings(t, host)
			if _, err := os.Lstat(left[0]); !errors.Is(err, fs.ErrNotExist) || len(now) != 1 {
				t.Fatalf("there are %q, of the killed one %q: %v", now, left, err)
			}
			l := packs(archive(t, fileItem("f", "content")))
			if _, err := serveFiles(t, l).CopyFrom(limited(t), "/x/.", host, guestfs.CopyOptions{}); err != nil {
				t.Fatal(err)
			}
			if after := stagings(t, host); len(after) != 1 || after[0] != now[0] {
				t.Errorf("of a copy that still runs, %q, there is %q", now, after)
			}
		})
	}
}

// stagings are the copies in a directory that are not whole.
func stagings(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(dir + "/.agentvm-copy-*/copy")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestCopiesOutAtOnce has many copies sweep one directory while others stage there.
func TestCopiesOutAtOnce(t *testing.T) {
	host := t.TempDir()
	bytesOf := archive(t, fileItem("f", "content"))
	var all sync.WaitGroup
	for range 8 {
		f := serveFiles(t, packs(bytesOf))
		all.Go(func() {
			for range 20 {
				if _, err := f.CopyFrom(limited(t), "/x/.", host, guestfs.CopyOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	guestfstest.NoStaging(t, host)
	if b, err := os.ReadFile(host + "/f"); err != nil || !bytes.Equal(b, []byte("content")) {
		t.Errorf("f has %q, %v", b, err)
	}
}

// TestSweepTouchesNothingElse lays out what a guest could in a directory that it shares.
func TestSweepTouchesNothingElse(t *testing.T) {
	host := t.TempDir()
	out, in := host+"/outside", host+"/in"
	id := "/.agentvm-copy-aaaaaaaaaaaaaaa"
	err := errors.Join(os.MkdirAll(out+"/copy", 0o755), os.WriteFile(out+"/lock", nil, 0o600), os.WriteFile(out+"/copy/f", nil, 0o600), os.Mkdir(in, 0o755),
		os.Symlink(out, in+id+"1"),
		os.Mkdir(in+id+"2", 0o755), os.WriteFile(in+id+"2/lock", nil, 0o600), os.Symlink(out+"/copy", in+id+"2/copy"), os.Symlink(out, in+id+"2/more"),
		os.Mkdir(in+id+"3", 0o755), os.Symlink(out+"/lock", in+id+"3/lock"), os.WriteFile(in+id+"3/copy", nil, 0o600),
		os.Mkdir(in+id+"4", 0o755), os.WriteFile(in+id+"4/file", nil, 0o600),
		os.WriteFile(in+id+"5", nil, 0o600),
		os.Mkdir(in+id+"6", 0o755), syscall.Mkfifo(in+id+"6/lock", 0o600),
		os.MkdirAll(in+"/.agentvm-copy-mine", 0o755), os.WriteFile(in+"/.agentvm-copy-mine/lock", nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	l := packs(archive(t, fileItem("f", "content")))
	if _, err := serveFiles(t, l).CopyFrom(limited(t), "/x/.", in, guestfs.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{out + "/lock", out + "/copy/f", in + id + "1", in + id + "3/copy", in + id + "4/file", in + id + "5", in + id + "6/lock", in + "/.agentvm-copy-mine/lock"} {
		if _, err := os.Lstat(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(in + id + "2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what no process has locked is there: %v", err)
	}
}
