package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"agentvm/internal/host/platform"
	"agentvm/internal/storage/chunked"
)

// TestStoreHasLayersOnce pulls two images with a common layer: its data are there once, compressed, and the archives that came are not kept.
func TestStoreHasLayersOnce(t *testing.T) {
	r := newRegistry(t)
	text := bytes.Repeat([]byte("a line that compresses well\n"), 40000)
	base := makeLayer(t, dir("etc"), file("etc/base", noise(300000)), file("text", text))
	s := openStore(t, "")
	var list []*Image
	for _, name := range []string{"first", "second"} {
		image, err := s.Pull(t.Context(), r.push(t, name, makeImage(t, platform.RISCV64, base, makeLayer(t, file("etc/"+name, noise(5000))))), nil)
		if err != nil {
			t.Fatal(err)
		}
		tree := readDisk(t, rawDisk(t, s, image))
		if tree["etc/base"].Data != hashOf(noise(300000)) || tree["text"].Data != hashOf(text) || tree["etc/"+name].Data != hashOf(noise(5000)) {
			t.Errorf("%s has other files", name)
		}
		list = append(list, image)
	}
	layers, err := os.ReadDir(s.layerDir())
	if err != nil || len(layers) != 3 {
		t.Errorf("%d layers, want 3: %v", len(layers), err)
	}
	if blobs, err := os.ReadDir(s.blobDir()); err != nil || len(blobs) != 2 {
		t.Errorf("%d blobs, want the two configurations: %v", len(blobs), err)
	}
	if size := storeSize(t, s); size < 300000 || size > 350000 {
		t.Errorf("the store has %d bytes", size)
	}
	if err := s.Remove(t.Context(), list[0].Name); err != nil {
		t.Fatal(err)
	}
	if again, err := s.Resolve(t.Context(), list[1].Name); err != nil || len(readDisk(t, rawDisk(t, s, again))) != 5 {
		t.Errorf("the other image: %v", err)
	}
	if layers, err := os.ReadDir(s.layerDir()); err != nil || len(layers) != 2 {
		t.Errorf("%d layers after a removal, want 2: %v", len(layers), err)
	}
}

func storeSize(t testing.TB, s *Store) (size int64) {
	t.Helper()
	for _, name := range files(t, s) {
		info, err := os.Stat(filepath.Join(s.Dir(), name))
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	return size
}

// TestRootDiskIsReadAnywhere compares reads at any place, across extents and gaps, with the whole disk.
func TestRootDiskIsReadAnywhere(t *testing.T) {
	s := openStore(t, "")
	image, err := s.Import(t.Context(), "mine", bytes.NewReader(compress(t, makeTar(t, everything()), toGzip)))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(rawDisk(t, s, image))
	if err != nil {
		t.Fatal(err)
	}
	disk, err := s.OpenRootDisk(image)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		at := random.IntN(len(whole) + 1)
		p := make([]byte, random.IntN(3*chunkSize))
		n, err := disk.ReadAt(p, int64(at))
		if want := whole[at:min(len(whole), at+len(p))]; !bytes.Equal(p[:n], want) || (err == io.EOF) != (n < len(p)) || err != nil && err != io.EOF {
			t.Fatalf("%d bytes at %d: %d, %v", len(p), at, n, err)
		}
	}
	if _, err := disk.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("a read before the disk")
	}
	if _, err := disk.ReadAt(make([]byte, 1), disk.Size()+1); err == nil {
		t.Error("a read behind the disk")
	}
}

// TestDamagedLayer flips a bit in a layer: reads fail, the image is no longer taken for a whole one, and a pull fetches the layer again.
func TestDamagedLayer(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "app", makeImage(t, platform.RISCV64, makeLayer(t, file("f", noise(500000)))))
	s := openStore(t, "")
	image, err := s.Pull(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := s.OpenRootDisk(image)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	f, err := os.OpenFile(s.layerPath(image.layerKeys()[0]), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("damage"), 200000); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for at := int64(0); at < disk.Size(); at += blockSize {
		if _, err := disk.ReadAt(make([]byte, blockSize), at); errors.As(err, new(*chunked.DamagedError)) {
			failed++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if failed < 31 || failed > 33 {
		t.Errorf("%d blocks cannot be read, want those of a chunk", failed)
	}
	if s.usable(image) {
		t.Error("the image is still taken for a whole one")
	}
	again, err := s.Resolve(t.Context(), ref)
	if err != nil || readDisk(t, rawDisk(t, s, again))["f"].Data != hashOf(noise(500000)) {
		t.Errorf("pulled again: %v", err)
	}
}

// TestPullVerifies has a pull, and an import of the same archive, find damage that no guest has come across.
func TestPullVerifies(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "app", makeImage(t, platform.RISCV64, makeLayer(t, file("f", noise(500000)))))
	s := openStore(t, "")
	archive := makeTar(t, []entry{file("f", noise(500000))})
	get := map[string]func() (*Image, error){
		"pull":   func() (*Image, error) { return s.Pull(t.Context(), ref, nil) },
		"import": func() (*Image, error) { return s.Import(t.Context(), "mine", bytes.NewReader(archive)) },
	}
	for name, get := range get {
		image, err := get()
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{s.layerPath(image.layerKeys()[0]), diskOf(s, image)} {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte("damage"), min(200000, info.Size()/3)); err != nil {
				t.Fatal(err)
			}
			f.Close()
			again, err := get()
			if err != nil || !s.usable(again) || readDisk(t, rawDisk(t, s, again))["f"].Data != hashOf(noise(500000)) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestFormerStore opens a store of a version that kept archives and disks without compression.
func TestFormerStore(t *testing.T) {
	r := newRegistry(t)
	ref := r.push(t, "app", twoLayers(t))
	s := openStore(t, "")
	pulled, err := s.Pull(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	archive := compress(t, makeTar(t, everything()), toGzip)
	imported, err := s.Import(t.Context(), "mine", bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	makeFormer(t, s, pulled, layerArchives(t, twoLayers(t))...)
	makeFormer(t, s, imported, archive)
	if err := os.RemoveAll(s.layerDir()); err != nil {
		t.Fatal(err)
	}
	r.setAnswer(func(http.ResponseWriter, *http.Request) bool { t.Error("the registry was asked"); return false })
	s = openStoreIn(t, s.Dir(), "")
	if list, err := s.List(); err != nil || len(list) != 2 {
		t.Errorf("%d images are listed, %v", len(list), err)
	}
	for _, image := range []*Image{pulled, imported} {
		again, err := s.Resolve(t.Context(), image.Name)
		if err != nil {
			t.Fatal(err)
		}
		if again.RootDiskDigest != image.RootDiskDigest {
			t.Errorf("%s has another disk", image.Name)
		}
		rawDisk(t, s, again)
	}
	for _, name := range files(t, s) {
		if strings.HasSuffix(name, ".erofs") || strings.HasSuffix(name, ".erofs.json") {
			t.Errorf("left behind: %s", name)
		}
	}
	if blobs, err := os.ReadDir(s.blobDir()); err != nil || len(blobs) != 1 {
		t.Errorf("%d blobs, want the configuration: %v", len(blobs), err)
	}
}

// layerArchives returns the layers of an image as a registry has them.
func layerArchives(t *testing.T, image v1.Image) (list [][]byte) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, layer := range layers {
		blob, err := layer.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		archive, err := io.ReadAll(blob)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, archive)
	}
	return list
}

// makeFormer gives an image the files that it had in form 1.
func makeFormer(t *testing.T, s *Store, image *Image, archives ...[]byte) {
	t.Helper()
	source, _ := parseDigest(image.SourceDigest)
	disk, err := os.ReadFile(rawDisk(t, s, image))
	if err != nil {
		t.Fatal(err)
	}
	record, err := json.Marshal(map[string]any{"digest": image.RootDiskDigest, "size": image.Size, "architecture": image.Architecture})
	if err != nil {
		t.Fatal(err)
	}
	write := map[string][]byte{s.diskPathOf(1, source): disk, s.diskPathOf(1, source) + recordSuffix: record}
	for _, archive := range archives {
		write[s.blobPath(strings.TrimPrefix(digestOf(archive), "sha256:"))] = archive
	}
	for path, content := range write {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Remove(diskOf(s, image)), os.Remove(diskOf(s, image)+recordSuffix)); err != nil {
		t.Fatal(err)
	}
}

// TestLayerIsNotTakenFromOthers pulls an image whose configuration has the DiffID of another image's layer for a layer of its own: what the
// manifest names is fetched and compared.
func TestLayerIsNotTakenFromOthers(t *testing.T) {
	r := newRegistry(t)
	s := openStore(t, "")
	secret, lure := makeLayer(t, file("secret", noise(5000))), makeLayer(t, file("lure", noise(5000)))
	if _, err := s.Pull(t.Context(), r.push(t, "private", makeImage(t, platform.RISCV64, secret)), nil); err != nil {
		t.Fatal(err)
	}
	image := makeImage(t, platform.RISCV64, lure)
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	diffID, err := secret.DiffID()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.RootFS.DiffIDs = []v1.Hash{diffID}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := lure.Digest()
	if err != nil {
		t.Fatal(err)
	}
	archive := layerArchives(t, image)[0]
	layer := NewLayer{Layer: Layer{Digest: digest.String(), DiffID: diffID.String()}, Size: int64(len(archive)),
		Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }}
	if _, err := s.AddImage(t.Context(), "thief", "test", text, []NewLayer{layer}, nil); !errors.As(err, new(*ChecksumError)) {
		t.Errorf("error %v", err)
	}
}

// TestAddImage makes an image of another's layer and a new one.
func TestAddImage(t *testing.T) {
	r := newRegistry(t)
	s := openStore(t, "")
	base, err := s.Pull(t.Context(), r.push(t, "base", makeImage(t, platform.RISCV64, makeLayer(t, file("base", noise(5000))))), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := s.ReadConfig(base)
	if err != nil {
		t.Fatal(err)
	}
	var config v1.ConfigFile
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	archive := makeTar(t, []entry{file("new", noise(300))})
	digest, err := v1.NewHash(digestOf(archive))
	if err != nil {
		t.Fatal(err)
	}
	config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest)
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	layers := []NewLayer{{Layer: base.Layers[0]}, {Layer: Layer{Digest: digest.String(), DiffID: digest.String()}, Size: int64(len(archive)),
		Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }}}
	image, err := s.AddImage(t.Context(), "localhost/built:1", "build", text, layers, nil)
	if err != nil {
		t.Fatal(err)
	}
	if tree := readDisk(t, rawDisk(t, s, image)); tree["base"] == nil || tree["new"] == nil {
		t.Errorf("tree %v", tree)
	}
	top, err := s.OpenLayer(image, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	if got, err := io.ReadAll(top); err != nil || !bytes.Equal(got, archive) {
		t.Errorf("layer of %d bytes, want %d: %v", len(got), len(archive), err)
	}
	if _, err := s.OpenLayer(image, 2); err == nil {
		t.Error("there is no third layer")
	}
	for _, name := range []string{"alpine", "oci:x"} {
		if _, err := s.AddImage(t.Context(), name, "build", text, layers, nil); err == nil || !strings.Contains(err.Error(), "agentvm's own") {
			t.Errorf("%s: %v", name, err)
		}
	}
	layers[1].Open = nil
	layers[1].Digest = "sha256:" + strings.Repeat("0", 64)
	if _, err := s.AddImage(t.Context(), "localhost/built:2", "build", text, layers, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a layer that neither the store nor the caller has: %v", err)
	}
}

// FuzzMap checks that a map is refused, or gives the same map again and stays within the disk and its sources.
func FuzzMap(f *testing.F) {
	f.Add(encodeMap([]extent{{0, 4096, 0, 8192}, {4096, 100, 1, 512}, {8192, 9000, 1, 1024}}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		sizes := []int64{1 << 20, 1 << 30}
		list, err := decodeMap(b, 1<<30, sizes)
		if err != nil {
			return
		}
		end := int64(0)
		for _, e := range list {
			if e.at < end || e.length <= 0 || e.at+e.length > 1<<30 || e.offset < 0 || e.offset+e.length > sizes[e.source] {
				t.Fatalf("extent %+v after %d", e, end)
			}
			end = e.at + e.length
		}
		again, err := decodeMap(encodeMap(list), 1<<30, sizes)
		if err != nil || len(again) != len(list) {
			t.Fatalf("again: %v", err)
		}
	})
}
