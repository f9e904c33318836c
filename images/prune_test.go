package images

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"agentvm/internal/host/platform"
)

func TestPruneAndUsage(t *testing.T) {
	r := newRegistry(t)
	s := openStore(t, "")
	base := makeLayer(t, file("base", noise(300000)))
	var names []string
	for _, name := range []string{"first", "second"} {
		image, err := s.Pull(t.Context(), r.push(t, name, makeImage(t, platform.RISCV64, base, makeLayer(t, file(name, noise(100000+len(name)))))), nil)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, image.Name)
	}
	if _, err := s.Import(t.Context(), "mine", bytes.NewReader(makeTar(t, []entry{file("f", noise(200000))}))); err != nil {
		t.Fatal(err)
	}
	for path, size := range map[string]int{
		s.layerPath("0"): 5000, filepath.Join(s.blobDir(), partialPrefix+"x"): 700, filepath.Join(s.diskDir(), "former.erofs"): 30,
	} {
		if err := os.WriteFile(path, noise(size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	usage, total, err := s.Usage()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if u := usage[Key{name, platform.RISCV64}]; u.Shared < 300000 || u.Shared > 305000 || u.Own < 100000 || u.Own > 107000 {
			t.Errorf("%s takes %+v", name, u)
		}
	}
	if u := usage[Key{"mine", platform.RISCV64}]; u.Shared != 0 || u.Own < 200000 || u.Own > 205000 {
		t.Errorf("mine takes %+v", u)
	}
	records := int64(0)
	for _, name := range files(t, s) {
		if filepath.Base(filepath.Dir(name)) == "images" {
			info, err := os.Stat(filepath.Join(s.Dir(), name))
			if err != nil {
				t.Fatal(err)
			}
			records += info.Size()
		}
	}
	if total.Images != 3 || total.Reclaimable != 5730 || total.Bytes != storeSize(t, s)-records {
		t.Errorf("total %+v of %d", total, storeSize(t, s)-records)
	}

	before := files(t, s)
	unknown := errors.New("unknown")
	if pruned, err := s.Prune(t.Context(), func(image *Image) (bool, error) {
		if image.Name == names[1] {
			return false, unknown
		}
		return true, nil
	}, false); !errors.Is(err, unknown) || len(pruned.Images) > 0 || !slices.Equal(files(t, s), before) {
		t.Errorf("pruned although it is not known what is needed: %v, %v", pruned, err)
	}
	all := func(image *Image) (bool, error) { return image.Name != names[1], nil }
	wouldFree := int64(0)
	for _, test := range []struct {
		unused func(*Image) (bool, error)
		dryRun bool
		images int
	}{{nil, true, 0}, {nil, false, 0}, {all, true, 2}, {all, false, 2}, {all, false, 0}} {
		size := storeSize(t, s)
		pruned, err := s.Prune(t.Context(), test.unused, test.dryRun)
		if err != nil || len(pruned.Images) != test.images {
			t.Fatalf("%+v: %+v, %v", test, pruned, err)
		}
		freed := size - storeSize(t, s)
		switch {
		case test.dryRun:
			if wouldFree = pruned.Bytes; freed != 0 || wouldFree == 0 {
				t.Errorf("a dry run freed %d, and would %d", freed, wouldFree)
			}
			continue
		case pruned.Bytes != wouldFree, freed < pruned.Bytes, freed > pruned.Bytes+4000: // records are not counted
			t.Errorf("freed %d, said %d, and %d before", freed, pruned.Bytes, wouldFree)
		}
		wouldFree = 0
	}
	if !slices.Contains(before, filepath.FromSlash("/layers/0.tar.zst")) || slices.Contains(files(t, s), filepath.FromSlash("/layers/0.tar.zst")) {
		t.Error("a layer that no image needs is left, or was never there")
	}
	image, err := s.Resolve(t.Context(), names[1])
	if err != nil || readDisk(t, rawDisk(t, s, image))["base"] == nil {
		t.Errorf("the image that is left: %v", err)
	}
	if err := os.WriteFile(filepath.Join(s.recordDir(), recordFile("odd", platform.RISCV64)), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prune(t.Context(), all, false); err == nil {
		t.Error("pruned although it is not known what a damaged record needs")
	}
}
