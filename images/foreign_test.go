package images

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentvm/internal/host/platform"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// foreignTypes are those of layers whose publishers forbid copies, which may have addresses from where they are to be had instead.
var foreignTypes = []types.MediaType{types.DockerForeignLayer, types.OCIRestrictedLayer, types.OCIUncompressedRestrictedLayer}

// TestForeignLayers pulls images with such layers: what the registry has is taken, and sent as any other layer; what it does not have is an error
// that says so. The addresses, which whoever has made the image has chosen, are never asked.
func TestForeignLayers(t *testing.T) {
	var asked atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer elsewhere.Close()
	urls := []string{elsewhere.URL + "/layer", "file:///etc/passwd", "http://169.254.169.254/latest"}
	for _, kind := range foreignTypes {
		t.Run(string(kind), func(t *testing.T) {
			two := twoLayers(t)
			list, err := two.Layers()
			if err != nil {
				t.Fatal(err)
			}
			config, err := two.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			image, err := mutate.ConfigFile(makeImage(t, platform.RISCV64), &v1.ConfigFile{Architecture: config.Architecture, OS: config.OS, Config: config.Config})
			if err == nil {
				image, err = mutate.Append(image, mutate.Addendum{Layer: list[0]}, mutate.Addendum{Layer: list[1], MediaType: kind, URLs: urls})
			}
			if err != nil {
				t.Fatal(err)
			}
			r := newRegistry(t)
			ref := r.push(t, "team/app:1", image)
			digest, err := list[1].Digest()
			if err != nil {
				t.Fatal(err)
			}
			r.setAnswer(func(w http.ResponseWriter, request *http.Request) bool { // as a registry into which docker push has not copied it
				missing := strings.HasSuffix(request.URL.Path, digest.String())
				if missing {
					http.NotFound(w, request)
				}
				return missing
			})
			_, err = openStore(t, "").Pull(t.Context(), ref, nil)
			if err == nil || !strings.Contains(err.Error(), "is kept out of registries by its publisher ("+string(kind)+"), and this one does not have it") {
				t.Errorf("a layer that is not there: %v", err)
			}
			r.setAnswer(nil)
			s := openStore(t, "")
			pulled, err := s.Pull(t.Context(), ref, nil)
			if err != nil {
				t.Fatalf("a layer that is there: %v", err)
			}
			checkTwoLayers(t, s, pulled)
			archive := filepath.Join(t.TempDir(), "saved.tar")
			if err := s.Save(t.Context(), pulled.Name, "docker-archive:"+archive, nil, nil); err != nil {
				t.Fatal(err)
			}
			other := openStore(t, "")
			back, err := other.Pull(t.Context(), "docker-archive:"+archive, nil)
			if err != nil {
				t.Fatal(err)
			}
			checkTwoLayers(t, other, back)
			to := newRegistry(t)
			if _, err := s.Push(t.Context(), pulled.Name, "docker://"+to.host+"/team/copy:1", nil); err != nil {
				t.Fatal(err)
			}
			other = openStore(t, "")
			if back, err = other.Pull(t.Context(), to.host+"/team/copy:1", nil); err != nil {
				t.Fatal(err)
			}
			checkTwoLayers(t, other, back)
		})
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("an address of a layer was asked %d times", n)
	}
}

// TestHistories has images whose history says more, less or other things than there are layers: it is only told, and stays as it is.
func TestHistories(t *testing.T) {
	when := v1.Time{Time: time.Unix(1e9, 0).UTC()}
	long := make([]v1.History, 5000)
	for i := range long {
		long[i] = v1.History{CreatedBy: fmt.Sprint("step ", i), EmptyLayer: i%2 == 0}
	}
	for what, list := range map[string][]v1.History{
		"none":              nil,
		"fewer than layers": {{CreatedBy: "one", Created: when}},
		"all empty":         {{CreatedBy: "a", EmptyLayer: true}, {CreatedBy: "b", EmptyLayer: true}, {CreatedBy: "c", EmptyLayer: true}},
		"more than layers":  long,
		"hostile":           {{CreatedBy: "\x1b]0;owned\a\u202e<script>\n\x00", Author: strings.Repeat("x", 10_000), Created: v1.Time{Time: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}}, {CreatedBy: "two"}},
	} {
		t.Run(what, func(t *testing.T) {
			image := twoLayers(t)
			config, err := image.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			config = config.DeepCopy()
			config.History = list
			if image, err = mutate.ConfigFile(image, config); err != nil {
				t.Fatal(err)
			}
			s := openStore(t, "")
			pulled, err := s.Pull(t.Context(), newRegistry(t).push(t, "team/app:1", image), nil)
			if err != nil {
				t.Fatal(err)
			}
			checkTwoLayers(t, s, pulled)
			check := func(s *Store, image *Image) {
				t.Helper()
				steps, err := s.History(image.Name)
				if err != nil || len(steps) != len(list) {
					t.Fatalf("%d steps, want %d: %v", len(steps), len(list), err)
				}
				made := 0
				for i, step := range steps {
					if step.CreatedBy != list[i].CreatedBy || list[i].EmptyLayer && step.Layer != "" {
						t.Errorf("step %d is %+v", i, step)
					}
					if step.Layer != "" {
						made++
					}
				}
				if made > len(image.Layers) {
					t.Errorf("%d layers of %d", made, len(image.Layers))
				}
			}
			check(s, pulled)
			var archive bytes.Buffer
			if err := s.Save(t.Context(), pulled.Name, "docker-archive:-", &archive, nil); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "saved.tar")
			if err := os.WriteFile(file, archive.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			other := openStore(t, "")
			back, err := other.Pull(t.Context(), "docker-archive:"+file, nil)
			if err != nil {
				t.Fatal(err)
			}
			checkTwoLayers(t, other, back)
			check(other, back)
		})
	}
}
