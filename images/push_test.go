package images

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentvm/internal/host/platform"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// pulledAndImported returns a store with an image of two layers and one of a single archive, of which it returns the files.
func pulledAndImported(t *testing.T) (s *Store, pulled, imported *Image, files map[string]*thing) {
	t.Helper()
	s = openStore(t, "")
	var err error
	if pulled, err = s.Pull(t.Context(), newRegistry(t).push(t, "team/app:1", twoLayers(t)), nil); err != nil {
		t.Fatal(err)
	}
	if imported, err = s.Import(t.Context(), "mine", bytes.NewReader(makeTar(t, everything()))); err != nil {
		t.Fatal(err)
	}
	return s, pulled, imported, readDisk(t, rawDisk(t, s, imported))
}

// checkBack compares an image that has come back with the one that was sent.
func checkBack(t *testing.T, s *Store, back, sent *Image) {
	t.Helper()
	checkTwoLayers(t, s, back)
	if back.SourceDigest != sent.SourceDigest || back.RootDiskDigest != sent.RootDiskDigest {
		t.Errorf("%s has another configuration or other layers", back.Name)
	}
	for i := range sent.Layers {
		if back.Layers[i].DiffID != sent.Layers[i].DiffID {
			t.Errorf("layer %d has another DiffID", i)
		}
	}
	if history, err := s.History(back.Name); err != nil || len(history) != 2 {
		t.Errorf("%d steps of history, %v", len(history), err)
	}
}

func TestPush(t *testing.T) {
	s, pulled, _, files := pulledAndImported(t)
	r, other := newRegistry(t), openStore(t, "")
	var uploads atomic.Int32
	r.setAnswer(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPatch {
			uploads.Add(1)
		}
		return false
	})
	var last Progress
	there, err := s.Push(t.Context(), pulled.Name, "docker://"+r.host+"/team/copy:2", func(p Progress) { last = p })
	if err != nil {
		t.Fatal(err)
	}
	if last.Stage != StageUpload || last.Done != last.Total || last.Total == 0 {
		t.Errorf("the last progress is %+v", last)
	}
	for _, ref := range []string{r.host + "/team/copy:2", there} {
		back, err := other.Pull(t.Context(), ref, nil)
		if err != nil {
			t.Fatal(err)
		}
		checkBack(t, other, back, pulled)
	}
	if n := uploads.Load(); n != 3 {
		t.Errorf("%d uploads, want the configuration and two layers", n)
	}
	if again, err := s.Push(t.Context(), pulled.Name, r.host+"/team/copy:3", nil); err != nil || again != there {
		t.Errorf("the second push: %s, %v", again, err)
	}
	if n := uploads.Load(); n != 3 {
		t.Errorf("%d uploads after a second push of the same", n)
	}
	if _, err := s.Push(t.Context(), "mine", r.host+"/mine", nil); err != nil {
		t.Fatal(err)
	}
	back, err := other.Pull(t.Context(), r.host+"/mine", nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(files, readDisk(t, rawDisk(t, other, back))); diff != "" {
		t.Error("an imported root has other files:", diff)
	}
	checkNoTemporary(t, s)
}

// checkNoTemporary finds compressed layers that were left.
func checkNoTemporary(t *testing.T, s *Store) {
	t.Helper()
	for _, name := range files(t, s) {
		if strings.Contains(filepath.Base(name), "packed") {
			t.Errorf("left behind: %s", name)
		}
	}
}

func TestPushFails(t *testing.T) {
	s, pulled, _, _ := pulledAndImported(t)
	r := newRegistry(t)
	for _, c := range []struct{ name, to, want string }{
		{"none", r.host + "/x", "no such image"},
		{"mine", "", "image push mine docker://"},
		{"mine", "oci:/tmp/x", "image save -o"},
		{"mine", "docker-archive:x.tar", "image save -o"},
		{"mine", r.host + "/x@sha256:" + strings.Repeat("0", 64), "give it a tag"},
		{"mine", "docker://UPPER", "lower-case"},
		{"mine", "127.0.0.1:1/x", "reached"},
	} {
		if _, err := s.Push(t.Context(), c.name, c.to, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("push %s %q: %v, want %q", c.name, c.to, err, c.want)
		}
	}
	r.setAnswer(func(w http.ResponseWriter, request *http.Request) bool {
		if request.Method == http.MethodPost {
			w.WriteHeader(http.StatusForbidden)
		}
		return request.Method == http.MethodPost
	})
	if _, err := s.Push(t.Context(), pulled.Name, r.host+"/x", nil); err == nil || !strings.Contains(err.Error(), "docker login "+r.host) {
		t.Errorf("a registry that refuses: %v", err)
	}
	// A registry with https leads to a server without.
	if _, err := (onlyHTTPS{http.DefaultTransport}).RoundTrip(httptest.NewRequest("GET", "http://"+r.host, nil)); !errors.Is(err, errRedirect) {
		t.Errorf("from https to http: %v", err)
	}
	checkNoTemporary(t, s)
}

// TestPushStalls has a registry that takes no more of a layer, and says nothing.
func TestPushStalls(t *testing.T) {
	s := openStore(t, "")
	if _, err := s.Import(t.Context(), "large", bytes.NewReader(makeTar(t, []entry{file("noise", noise(30<<20))}))); err != nil {
		t.Fatal(err)
	}
	r, release := newRegistry(t), make(chan struct{})
	defer close(release) // a server does not notice that the client left while it has not read all
	r.setAnswer(func(_ http.ResponseWriter, request *http.Request) bool {
		if request.Method != http.MethodPatch {
			return false
		}
		body := bufio.NewReaderSize(request.Body, 1<<20)
		if beginning, _ := body.Peek(1 << 20); len(beginning) < 1<<20 { // the configuration
			request.Body = io.NopCloser(body)
			return false
		}
		<-release
		return true
	})
	s.registries.pushStall = 200 * time.Millisecond
	if _, err := s.Push(t.Context(), "large", r.host+"/large", nil); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("push: %v", err)
	}
}

func TestSave(t *testing.T) {
	s, pulled, _, files := pulledAndImported(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, to := range []string{
		at("plain.tar"), "docker-archive:" + at("named.tar") + ":other/name:5", "oci-archive:" + at("oci.tar"), "oci-archive:" + at("tagged.tar") + ":v1",
		"oci:" + at("layout") + ":v1", "oci:" + at("layout") + ":v2", "oci:" + at("layout") + ":v1",
	} {
		if err := s.Save(t.Context(), pulled.Name, to, nil, nil); err != nil {
			t.Fatalf("%s: %v", to, err)
		}
	}
	for from, called := range map[string]string{
		"docker-archive:" + at("plain.tar"): pulled.Name, "docker-archive:" + at("named.tar"): "other/name:5", "oci-archive:" + at("oci.tar"): pulled.Name,
		"oci-archive:" + at("tagged.tar") + ":v1": "localhost/tagged:latest", "oci:" + at("layout") + ":v1": "localhost/layout:latest", "oci:" + at("layout") + ":v2": "localhost/layout:latest",
	} {
		other := openStore(t, "")
		back, err := other.Pull(t.Context(), from, nil)
		if err != nil {
			t.Errorf("%s: %v", from, err)
			continue
		}
		if back.Name != called {
			t.Errorf("%s is called %s, want %s", from, back.Name, called)
		}
		checkBack(t, other, back, pulled)
	}
	var index struct{ Manifests []struct{ Digest string } }
	text, err := os.ReadFile(at("layout/index.json"))
	if err == nil {
		err = json.Unmarshal(text, &index)
	}
	if err != nil || len(index.Manifests) != 2 {
		t.Errorf("the layout has %d images, want v1 and v2: %v", len(index.Manifests), err)
	}

	// The same image gives the same bytes, also on standard output.
	for to, file := range map[string]string{"-": "plain.tar", "oci-archive:-": "oci.tar", "docker-archive:-:other/name:5": "named.tar"} {
		var out bytes.Buffer
		if err := s.Save(t.Context(), pulled.Name, to, &out, nil); err != nil {
			t.Fatal(err)
		}
		if want, err := os.ReadFile(at(file)); err != nil || !bytes.Equal(out.Bytes(), want) {
			t.Errorf("%s has other bytes than %s: %v", to, file, err)
		}
	}
	for _, form := range []string{"docker-archive:", "oci-archive:"} {
		other := openStore(t, "")
		if err := s.Save(t.Context(), "mine", form+at("mine.tar"), nil, nil); err != nil {
			t.Fatal(err)
		}
		back, err := other.Pull(t.Context(), form+at("mine.tar"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(files, readDisk(t, rawDisk(t, other, back))); diff != "" {
			t.Error("an imported root has other files:", diff)
		}
	}
	checkNoTemporary(t, s)
}

func TestSaveFails(t *testing.T) {
	s, pulled, _, _ := pulledAndImported(t)
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept.tar")
	if err := os.WriteFile(kept, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, to, want string }{
		{"none", kept, "no such image"},
		{"mine", "", "no file is named"},
		{"mine", "docker://x/y", "image push"},
		{"mine", "dir:x", "write FILE"},
		{"mine", "oci:", "no file is named"},
		{"mine", dir, "is a directory"},
		{"mine", "oci:" + dir, "not empty"},
		{"mine", "oci:" + kept, "not a directory"},
		{"mine", "docker-archive:" + kept + ":NO", "lower-case"},
		{"mine", filepath.Join(dir, "missing", "x"), "no such file"},
	} {
		if err := s.Save(t.Context(), c.name, c.to, nil, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("save %s %q: %v, want %q", c.name, c.to, err, c.want)
		}
	}
	// A layer that is damaged is not sent, and the file that was there stays.
	key := pulled.layerKeys()[1]
	text, err := os.ReadFile(s.layerPath(key))
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/3] ^= 1
	if err := os.WriteFile(s.layerPath(key), text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{kept, "oci-archive:" + kept} {
		if err := s.Save(t.Context(), pulled.Name, to, nil, nil); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("save of a damaged layer to %s: %v", to, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%d files are left, want the one that was there: %v", len(entries), err)
	}
	if text, err := os.ReadFile(kept); err != nil || string(text) != "kept" {
		t.Errorf("the file was replaced: %v", err)
	}
	if err := os.Remove(s.layerPath(key)); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(t.Context(), pulled.Name, kept, nil, nil); err == nil || !strings.Contains(err.Error(), "pull or import the image again") {
		t.Errorf("save without a layer: %v", err)
	}
	checkNoTemporary(t, s)
}

// TestSavedForOthers has skopeo read what is saved and pushed, which it verifies, and copy it.
func TestSavedForOthers(t *testing.T) {
	if _, err := exec.LookPath("skopeo"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("skopeo is missing: install it")
		}
		t.Skip("skopeo is not installed")
	}
	s, pulled, imported, _ := pulledAndImported(t)
	dir, r := t.TempDir(), newRegistry(t)
	skopeo := func(args ...string) []byte {
		t.Helper()
		command := exec.Command("skopeo", append([]string{"--insecure-policy", "--override-arch", string(platform.RISCV64)}, args...)...)
		command.Env = append(os.Environ(), "HOME="+dir, "TMPDIR="+dir)
		var failure bytes.Buffer
		command.Stderr = &failure
		out, err := command.Output()
		if err != nil {
			t.Fatalf("skopeo %q: %v\n%s", args, err, &failure)
		}
		return out
	}
	for _, image := range []*Image{pulled, imported} {
		name := strings.NewReplacer("/", "-", ":", "-").Replace(image.Name)
		config, layers, err := s.exported(t.Context(), image)
		if err != nil {
			t.Fatal(err)
		}
		targets := []string{"oci:" + dir + "/" + name + ":v1", "oci-archive:" + dir + "/" + name + ".oci", "docker-archive:" + dir + "/" + name + ".tar"}
		for _, to := range targets {
			if err := s.Save(t.Context(), image.Name, to, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Push(t.Context(), image.Name, r.host+"/"+name+":v1", nil); err != nil {
			t.Fatal(err)
		}
		for i, from := range append(targets, "docker://"+r.host+"/"+name+":v1") {
			var shown struct {
				Architecture, Os string
				Layers           []string
			}
			if err := json.Unmarshal(skopeo("inspect", "--tls-verify=false", from), &shown); err != nil {
				t.Fatal(err)
			}
			if shown.Architecture != string(platform.RISCV64) || shown.Os != "linux" || len(shown.Layers) != len(layers) {
				t.Errorf("%s: %+v", from, shown)
			}
			if got := skopeo("inspect", "--tls-verify=false", "--config", "--raw", from); !bytes.Equal(got, config) {
				t.Errorf("%s has another configuration:\n%s", from, got)
			}
			copied := "oci:" + dir + "/copied" + name + string(rune('0'+i)) + ":v1"
			skopeo("copy", "-q", "--src-tls-verify=false", from, copied)
			other := openStore(t, "")
			back, err := other.Pull(t.Context(), copied, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(back.Layers, layers, func(a, b Layer) bool { return a.DiffID == b.DiffID }) || back.RootDiskDigest == "" {
				t.Errorf("%s comes back as %+v", from, back.Layers)
			}
		}
	}
	if _, err := s.For(platform.ARM64).Import(t.Context(), imported.Name, bytes.NewReader(makeTar(t, []entry{file("bin/sh", shellFor(t, platform.ARM64))}))); err != nil {
		t.Fatal(err)
	}
	both := r.host + "/both:v1"
	if _, err := s.Push(t.Context(), imported.Name, both, nil); err != nil {
		t.Fatal(err)
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(skopeo("inspect", "--tls-verify=false", "--raw", "docker://"+both), &index); err != nil {
		t.Fatal(err)
	}
	if index.MediaType != types.OCIImageIndex || len(index.Manifests) != 2 || index.Manifests[0].Platform.String() != "linux/riscv64" || index.Manifests[1].Platform.String() != "linux/arm64/v8" {
		t.Errorf("pushed %+v", index)
	}
	skopeo("copy", "-q", "--all", "--src-tls-verify=false", "docker://"+both, "oci:"+dir+"/both:v1")
	for _, a := range platform.Supported() {
		if back, err := openStore(t, "").For(a).Pull(t.Context(), "oci:"+dir+"/both:v1", nil); err != nil || back.Architecture != a {
			t.Errorf("for %s: %+v, %v", a, back, err)
		}
	}
}
