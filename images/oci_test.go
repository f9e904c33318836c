package images

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"agentvm/internal/host/platform"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ocilayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// makeLayer returns a layer of entries, compressed with gzip.
func makeLayer(t testing.TB, entries ...entry) v1.Layer {
	t.Helper()
	text := makeTar(t, entries)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

// makeImage returns an image of layers for a platform.
func makeImage(t testing.TB, architecture platform.Architecture, layers ...v1.Layer) v1.Image {
	t.Helper()
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{Architecture: string(architecture), OS: "linux", Config: v1.Config{
		Env: []string{"PATH=/app:/bin", "VERSION=1"}, Entrypoint: []string{"/app/run"}, Cmd: []string{"--help"}, User: "app:staff", WorkingDir: "/app",
		StopSignal: "SIGINT", Volumes: map[string]struct{}{"/data": {}}, ExposedPorts: map[string]struct{}{"80/tcp": {}, "53/udp": {}},
		Labels: map[string]string{"maintainer": "us"},
	}})
	if err == nil {
		image, err = mutate.AppendLayers(image, layers...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// twoLayers is an image whose second layer changes, hides and adds.
func twoLayers(t testing.TB) v1.Image {
	return makeImage(t, platform.RISCV64,
		makeLayer(t, dir("app"), file("app/run", []byte("old")), file("app/gone", noise(9000)), dir("opaque"), file("opaque/below", nil), symlink("lib", "usr/lib"), dir("usr/lib")),
		makeLayer(t, file("app/run", noise(5000)), file("app/.wh.gone", nil), file("opaque/.wh..wh..opq", nil), file("opaque/new", nil), file("lib/x", []byte("x"))))
}

// twoLayersFiles are the names of its files.
var twoLayersFiles = []string{".", "app", "app/run", "lib", "opaque", "opaque/new", "usr", "usr/lib", "usr/lib/x"}

// testRegistry is a registry in memory and what was asked of it.
type testRegistry struct {
	host string
	mu   sync.Mutex
	gets []string
	// answer replaces an answer, when it returns true.
	answer func(w http.ResponseWriter, r *http.Request) bool
}

func newRegistry(t testing.TB) *testRegistry {
	t.Helper()
	r := &testRegistry{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.mu.Lock()
		if request.Method == http.MethodGet {
			r.gets = append(r.gets, request.URL.Path)
		}
		answer := r.answer
		r.mu.Unlock()
		if answer == nil || !answer(w, request) {
			inner.ServeHTTP(w, request)
		}
	}))
	t.Cleanup(server.Close)
	r.host = strings.TrimPrefix(server.URL, "http://")
	return r
}

// push puts an image into the registry and returns its name there.
func (r *testRegistry) push(t testing.TB, repository string, image remote.Taggable) string {
	t.Helper()
	ref, err := name.ParseReference(r.host + "/" + repository)
	if err != nil {
		t.Fatal(err)
	}
	switch image := image.(type) {
	case v1.Image:
		err = remote.Write(ref, image)
	case v1.ImageIndex:
		err = remote.WriteIndex(ref, image)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ref.Name()
}

func (r *testRegistry) asked(part string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(r.gets), func(path string) bool { return !strings.Contains(path, part) }))
}

func (r *testRegistry) setAnswer(f func(w http.ResponseWriter, r *http.Request) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = f
}

// indexOf is an index of images by platform, as linux/riscv64.
func indexOf(t testing.TB, images map[string]v1.Image) v1.ImageIndex {
	t.Helper()
	index := v1.ImageIndex(empty.Index)
	for platform, image := range images {
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			t.Fatal(err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: p}})
	}
	return index
}

func checkTwoLayers(t *testing.T, s *Store, image *Image) {
	t.Helper()
	var names []string
	for path := range readDisk(t, rawDisk(t, s, image)) {
		names = append(names, path)
	}
	slices.Sort(names)
	if diff := cmp.Diff(twoLayersFiles, names); diff != "" {
		t.Error(diff)
	}
	got := []any{image.Entrypoint, image.Cmd, image.User, image.WorkingDir, image.StopSignal, image.Volumes, image.ExposedPorts, image.Env[1], image.Labels["maintainer"]}
	want := []any{[]string{"/app/run"}, []string{"--help"}, "app:staff", "/app", "SIGINT", []string{"/data"}, []string{"53/udp", "80/tcp"}, "VERSION=1", "us"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPullFromRegistry(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "team/app:1", indexOf(t, map[string]v1.Image{
		"linux/amd64": makeImage(t, "amd64", makeLayer(t, file("other", nil))), "linux/riscv64": twoLayers(t)}))
	s := openStore(t, "")
	for _, name := range []string{ref, "docker://" + ref} {
		image, err := s.Resolve(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if image.Name != ref || image.Digest == "" || len(image.Layers) != 2 {
			t.Errorf("image %+v", image)
		}
		checkTwoLayers(t, s, image)
	}
	if n := r.asked("/blobs/"); n != 3 {
		t.Errorf("%d blobs were fetched, want the configuration and two layers, once", n)
	}

	image, err := s.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	byDigest, err := s.Pull(t.Context(), strings.TrimSuffix(ref, ":1")+"@"+image.Digest, nil)
	if err != nil || byDigest.RootDiskDigest != image.RootDiskDigest {
		t.Errorf("by digest: %+v, %v", byDigest, err)
	}
	for _, name := range []string{ref, byDigest.Name} {
		if err := s.Remove(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(s.Dir(), "*", "*", "*")); len(left) != 0 {
		t.Errorf("removed images leave %v", left)
	}
}

// TestPullAgainFromLayers builds a disk again that is missing, without the registry.
func TestPullAgainFromLayers(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "app", twoLayers(t))
	s := openStore(t, "")
	image, err := s.Pull(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(diskOf(s, image), 100); err != nil {
		t.Fatal(err)
	}
	r.setAnswer(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusTeapot); return true })
	again, err := s.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	checkTwoLayers(t, s, again)
	if again.RootDiskDigest != image.RootDiskDigest {
		t.Error("the same layers gave another disk")
	}
}

// TestLayersAreShared fetches of a second image only what the first does not have.
func TestLayersAreShared(t *testing.T) {
	r := newRegistry(t)
	base := makeLayer(t, file("base", noise(100000)))
	first := r.push(t, "first", makeImage(t, platform.RISCV64, base, makeLayer(t, file("a", nil))))
	second := r.push(t, "second", makeImage(t, platform.RISCV64, base, makeLayer(t, file("b", nil))))
	s := openStore(t, "")
	for _, ref := range []string{first, second} {
		if _, err := s.Pull(t.Context(), ref, nil); err != nil {
			t.Fatal(err)
		}
	}
	digest, err := base.Digest()
	if n := r.asked(digest.String()); err != nil || n != 1 {
		t.Errorf("the shared layer was fetched %d times (%v)", n, err)
	}
	if err := s.Remove(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if image, err := s.load(second); err != nil || !s.hasSources(image) {
		t.Error("removing an image took another's layer")
	}
}

// TestPullImageTogether pulls one image twenty times at once.
func TestPullImageTogether(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "app", twoLayers(t))
	dir := t.TempDir()
	var pulls sync.WaitGroup
	for range 20 {
		pulls.Go(func() {
			if _, err := openStoreIn(t, dir, "").Pull(t.Context(), ref, nil); err != nil {
				t.Error(err)
			}
		})
	}
	pulls.Wait()
	image, err := openStoreIn(t, dir, "").Resolve(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, layer := range image.Layers {
		if n := r.asked(layer.Digest); n != 1 {
			t.Errorf("layer %s was fetched %d times", layer.Digest, n)
		}
	}
}

// TestLayoutsAndArchives reads what go-containerregistry writes.
func TestLayoutsAndArchives(t *testing.T) {
	image, folder := twoLayers(t), t.TempDir()
	dir := filepath.Join(folder, "dir")
	p, err := ocilayout.Write(dir, empty.Index)
	if err == nil {
		err = p.AppendImage(image, ocilayout.WithAnnotations(map[string]string{refName: "v1"}))
	}
	if err == nil {
		err = p.AppendImage(makeImage(t, "amd64", makeLayer(t, file("x", nil))), ocilayout.WithAnnotations(map[string]string{refName: "v2"}))
	}
	docker := filepath.Join(folder, "docker.tar")
	tag, tagErr := name.NewTag("team/app:3")
	if err == nil && tagErr == nil {
		err = tarball.WriteToFile(docker, tag, image)
	}
	if err != nil || tagErr != nil {
		t.Fatal(err, tagErr)
	}
	packed := archiveFolder(t, dir)
	files := map[string][]byte{"oci.tar": packed, "oci.tar.gz": compress(t, packed, toGzip), "oci.tar.zst": compress(t, packed, toZstd)}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	s := openStore(t, "")
	for ref, want := range map[string]string{
		"oci:" + dir + ":v1":                        "localhost/dir:latest",
		"oci-archive:" + folder + "/oci.tar:v1":     "localhost/oci:latest",
		"oci-archive:" + folder + "/oci.tar.gz:v1":  "localhost/oci.tar:latest",
		"oci-archive:" + folder + "/oci.tar.zst:v1": "localhost/oci.tar:latest",
		"docker-archive:" + docker:                  "team/app:3",
		"docker-archive:" + docker + ":team/app:3":  "team/app:3",
	} {
		got, err := s.Resolve(t.Context(), ref)
		if err != nil {
			t.Errorf("%s: %v", ref, err)
			continue
		}
		if got.Name != want {
			t.Errorf("%s is called %s, want %s", ref, got.Name, want)
		}
		checkTwoLayers(t, s, got)
		if _, err := s.Resolve(t.Context(), want); err != nil {
			t.Errorf("%s: %v", want, err)
		}
	}
	for ref, want := range map[string]string{
		"oci:" + dir:                      `several images: add one of ["v1" "v2"]`,
		"oci:" + dir + ":v2":              "is for linux/amd64, but agentvm runs linux/riscv64 or linux/arm64",
		"oci:" + dir + ":v9":              `no image called "v9"`,
		"oci:" + folder:                   "no index.json",
		"oci:" + dir + "-":                "no such file",
		"oci-archive:" + docker:           "no index.json",
		"docker-archive:" + dir:           "directory",
		"docker-archive:" + docker + ":x": `no image called "x"`,
		"docker-archive:":                 "no file is named",
		"docker-daemon:x":                 "docker save",
		"docker:x":                        "docker://",
	} {
		if _, err := s.Resolve(t.Context(), ref); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", ref, err, want)
		}
	}
}

// archiveFolder returns a tar archive of the files of a folder.
func archiveFolder(t testing.TB, folder string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.AddFS(os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestHostileRegistry has a registry that lies. No image may appear, and nothing is left in the store.
func TestHostileRegistry(t *testing.T) {
	manifestOf := func(text string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			fmt.Fprint(w, text)
			return true
		}
	}
	blob := func(answer func(w http.ResponseWriter)) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/blobs/") {
				answer(w)
			}
			return strings.Contains(r.URL.Path, "/blobs/")
		}
	}
	zero := "sha256:" + strings.Repeat("0", 64)
	tests := []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request) bool
		want   string
	}{
		{"not JSON", manifestOf("<html>"), "damaged manifest"},
		{"schema 1", manifestOf(`{"schemaVersion":1}`), "schema 1"},
		{"index of itself", manifestOf(fmt.Sprintf(`{"manifests":[{"digest":%q,"platform":{"os":"linux","architecture":"riscv64"}}]}`, zero)), "checksum is wrong"},
		{"other platforms", manifestOf(fmt.Sprintf(`{"manifests":[{"digest":%[1]q,"platform":{"os":"linux","architecture":"arm64","variant":"v9"}},{"digest":%[1]q,"platform":{"os":"unknown","architecture":"unknown"}}]}`, zero)), "is for linux/arm64/v9, but agentvm runs linux/riscv64 or linux/arm64"},
		{"no platforms", manifestOf(`{"manifests":[]}`), "for no platform"},
		{"weak digest", manifestOf(`{"config":{"digest":"md5:00"}}`), "md5"},
		{"no digest", manifestOf(`{}`), "digest"},
		{"negative size", manifestOf(fmt.Sprintf(`{"config":{"digest":%q,"size":-1}}`, zero)), "-1 bytes"},
		{"large configuration", manifestOf(fmt.Sprintf(`{"config":{"digest":%q,"size":99999999}}`, zero)), "exceeds a limit"},
		{"layers of another type", manifestOf(fmt.Sprintf(`{"config":{"digest":%[1]q},"layers":[{"digest":%[1]q,"mediaType":"text/plain"}]}`, zero)), "text/plain"},
		{"many layers", manifestOf(fmt.Sprintf(`{"config":{"digest":%q},"layers":[{}%s]}`, zero, strings.Repeat(",{}", 600))), "layers are more than"},
		{"large manifest", manifestOf(strings.Repeat(" ", maxManifest+1)), "larger than"},
		{"another blob", blob(func(w http.ResponseWriter) { fmt.Fprint(w, "{}") }), "checksum is wrong"},
		{"endless blob", blob(func(w http.ResponseWriter) {
			for range 3000 {
				if _, err := w.Write(make([]byte, 4096)); err != nil {
					return
				}
			}
		}), "larger than"},
		{"no such blob", blob(func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }), "no such image"},
		{"login", blob(func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) }), "docker login"},
		{"too many requests", blob(func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) }), "too many requests"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRegistry(t)
			ref := r.push(t, "app", twoLayers(t))
			r.setAnswer(test.answer)
			s := openStore(t, "")
			if _, err := s.Pull(t.Context(), ref, nil); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if left, _ := filepath.Glob(filepath.Join(s.Dir(), "images", "*")); len(left) != 0 {
				t.Errorf("the image appeared: %v", left)
			}
			if left, _ := filepath.Glob(filepath.Join(s.Dir(), "blobs", "sha256", "*")); len(left) > 1 { // the configuration may stay until something is removed
				t.Errorf("%v are left", left)
			}
		})
	}
}

// TestHostileLayers has layers that whiteouts, links and names make dangerous or wrong.
func TestHostileLayers(t *testing.T) {
	tests := []struct {
		name   string
		layers [][]entry
		want   string // the names of the files, or part of the error
	}{
		{"whiteout of nothing", [][]entry{{file("a", nil)}, {file(".wh.b", nil), file("no/such/.wh.b", nil)}}, ". a"},
		{"whiteout of a tree", [][]entry{{file("d/e/f", nil), file("g", nil)}, {file(".wh.d", nil)}}, ". g"},
		{"whiteout beside the new", [][]entry{{file("a", nil)}, {file("a", []byte("new")), file(".wh.a", nil)}}, ". a"},
		{"whiteout before the new", [][]entry{{file("d/old", nil)}, {file(".wh.d", nil), file("d/new", nil)}}, ". d d/new"},
		{"whiteout after the new", [][]entry{{file("d/old", nil)}, {file("d/new", nil), file(".wh.d", nil)}}, ". d d/new"},
		{"opaque after the new", [][]entry{{file("d/old", nil), file("d/e/old", nil)}, {file("d/e/new", nil), file("d/.wh..wh..opq", nil)}}, ". d d/e d/e/new"},
		{"whiteouts in the lowest", [][]entry{{file(".wh.a", nil), file("a", nil)}}, ". a"},
		{"twice hidden", [][]entry{{file("a", nil)}, {file(".wh.a", nil), file(".wh.a", nil)}, {file(".wh.a", nil)}}, "."},
		{"hidden name of a linked file", [][]entry{{file("a", noise(10)), hardlink("b", "a")}, {file(".wh.a", nil)}}, ". b"},
		{"AUFS", [][]entry{{file("a", nil)}, {file(".wh..wh.plnk", nil), file(".wh..wh.aufs", nil)}}, ". a"},
		{"whiteout of dots", [][]entry{{file("d/a", nil)}, {file("d/.wh...", nil)}}, "whiteout without a name"},
		{"whiteout of nothing at all", [][]entry{{file("a", nil)}, {file(".wh.", nil)}}, "whiteout without a name"},
		{"up", [][]entry{{file("a", nil)}, {file("../a", nil)}}, `contains ".."`},
		{"link to the outside", [][]entry{{symlink("out", "../../../etc")}, {file("out/passwd", nil)}}, `"out" is a symbolic link`},
		{"link in a circle", [][]entry{{symlink("a", "b"), symlink("b", "a")}, {file("a/x", nil)}}, `"a" is a symbolic link`},
		{"through a link", [][]entry{{dir("usr/bin"), symlink("bin", "/usr/bin")}, {file("bin/x", nil)}}, ". bin usr usr/bin usr/bin/x"},
		{"hidden through a link", [][]entry{{file("usr/bin/x", nil), symlink("bin", "usr/bin")}, {file("bin/.wh.x", nil)}}, ". bin usr usr/bin"},
		{"below a file", [][]entry{{file("a", nil)}, {file("a/b", nil)}}, "is a file"},
		{"directory over a file", [][]entry{{file("a", nil)}, {dir("a"), file("a/b", nil)}}, ". a a/b"},
		{"file over a directory", [][]entry{{file("a/b/c", nil)}, {file("a", nil)}}, ". a"},
		{"hard link below", [][]entry{{file("a", noise(10))}, {hardlink("b", "a")}}, ". a b"},
		{"hard link to nothing", [][]entry{{file("a", nil)}, {hardlink("b", "c")}}, "not brought before"},
		{"empty layer", [][]entry{{file("a", nil)}, {}}, ". a"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var layers []v1.Layer
			for _, entries := range test.layers {
				layers = append(layers, makeLayer(t, entries...))
			}
			r := newRegistry(t)
			s := openStore(t, "")
			image, err := s.Pull(t.Context(), r.push(t, "app", makeImage(t, platform.RISCV64, layers...)), nil)
			got := fmt.Sprint(err)
			if err == nil {
				var names []string
				for path := range readDisk(t, rawDisk(t, s, image)) {
					names = append(names, path)
				}
				slices.Sort(names)
				got = strings.Join(names, " ")
			}
			if got != test.want && (err == nil || !strings.Contains(got, test.want)) {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// TestWrongDiffID has a configuration that describes another layer than the manifest.
func TestWrongDiffID(t *testing.T) {
	image := twoLayers(t)
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config.RootFS.DiffIDs[0] = config.RootFS.DiffIDs[1]
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	ref := newRegistry(t).push(t, "app", image)
	if _, err := openStore(t, "").Pull(t.Context(), ref, nil); err == nil || !strings.Contains(err.Error(), "unpacked layer: the checksum is wrong") {
		t.Error(err)
	}
}

// TestPullContinues breaks the connection in the middle of a layer: the rest is fetched, not the whole.
func TestPullContinues(t *testing.T) {
	r := newRegistry(t)
	layer := makeLayer(t, file("large", noise(1<<20)))
	ref := r.push(t, "app", makeImage(t, platform.RISCV64, layer))
	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	body, err := layer.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	var ranges []string
	r.setAnswer(func(w http.ResponseWriter, request *http.Request) bool {
		if request.Method != http.MethodGet || !strings.Contains(request.URL.Path, digest.String()) {
			return false
		}
		ranges = append(ranges, request.Header.Get("Range"))
		if len(ranges) == 1 {
			w.Header().Set("Content-Length", fmt.Sprint(len(text)))
			_, _ = w.Write(text[:300_000])
			panic(http.ErrAbortHandler)
		}
		http.ServeContent(w, request, "", day, bytes.NewReader(text))
		return true
	})
	if _, err := openStore(t, "").Pull(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	if len(ranges) != 2 || ranges[0] != "" || ranges[1] == "" {
		t.Errorf("requests for the ranges %q, want the whole and then the rest", ranges)
	}
}

// TestOtherProducers reads what skopeo and umoci write.
func TestOtherProducers(t *testing.T) {
	for _, tool := range []string{"skopeo", "umoci"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s is missing: install it", tool)
			}
			t.Skipf("%s is not installed", tool)
		}
	}
	folder := t.TempDir()
	run := func(args ...string) {
		t.Helper()
		command := exec.Command(args[0], args[1:]...)
		command.Dir = folder
		command.Env = append(os.Environ(), "HOME="+folder, "TMPDIR="+folder)
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	r := newRegistry(t)
	ref := r.push(t, "team/app:1", twoLayers(t))
	from := "docker://" + ref
	copyImage := func(to string, options ...string) {
		t.Helper()
		run(append(append([]string{"skopeo", "--insecure-policy", "copy", "-q", "--src-tls-verify=false", "--dest-tls-verify=false"}, options...), from, to)...)
	}
	copyImage("oci:layout:v1")
	copyImage("oci:zstd:v1", "--dest-compress", "--dest-compress-format", "zstd")
	copyImage("oci-archive:oci.tar:v1")
	copyImage("docker-archive:docker.tar:team/app:1")
	copyImage("docker://"+r.host+"/again:1", "--format", "v2s2")
	run("umoci", "config", "--image", "layout:v1", "--tag", "v2", "--config.label", "by=umoci")
	refs := []string{
		"oci:" + folder + "/layout:v1", "oci:" + folder + "/layout:v2", "oci:" + folder + "/zstd", "oci-archive:" + folder + "/oci.tar",
		"docker-archive:" + folder + "/docker.tar", "docker-archive:" + folder + "/docker.tar:team/app:1", r.host + "/again:1",
	}
	s := openStore(t, "")
	for _, ref := range refs {
		image, err := s.Pull(t.Context(), ref, nil)
		if err != nil {
			t.Errorf("%s: %v", ref, err)
			continue
		}
		checkTwoLayers(t, s, image)
	}
}

// TestGuardedTransport has a registry on a public address that leads elsewhere.
func TestGuardedTransport(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	private := strings.TrimPrefix(server.URL, "http://")
	dial := func(g *guard, address string) error {
		conn, err := g.dial(t.Context(), "tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	}
	public := &guard{}
	public.trusted.Store("registry.example.org:443", true)
	for _, address := range []string{private, "localhost:" + private[strings.LastIndexByte(private, ':')+1:], "169.254.169.254:80", "[::1]:80"} {
		if err := dial(public, address); !errors.Is(err, errPrivate) || errors.As(connectError(err), new(*brokenError)) {
			t.Errorf("%s: %v, want a refusal that is not tried again", address, err)
		}
	}
	public.trusted.Store(private, false) // as a proxy
	if err := dial(public, private); err != nil {
		t.Error(err)
	}
	if public.private.Load() {
		t.Error("a proxy on a private address made the registry one")
	}
	local := &guard{}
	local.trusted.Store(private, true)
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	if err := errors.Join(dial(local, private), dial(local, strings.TrimPrefix(other.URL, "http://"))); err != nil {
		t.Error(err)
	}
}

// FuzzManifest checks that no manifest or configuration makes the reader panic, and that what it accepts keeps the bounds.
func FuzzManifest(f *testing.F) {
	image := twoLayers(f)
	manifest, err := image.RawManifest()
	if err != nil {
		f.Fatal(err)
	}
	config, err := image.RawConfigFile()
	if err != nil {
		f.Fatal(err)
	}
	index, err := indexOf(f, map[string]v1.Image{"linux/riscv64": image}).RawManifest()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(index, manifest, config)
	f.Add(manifest, []byte(nil), config)
	f.Fuzz(func(t *testing.T, first, second, config []byte) {
		m, digest, err := chooseManifest(t.Context(), "x", first, "", func(context.Context, string) ([]byte, error) { return second, nil })
		if err != nil {
			return
		}
		if _, ok := parseDigest(digest); !ok || len(m.Layers) > maxLayers {
			t.Errorf("accepted %q with %d layers", digest, len(m.Layers))
		}
		if parsed, err := parseConfig("x", config, len(m.Layers), ""); err == nil {
			image := Image{}
			image.setConfig(parsed.Config)
		}
	})
}
