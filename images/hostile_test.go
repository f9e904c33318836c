package images

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentvm/internal/host/platform"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// TestIndexesInEachOther pulls an index of an index and so on: three are followed, a longer chain ends with an error.
func TestIndexesInEachOther(t *testing.T) {
	r := newRegistry(t)
	platform := &v1.Platform{OS: "linux", Architecture: string(platform.RISCV64)}
	chain := indexOf(t, map[string]v1.Image{"linux/riscv64": twoLayers(t)})
	for depth := 1; depth <= 5; depth++ {
		_, err := openStore(t, "").Pull(t.Context(), r.push(t, fmt.Sprint("deep", depth), chain), nil)
		if (err == nil) != (depth <= maxIndexDepth) || err != nil && !strings.Contains(err.Error(), "indexes in each other") {
			t.Errorf("%d indexes: %v", depth, err)
		}
		chain = mutate.AppendManifests(v1.ImageIndex(empty.Index), mutate.IndexAddendum{Add: chain, Descriptor: v1.Descriptor{Platform: platform}})
	}
}

// TestBlobsThatLie serves layers that are shorter than the manifest says, stop in the middle, or have other bytes: each is an error, and
// nothing of the image is there.
func TestBlobsThatLie(t *testing.T) {
	image := makeImage(t, platform.RISCV64, makeLayer(t, file("f", noise(50000))))
	whole := layerArchives(t, image)[0]
	for name, answer := range map[string]func(http.ResponseWriter){
		"short": func(w http.ResponseWriter) { w.Write(whole[:1000]) },
		"empty": func(http.ResponseWriter) {},
		"broken": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
			w.Write(whole[:1000])
		},
		"other":  func(w http.ResponseWriter) { w.Write(append(bytes.Clone(whole[:len(whole)-1]), whole[len(whole)-1]^1)) },
		"longer": func(w http.ResponseWriter) { w.Write(append(bytes.Clone(whole), whole...)) },
		"redirects": func(w http.ResponseWriter) {
			w.Header().Set("Location", "/v2/app/blobs/x")
			w.WriteHeader(http.StatusTemporaryRedirect)
		},
		"stalls": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
			w.Write(whole[:1000])
			w.(http.Flusher).Flush()
			time.Sleep(500 * time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t)
			ref := r.push(t, "app", image)
			digest := digestOf(whole)
			r.setAnswer(func(w http.ResponseWriter, request *http.Request) bool {
				if !strings.HasSuffix(request.URL.Path, digest) && !strings.HasSuffix(request.URL.Path, "/blobs/x") {
					return false
				}
				answer(w)
				return true
			})
			s := openStore(t, "")
			s.alpine.fetch.stall, s.alpine.fetch.backoff = 50*time.Millisecond, time.Millisecond
			began := time.Now()
			if image, err := s.Pull(t.Context(), ref, nil); err == nil {
				t.Errorf("pulled %+v", image)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
			for _, name := range files(t, s) {
				if dir := filepath.Base(filepath.Dir(name)); dir == "images" || dir == "layers" || dir == "disks" {
					t.Errorf("left behind: %s", name)
				}
			}
			r.setAnswer(nil)
			s.alpine.fetch.stall = fetchStall
			if _, err := s.Pull(t.Context(), ref, nil); err != nil {
				t.Errorf("when the registry is honest again: %v", err)
			}
		})
	}
}

// TestEmptiedArchives: an archive that a pull has left, and that a failure of the power has emptied, is fetched again.
func TestEmptiedArchives(t *testing.T) {
	r, s, image := newRegistry(t), openStore(t, ""), twoLayers(t)
	ref := r.push(t, "app", image)
	for i, whole := range layerArchives(t, image) {
		digest, _ := parseDigest(digestOf(whole))
		left := whole
		if i == 0 {
			left = make([]byte, len(whole))
		}
		if err := os.WriteFile(s.blobPath(digest), left, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pulled, err := s.Pull(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkTwoLayers(t, s, pulled)
}

// TestImageOfInput reads an archive of either kind that arrives through a pipe, to its end.
func TestImageOfInput(t *testing.T) {
	from := openStore(t, "")
	ref := newRegistry(t).push(t, "app", twoLayers(t))
	if _, err := from.Pull(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := from.Pull(t.Context(), "-", nil); err == nil || !strings.Contains(err.Error(), "no standard input") {
		t.Errorf("without an input: %v", err)
	}
	for _, kind := range []string{"docker-archive", "oci-archive"} {
		path := filepath.Join(t.TempDir(), "image.tar")
		if err := from.Save(t.Context(), ref, kind+":"+path, nil, nil); err != nil {
			t.Fatal(err)
		}
		archive, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		input, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		written := make(chan error, 1)
		go func() {
			_, err := w.Write(archive)
			written <- errors.Join(err, w.Close())
		}()
		s, err := Config{Dir: t.TempDir(), Input: input}.Open()
		if err != nil {
			t.Fatal(err)
		}
		image, err := s.Pull(t.Context(), "-", nil)
		if err = errors.Join(err, <-written, input.Close()); err != nil { // the input is still open
			t.Fatalf("%s: %v", kind, err)
		}
		checkTwoLayers(t, s, image)
	}
}

// TestLimitsAreOfAllLayers pulls layers that keep the limits one by one, and not together.
func TestLimitsAreOfAllLayers(t *testing.T) {
	r := newRegistry(t)
	var layers []v1.Layer
	for i := range 4 {
		layers = append(layers, makeLayer(t, file(fmt.Sprint("zeros", i), make([]byte, 1<<20)), dir(fmt.Sprint("a", i)), dir(fmt.Sprint("b", i))))
	}
	ref := r.push(t, "app", makeImage(t, platform.RISCV64, layers...))
	for _, limits := range []Limits{{Bytes: 3 << 20}, {Entries: 10}} {
		s, err := Config{Dir: t.TempDir(), Limits: limits}.Open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Pull(t.Context(), ref, nil); !errors.Is(err, ErrLimit) {
			t.Errorf("%+v: %v", limits, err)
		}
		if left := slices.DeleteFunc(files(t, s), func(name string) bool { return strings.HasPrefix(name, filepath.FromSlash("/blobs/")) }); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
}

// TestSpecialFilesInLayers has devices, attributes, long names and links in two layers: they are files of the guest's only, and the upper
// layer's count.
func TestSpecialFilesInLayers(t *testing.T) {
	r := newRegistry(t)
	s := openStore(t, "")
	long := strings.Repeat("n", maxComponent)
	changed := specials()
	for i := range changed {
		changed[i].Mode = 0o600
	}
	upper := append(changed, hardlink("again", "again-below"), file("again-below", []byte("new")), file(long+"/"+long, []byte("upper")))
	image, err := s.Pull(t.Context(), r.push(t, "app", makeImage(t, platform.RISCV64,
		makeLayer(t, append(specials(), file("again-below", []byte("old")), file(long+"/"+long, []byte("lower")))...), makeLayer(t, upper...))), nil)
	if err != nil {
		t.Fatal(err)
	}
	path := rawDisk(t, s, image)
	fsck(t, path)
	tree := readDisk(t, path)
	if x := tree["dev/huge"]; x == nil || x.Mode != typeBlock|0o600 || x.Device == 0 {
		t.Errorf("device %+v", x)
	}
	if tree["again"].Data != hashOf([]byte("old")) || tree["again-below"].Data != hashOf([]byte("new")) || tree[long+"/"+long].Data != hashOf([]byte("upper")) {
		t.Error("links or long names have other contents")
	}
	if x := tree["attributes"]; x == nil || x.Xattrs["user.small"] != "v" {
		t.Errorf("attributes %+v", x)
	}
	_, err = s.Pull(t.Context(), r.push(t, "long", makeImage(t, platform.RISCV64, makeLayer(t, file(long+"n", nil)))), nil)
	if err == nil || !strings.Contains(err.Error(), "longer than 255") {
		t.Errorf("a longer name: %v", err)
	}
}

// FuzzLayers checks that no two layers make the builder panic, and that every disk it builds of them can be read.
func FuzzLayers(f *testing.F) {
	lower := makeTar(f, []entry{dir("d"), file("d/f", noise(5000)), hardlink("l", "d/f"), symlink("s", "d"), file("g", nil)})
	f.Add(lower, makeTar(f, []entry{file("s/f", []byte("x")), file(".wh.g", nil), hardlink("m", "l"), file("d/.wh..wh..opq", nil)}))
	f.Add(lower, compress(f, makeTar(f, []entry{file("d/.wh.f", nil), file("l/x", nil)}), toGzip))
	f.Add(lower, makeTar(f, specials()))
	limits := Limits{Bytes: 1 << 20, Entries: 100}.withDefaults()
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		var own bytes.Buffer
		plain := make([]bytes.Buffer, 2)
		sources := make([]archive, 2)
		for i, b := range [][]byte{lower, upper} {
			sum := sha256.Sum256(b) // what a layer is called does not matter here
			sources[i] = archive{Reader: bytes.NewReader(b), diffID: digestOf(b), plain: &plain[i], sum: func() ([]byte, error) { return sum[:], nil }}
		}
		facts, err := buildRootDisk(t.Context(), &own, limits, sources...)
		if err != nil {
			return
		}
		path := filepath.Join(t.TempDir(), "root.erofs")
		assemble(t, path, facts, own.Bytes(), plain[0].Bytes(), plain[1].Bytes())
		readDisk(t, path)
	})
}
