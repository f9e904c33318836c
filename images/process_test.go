package images

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentvm/images/imagestest"
)

// pullEnv makes the test binary a program that pulls: DIR MIRROR REF.
const pullEnv = "AGENTVM_IMAGES_TEST_PULL"

func TestMain(m *testing.M) {
	if words := strings.Fields(os.Getenv(pullEnv)); len(words) == 3 {
		os.Exit(pullProgram(words[0], words[1], words[2]))
	}
	os.Exit(m.Run())
}

func pullProgram(dir, mirror, ref string) int {
	s, err := Config{Dir: dir, AlpineMirror: mirror}.Open()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	image, err := s.Pull(context.Background(), ref, nil)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Print(image.RootDiskDigest)
	return 0
}

// pullCommand is a process of its own that pulls.
func pullCommand(t testing.TB, dir, mirror, ref string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), pullEnv+"="+strings.Join([]string{dir, mirror, ref}, " "))
	return cmd
}

func TestProcessesPullTogether(t *testing.T) {
	fake := newFakeRelease(t)
	var requests atomic.Int32
	mirror := fake.serve(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		time.Sleep(100 * time.Millisecond) // so that the others come while this one is at it
		w.Write(fake.archive)
	})
	dir := t.TempDir()
	var commands []*exec.Cmd
	var outputs []*bytes.Buffer
	for range 3 {
		cmd, out := pullCommand(t, dir, mirror, "alpine:9.9"), &bytes.Buffer{}
		cmd.Stdout = out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		commands, outputs = append(commands, cmd), append(outputs, out)
	}
	for i, cmd := range commands {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, outputs[i])
		}
		if got := outputs[i].String(); got != outputs[0].String() || !strings.HasPrefix(got, "sha256:") {
			t.Errorf("process %d pulled %q, the first %q", i, got, outputs[0])
		}
	}
	if n := requests.Load(); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}
}

// TestKilledPull kills a process in the middle of a download. The next pull continues there.
func TestKilledPull(t *testing.T) {
	fake := newFakeRelease(t)
	const sent = 100_000
	reached := make(chan struct{})
	var ranges []string
	mirror := fake.serve(t, func(w http.ResponseWriter, r *http.Request) {
		ranges = append(ranges, r.Header.Get("Range"))
		if len(ranges) == 1 {
			w.Write(fake.archive[:sent])
			w.(http.Flusher).Flush()
			close(reached)
			<-r.Context().Done()
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(fake.archive))
	})
	dir := t.TempDir()
	s := openStoreIn(t, dir, mirror)
	cmd := pullCommand(t, dir, mirror, "alpine:9.9")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-reached:
	case err := <-ended:
		t.Fatalf("the pull has ended: %v", err)
	}
	waitForSize(t, s, sent)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended // its error says that it was killed
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("images after the kill: %v, %v", list, err)
	}
	image, err := s.Pull(t.Context(), "alpine:9.9", nil)
	if err != nil || !s.usable(image) {
		t.Fatalf("pull after the kill: %v", err)
	}
	if want := fmt.Sprintf("bytes=%d-", sent); len(ranges) != 2 || ranges[1] != want {
		t.Errorf("asked for %q, want %q at last", ranges, want)
	}
}

// waitForSize waits until the partial download has size bytes.
func waitForSize(t testing.TB, s *Store, size int64) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for _, name := range files(t, s) {
			if info, err := os.Stat(s.Dir() + name); err == nil && info.Size() == size {
				return
			}
		}
	}
	t.Fatal("the download did not come that far")
}

// TestPullThroughProxy pulls from a host that only the proxy of the environment knows.
func TestPullThroughProxy(t *testing.T) {
	folder, ok := imagestest.Folder(t)
	if !ok {
		t.Skip("no genuine Alpine release here: set " + imagestest.FolderEnv)
	}
	var asked atomic.Value
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.URL.Host)
		imagestest.Handler(folder).ServeHTTP(w, r)
	}))
	defer proxy.Close()
	cmd := pullCommand(t, t.TempDir(), "http://alpine.invalid", imagestest.Alpine)
	cmd.Env = append(cmd.Env, "HTTP_PROXY="+proxy.URL, "http_proxy="+proxy.URL, "NO_PROXY=", "no_proxy=")
	out, err := cmd.Output()
	if err != nil || !strings.HasPrefix(string(out), "sha256:") || asked.Load() != "alpine.invalid" {
		t.Errorf("%v: %s; the proxy was asked for %v", err, out, asked.Load())
	}
}
