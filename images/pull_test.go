package images

import (
	"bytes"
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentvm/images/imagestest"

	"github.com/google/go-cmp/cmp"
)

// openStore opens a store of the test's own whose Alpine mirror is at url and that does not wait between attempts.
func openStore(t testing.TB, url string) *Store {
	t.Helper()
	return openStoreIn(t, t.TempDir(), url)
}

func openStoreIn(t testing.TB, dir, url string) *Store {
	t.Helper()
	s, err := Config{Dir: dir, AlpineMirror: url, RegistryMirrors: []string{"docker.io=" + loopbackOnly(url)}}.Open()
	if err != nil {
		t.Fatal(err)
	}
	s.alpine.fetch.backoff = time.Millisecond
	return s
}

// loopbackOnly returns the server of a URL when it is on this host, and otherwise one that does not answer.
func loopbackOnly(at string) string {
	if u, err := url.Parse(at); err == nil && u.Hostname() == "127.0.0.1" {
		return "http://" + u.Host
	}
	return "http://127.0.0.1:1"
}

// genuine returns the URL of a mirror with the genuine release, or skips the test.
func genuine(t testing.TB) string {
	t.Helper()
	url, ok := imagestest.Mirror(t)
	if !ok {
		t.Skip("no genuine Alpine release here: set " + imagestest.FolderEnv)
	}
	return url
}

// fakeRelease is a small release of version 9.9.1 that a test server offers in any way it likes.
type fakeRelease struct {
	archive []byte
	sha512  string
}

func newFakeRelease(t testing.TB) fakeRelease {
	archive := compress(t, makeTar(t, []entry{dir("etc"), file("etc/os-release", []byte("ID=fake\n")), file("noise", noise(300_000))}), toGzip)
	return fakeRelease{archive, fmt.Sprintf("%x", sha512.Sum512(archive))}
}

func (f fakeRelease) list(version string) string {
	return fmt.Sprintf(`---
-
  title: "Standard"
  desc: |
    Alpine as it was intended.
    flavor: alpine-minirootfs
  branch: v9.9
  arch: riscv64
  version: %[1]s
  flavor: alpine-standard
  file: alpine-standard-%[1]s-riscv64.iso
  sha512: %[2]s
-
  title: "Mini root filesystem"
  desc: |
    Minimal root filesystem.
  branch: v9.9
  arch: riscv64
  version: %[1]s
  flavor: alpine-minirootfs
  file: alpine-minirootfs-%[1]s-riscv64.tar.gz
  date: 2024-09-06
  time: 11:34:21
  size: 1234
  sha256: 00
  sha512: %[3]s
`, version, strings.Repeat("0", 128), f.sha512)
}

// serve offers the release and its list; get, when not nil, answers requests for the archive itself.
func (f fakeRelease) serve(t testing.TB, get http.HandlerFunc) string {
	mux := http.NewServeMux()
	for _, branch := range []string{"latest-stable", "v9.9"} {
		mux.HandleFunc("/"+branch+"/releases/riscv64/latest-releases.yaml", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, f.list("9.9.1"))
		})
	}
	if get == nil {
		get = func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.archive))
		}
	}
	mux.HandleFunc("/v9.9/releases/riscv64/alpine-minirootfs-9.9.1-riscv64.tar.gz", get)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func TestPullAlpine(t *testing.T) {
	s := openStore(t, genuine(t))
	var stages []Progress
	begun := time.Now()
	image, err := s.Pull(t.Context(), imagestest.Alpine, func(p Progress) { stages = append(stages, p) })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("pulled in %v: disk of %d bytes", time.Since(begun), image.Size)
	if image.Name != "alpine:3.20.3" || image.Architecture != "riscv64" || !s.usable(image) {
		t.Errorf("pulled %+v", image)
	}
	last := stages[len(stages)-1]
	if want := (Progress{StageBuild, "alpine:3.20.3", last.Total, last.Total}); last != want || last.Total == 0 || stages[0].Stage != StageDownload {
		t.Errorf("progress from %+v to %+v", stages[0], last)
	}
	// What the guest reads is what it was before disks were compressed, in form 1: snapshots of VMs with such disks can be continued.
	const form1 = "sha256:412b69a1eae948990d890b7c4251926dbc2e3ab20a94f8cac6f008ae5552c949"
	const form2 = "sha256:00758942763b8bcb8eb6e2196a0e026ac9b96b10f56303052e91ee501e542ac6"
	if builderVersion != 2 || image.RootDiskDigest != form2 {
		t.Errorf("disk %s is not of form 2: raise builderVersion and set the digest here", image.RootDiskDigest)
	}
	disk, err := s.OpenRootDisk(image)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if digest, err := disk.FormerDigest(t.Context()); err != nil || digest != form1 {
		t.Errorf("the guest reads %s, %v", digest, err)
	}
	fsck(t, rawDisk(t, s, image))
	again, err := s.Resolve(t.Context(), imagestest.Alpine)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(image, again); diff != "" {
		t.Errorf("resolved another image (-pulled +resolved):\n%s", diff)
	}
	release, ok := readDisk(t, rawDisk(t, s, image))["etc/alpine-release"]
	if !ok || release.Data != hashOf([]byte("3.20.3\n")) {
		t.Errorf("etc/alpine-release: %+v", release)
	}
}

// TestResolveNeedsNoNetwork resolves what is there from a store whose mirror is gone.
func TestResolveNeedsNoNetwork(t *testing.T) {
	dir := t.TempDir()
	fake := newFakeRelease(t)
	pulled, err := openStoreIn(t, dir, fake.serve(t, nil)).Pull(t.Context(), "alpine:9.9", nil)
	if err != nil {
		t.Fatal(err)
	}
	offline := openStoreIn(t, dir, "http://127.0.0.1:1")
	image, err := offline.Resolve(t.Context(), "alpine:9.9")
	if err != nil || image.RootDiskDigest != pulled.RootDiskDigest {
		t.Errorf("offline: %+v, %v", image, err)
	}
	// A disk that is gone or damaged is built anew from the archive, which is there as well.
	for _, damage := range []func(string) error{os.Remove, func(path string) error { return os.Truncate(path, 100) }} {
		if err := damage(diskOf(offline, image)); err != nil {
			t.Fatal(err)
		}
		if list, err := offline.List(); err != nil || len(list) != 0 {
			t.Errorf("a damaged image is listed: %v, %v", list, err)
		}
		again, err := offline.Resolve(t.Context(), "alpine:9.9")
		if err != nil || again.RootDiskDigest != pulled.RootDiskDigest || !offline.usable(again) {
			t.Errorf("rebuilt: %+v, %v", again, err)
		}
	}
}

func TestPullVersions(t *testing.T) {
	fake := newFakeRelease(t)
	other := compress(t, makeTar(t, []entry{file("other", nil)}), toGzip)
	mux := http.NewServeMux()
	mux.HandleFunc("/v9.8/releases/riscv64/alpine-minirootfs-9.8.5-riscv64.tar.gz", func(w http.ResponseWriter, r *http.Request) { w.Write(other) })
	mux.HandleFunc("/v9.8/releases/riscv64/alpine-minirootfs-9.8.5-riscv64.tar.gz.sha512", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%x  alpine-minirootfs-9.8.5-riscv64.tar.gz\n", sha512.Sum512(other))
	})
	mux.HandleFunc("/v9.7/releases/riscv64/latest-releases.yaml", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, fake.list("9.9.1")) })
	inner := fake.serve(t, nil)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, inner+r.URL.Path, http.StatusFound) })
	server := httptest.NewServer(mux)
	defer server.Close()
	tests := []struct {
		ref  string
		want string // the image's reference, or part of the error
	}{
		{"alpine:latest", "alpine-minirootfs-9.9.1-riscv64.tar.gz"},
		{"alpine:9.9", "alpine-minirootfs-9.9.1-riscv64.tar.gz"},
		{"alpine:9.9.1", "alpine-minirootfs-9.9.1-riscv64.tar.gz"},
		{"alpine:9.8.5", "alpine-minirootfs-9.8.5-riscv64.tar.gz"},
		{"alpine:9.9.2", "no Alpine release 9.9.2"},
		{"alpine:9.7", "names release 9.9.1"},
		{"alpine:1.0", "404"},
		{"alpine:edge", "version of Alpine"},
		{"alpine:../..", "version of Alpine"},
		{"debian", "no such image"},
		{"UPPER", "lower-case"},
		{"", "lower-case"},
	}
	s := openStore(t, server.URL)
	for _, test := range tests {
		t.Run(test.ref, func(t *testing.T) {
			image, err := s.Pull(t.Context(), test.ref, nil)
			got := fmt.Sprint(err)
			if err == nil {
				got = image.Ref
			}
			if !strings.Contains(got, test.want) {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if errors.Is(err, ErrUnreachable) {
				t.Errorf("a wrong answer counts as no answer: %v", err)
			}
		})
	}
}

// TestFloatingVersionsNeedTrust refuses a checksum that comes over plain HTTP from another machine.
func TestFloatingVersionsNeedTrust(t *testing.T) {
	s := openStore(t, "http://mirror.invalid/alpine")
	_, err := s.Pull(t.Context(), "alpine:latest", nil)
	if err == nil || !strings.Contains(err.Error(), "has to be https") {
		t.Errorf("error %v", err)
	}
}

func TestPullFailures(t *testing.T) {
	fake := newFakeRelease(t)
	short := func(w http.ResponseWriter) {
		w.Header().Set("Content-Length", fmt.Sprint(len(fake.archive)))
		w.Write(fake.archive[:100_000])
	}
	tests := []struct {
		name        string
		get         http.HandlerFunc
		want        string
		unreachable bool
		partial     bool // the beginning is kept, for the next attempt
	}{
		{"not found", http.NotFound, "404 Not Found", false, false},
		{"server error", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "", 500) }, "500 Internal", false, false},
		{"gateway error", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "", 502) }, "502 Bad Gateway", true, true},
		{"truncated", func(w http.ResponseWriter, r *http.Request) { short(w) }, "broke off", true, true},
		{"wrong content", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "<html>please log in</html>") }, "checksum is wrong", false, false},
		{"too large", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(alpineMaxSize+1))
			w.Write(fake.archive)
		}, "limit", false, false},
		{"redirects without end", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, 302) }, "redirect refused", false, false},
		{"connection closed", func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, "EOF", true, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := openStore(t, fake.serve(t, test.get))
			_, err := s.Pull(t.Context(), "alpine:9.9", nil)
			if err == nil || !strings.Contains(err.Error(), test.want) || errors.Is(err, ErrUnreachable) != test.unreachable {
				t.Errorf("error %v, want one with %q, unreachable %v", err, test.want, test.unreachable)
			}
			if left := files(t, s); (len(left) != 0) != test.partial || test.partial && !strings.Contains(left[0], partialPrefix) {
				t.Errorf("left behind: %q", left)
			}
			if list, err := s.List(); err != nil || len(list) != 0 {
				t.Errorf("images: %v, %v", list, err)
			}
		})
	}
}

// TestPullGoesOn breaks every connection after some bytes: with ranges the download comes to its end all the same.
func TestPullGoesOn(t *testing.T) {
	fake := newFakeRelease(t)
	var requests atomic.Int32
	cut := func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		http.ServeContent(&cutWriter{ResponseWriter: w, left: 100_000}, r, "", time.Time{}, bytes.NewReader(fake.archive))
	}
	s := openStore(t, fake.serve(t, cut))
	if _, err := s.Pull(t.Context(), "alpine:9.9", nil); err != nil {
		t.Fatal(err)
	}
	if n := requests.Load(); n != 4 {
		t.Errorf("%d requests, want 4", n)
	}
}

// cutWriter breaks the connection after some bytes.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		w.ResponseWriter.Write(p[:w.left])
		w.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	w.left -= len(p)
	return w.ResponseWriter.Write(p)
}

// TestPullAfterPartial starts from what an earlier pull left, right or wrong, with servers that know ranges or do not.
func TestPullAfterPartial(t *testing.T) {
	fake := newFakeRelease(t)
	whole := func(w http.ResponseWriter, r *http.Request) { w.Write(fake.archive) }
	tests := []struct {
		name    string
		partial []byte
		get     http.HandlerFunc
	}{
		{"beginning", fake.archive[:1000], nil},
		{"everything", fake.archive, nil},
		{"wrong beginning", noise(1000), nil},
		{"too much", noise(len(fake.archive) + 1), nil},
		{"beginning, no ranges", fake.archive[:1000], whole},
		{"wrong beginning, no ranges", noise(1000), whole},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := openStore(t, fake.serve(t, test.get))
			if err := os.WriteFile(filepath.Join(s.blobDir(), partialPrefix+fake.sha512[:32]), test.partial, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Pull(t.Context(), "alpine:9.9", nil); err != nil {
				t.Fatal(err)
			}
			if left := files(t, s); len(left) != 4 {
				t.Errorf("store holds %q, want archive, disk, its record, the image's record", left)
			}
		})
	}
}

func TestPullCanceled(t *testing.T) {
	fake := newFakeRelease(t)
	ctx, cancel := context.WithCancel(t.Context())
	slow := func(w http.ResponseWriter, r *http.Request) {
		w.Write(fake.archive[:1000])
		w.(http.Flusher).Flush()
		cancel()
		<-r.Context().Done()
	}
	s := openStore(t, fake.serve(t, slow))
	if _, err := s.Pull(ctx, "alpine:9.9", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("images: %v, %v", list, err)
	}
}

func TestPullStalled(t *testing.T) {
	fake := newFakeRelease(t)
	stuck := func(w http.ResponseWriter, r *http.Request) {
		w.Write(fake.archive[:1000])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	s := openStore(t, fake.serve(t, stuck))
	s.alpine.fetch.stall = 50 * time.Millisecond
	_, err := s.Pull(t.Context(), "alpine:9.9", nil)
	if !errors.Is(err, errStalled) || !errors.Is(err, ErrUnreachable) {
		t.Errorf("error %v", err)
	}
}

// TestPullTogether pulls one release under two names from many goroutines: it is downloaded once.
func TestPullTogether(t *testing.T) {
	fake := newFakeRelease(t)
	var requests atomic.Int32
	s := openStore(t, fake.serve(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		w.Write(fake.archive)
	}))
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			if _, err := s.Pull(t.Context(), []string{"alpine:9.9", "alpine:latest"}[i%2], nil); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := requests.Load(); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}
	if list, err := s.List(); err != nil || len(list) != 2 || diskOf(s, &list[0]) != diskOf(s, &list[1]) {
		t.Errorf("images %+v, %v", list, err)
	}
}

func TestResolveDefault(t *testing.T) {
	tests := []struct {
		name, mirror string
		image        string // or part of the error
		notice       string
	}{
		{"no server", "http://127.0.0.1:1", "busybox", "built-in BusyBox"},
		{"wrong file", newFakeRelease(t).serveAlways(t), "checksum is wrong", ""},
		{"no file", newFakeRelease(t).serve(t, nil), "404", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := openStore(t, test.mirror)
			image, notice, err := s.ResolveDefault(t.Context())
			got := fmt.Sprint(err)
			if err == nil {
				got = image.Name
			}
			if !strings.Contains(got, test.image) || !strings.Contains(notice, test.notice) || (notice == "") != (test.notice == "") || strings.ContainsRune(notice, '\n') || len(notice) > 160 {
				t.Errorf("got %s, notice %q", got, notice)
			}
		})
	}
}

// serveAlways answers every request with the archive.
func (f fakeRelease) serveAlways(t testing.TB) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) { w.Write(f.archive) }))
	t.Cleanup(server.Close)
	return server.URL
}
