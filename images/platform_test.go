package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"agentvm/images/imagestest"
	"agentvm/internal/host/platform"
)

// imageFor is an image whose only program is for the architecture, beside which it has a file of that name.
func imageFor(t testing.TB, a platform.Architecture) v1.Image {
	t.Helper()
	return makeImage(t, a, makeLayer(t, file("bin/sh", shellFor(t, a)), file(string(a), nil)))
}

// shellFor begins like a program for an architecture.
func shellFor(t testing.TB, a platform.Architecture) []byte {
	t.Helper()
	for machine, of := range machines {
		if of == a {
			return program(byte(machine), 2)
		}
	}
	t.Fatalf("no ELF machine is %s", a)
	return nil
}

// TestPullPlatform pulls from indexes of a registry: what is wanted, else what there is, else a refusal that says what there is.
func TestPullPlatform(t *testing.T) {
	r := newRegistry(t)
	riscv64, arm64, amd64 := imageFor(t, platform.RISCV64), imageFor(t, platform.ARM64), makeImage(t, "amd64", makeLayer(t, file("amd64", nil)))
	both := map[string]v1.Image{"linux/arm64/v8": arm64, "linux/riscv64": riscv64, "linux/amd64": amd64}
	other := map[string]v1.Image{"linux/arm64": arm64, "linux/amd64": amd64}
	lying := map[string]v1.Image{"linux/arm64": riscv64}
	for _, test := range []struct {
		name   string
		index  map[string]v1.Image
		single v1.Image
		want   platform.Architecture
		got    string // the architecture, or part of the error
	}{
		{name: "both", index: both, got: "riscv64"},
		{name: "both", index: both, want: platform.ARM64, got: "arm64"},
		{name: "both", index: both, want: platform.RISCV64, got: "riscv64"},
		{name: "one", index: other, got: "arm64"},
		{name: "one", index: other, want: platform.RISCV64, got: "is for linux/amd64, linux/arm64, not for linux/riscv64: choose another platform"},
		{name: "none", index: map[string]v1.Image{"linux/amd64": amd64, "windows/arm64": arm64, "linux/arm64/v9": arm64}, got: "is for linux/amd64, linux/arm64/v9, windows/arm64, but agentvm runs linux/riscv64 or linux/arm64"},
		{name: "single", single: arm64, got: "arm64"},
		{name: "single", single: arm64, want: platform.RISCV64, got: "is for linux/arm64, not for linux/riscv64"},
		{name: "single-amd64", single: amd64, got: "is for linux/amd64, but agentvm runs linux/riscv64 or linux/arm64"},
		{name: "index-lies", index: lying, want: platform.ARM64, got: "is for linux/riscv64, not for linux/arm64"},
		{name: "index-lies", index: lying, got: "riscv64"},
	} {
		t.Run(test.name+" "+string(test.want), func(t *testing.T) {
			ref := ""
			if test.single != nil {
				ref = r.push(t, test.name, test.single)
			} else {
				ref = r.push(t, test.name, indexOf(t, test.index))
			}
			s := openStore(t, "")
			image, err := s.For(test.want).Pull(t.Context(), ref, nil)
			if err != nil {
				var wrong *PlatformError
				if !errors.As(err, &wrong) || !strings.Contains(err.Error(), test.got) || strings.Contains(err.Error(), "\n") {
					t.Errorf("error %v, want %s", err, test.got)
				}
				if list, err := s.List(); err != nil || len(list) != 0 {
					t.Errorf("the store has %v, %v", list, err)
				}
				return
			}
			if string(image.Architecture) != test.got || readDisk(t, rawDisk(t, s, image))[test.got] == nil {
				t.Errorf("pulled %+v, want %s", image, test.got)
			}
		})
	}
}

// TestPlatformsSideBySide keeps a name for two platforms: each is found, listed, tagged, saved and removed by itself.
func TestPlatformsSideBySide(t *testing.T) {
	r, s := newRegistry(t), openStore(t, "")
	ref := r.push(t, "app", indexOf(t, map[string]v1.Image{"linux/arm64": imageFor(t, platform.ARM64), "linux/riscv64": imageFor(t, platform.RISCV64)}))
	arm := s.For(platform.ARM64)
	if _, err := s.Resolve(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if _, err := arm.Find(ref); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "for linux/arm64") {
		t.Errorf("found before it was pulled: %v", err)
	}
	if image, err := arm.Resolve(t.Context(), ref); err != nil || image.Architecture != platform.ARM64 {
		t.Fatalf("resolved %+v, %v", image, err)
	}
	asked := r.asked("/")
	for want, of := range map[platform.Architecture]platform.Architecture{"": platform.RISCV64, platform.RISCV64: platform.RISCV64, platform.ARM64: platform.ARM64} {
		if image, err := s.For(want).Resolve(t.Context(), ref); err != nil || image.Architecture != of || readDisk(t, rawDisk(t, s, image))[string(of)] == nil {
			t.Errorf("for %q the store has %+v, %v", want, image, err)
		}
	}
	if r.asked("/") != asked {
		t.Error("the registry was asked for what the store has")
	}
	if _, err := s.Tag(t.Context(), ref, "other"); err != nil {
		t.Fatal(err)
	}
	if _, err := arm.Tag(t.Context(), ref, "armed"); err != nil {
		t.Fatal(err)
	}
	usage, total, err := s.Usage()
	if err != nil || total.Images != 5 || usage[Key{ref, platform.ARM64}].Shared == 0 || usage[Key{"armed:latest", platform.ARM64}].Own != 0 {
		t.Errorf("they take %+v, %+v, %v", usage, total, err)
	}
	keys := func() (list []string) {
		found, err := s.List()
		if err != nil {
			t.Fatal(err)
		}
		for _, image := range found {
			list = append(list, image.Key().String())
		}
		return list
	}
	if got, want := keys(), []string{ref, ref + " (linux/arm64)", "armed:latest (linux/arm64)", "other:latest", "other:latest (linux/arm64)"}; !slices.Equal(got, want) {
		t.Errorf("the store has %q, want %q", got, want)
	}
	if err := arm.Remove(t.Context(), ref); err != nil {
		t.Error(err)
	}
	if err := arm.Remove(t.Context(), ref); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
	if err := s.Remove(t.Context(), "other"); err != nil {
		t.Error(err)
	}
	if got, want := keys(), []string{ref, "armed:latest (linux/arm64)"}; !slices.Equal(got, want) {
		t.Errorf("the store has %q, want %q", got, want)
	}
	if image, err := s.Resolve(t.Context(), "armed"); err != nil || image.Architecture != platform.ARM64 || readDisk(t, rawDisk(t, s, image))["arm64"] == nil {
		t.Errorf("the only one of its name is %+v, %v", image, err)
	}
	pruned, err := s.Prune(t.Context(), func(image *Image) (bool, error) { return image.Architecture == platform.ARM64, nil }, false)
	if err != nil || !slices.Equal(pruned.Images, []Key{{"armed:latest", platform.ARM64}}) {
		t.Errorf("pruned %v, %v", pruned, err)
	}
	if got, want := keys(), []string{ref}; !slices.Equal(got, want) {
		t.Errorf("the store has %q, want %q", got, want)
	}
}

// TestStoreOfLaterVersion has a record for a platform that is not known here: nothing is removed that may be its image's.
func TestStoreOfLaterVersion(t *testing.T) {
	s := openStore(t, "")
	if _, err := s.Import(t.Context(), "mine", bytes.NewReader(makeTar(t, []entry{file("bin/sh", shellFor(t, platform.ARM64))}))); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(s.recordDir(), "mine+arm64.json")
	later := filepath.Join(s.recordDir(), "mine+later64.json")
	if err := os.Rename(record, later); err != nil {
		t.Fatal(err)
	}
	before := files(t, s)
	if err := s.Remove(t.Context(), "mine"); err == nil || !strings.Contains(err.Error(), `runs "later64"`) {
		t.Errorf("removed: %v", err)
	}
	if _, err := s.Prune(t.Context(), nil, false); err == nil || !strings.Contains(err.Error(), `runs "later64"`) {
		t.Errorf("pruned: %v", err)
	}
	if after := files(t, s); !slices.Equal(before, after) {
		t.Errorf("the store had %q, has %q", before, after)
	}
	if err := os.Rename(later, record); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "mine"); err != nil {
		t.Error(err)
	}
}

// TestSavePlatform sends an image for arm64 through each form and a registry: what comes back is for arm64, and says so with its variant.
func TestSavePlatform(t *testing.T) {
	r, s := newRegistry(t), openStore(t, "")
	if _, err := s.Import(t.Context(), "mine", bytes.NewReader(makeTar(t, []entry{file("bin/sh", shellFor(t, platform.ARM64))}))); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	there := []string{"oci:" + filepath.Join(dir, "layout"), "oci-archive:" + filepath.Join(dir, "oci.tar"), "docker-archive:" + filepath.Join(dir, "docker.tar")}
	for _, to := range there {
		if err := s.Save(t.Context(), "mine", to, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	pushed, err := s.Push(t.Context(), "mine", r.host+"/mine", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range append(there, pushed) {
		back := openStore(t, "")
		image, err := back.Pull(t.Context(), ref, nil)
		if err != nil || image.Architecture != platform.ARM64 {
			t.Errorf("%s: %+v, %v", ref, image, err)
			continue
		}
		text, err := back.ReadConfig(image)
		var config v1.ConfigFile
		if err == nil {
			err = json.Unmarshal(text, &config)
		}
		if err != nil || config.Architecture != "arm64" || config.Variant != "v8" {
			t.Errorf("%s: configuration %s, %v", ref, text, err)
		}
		if _, err := openStore(t, "").For(platform.RISCV64).Pull(t.Context(), ref, nil); !errors.As(err, new(*PlatformError)) {
			t.Errorf("%s for riscv64: %v", ref, err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "layout", "index.json"))
	var index v1.IndexManifest
	if err == nil {
		err = json.Unmarshal(text, &index)
	}
	if err != nil || len(index.Manifests) != 1 || index.Manifests[0].Platform.String() != "linux/arm64/v8" {
		t.Errorf("index %s, %v", text, err)
	}
}

// TestPushPlatforms sends an image that is there for both platforms, as an index whose images are what the store has, and one of both.
func TestPushPlatforms(t *testing.T) {
	from, to, s := newRegistry(t), newRegistry(t), openStore(t, "")
	ref := from.push(t, "app", indexOf(t, map[string]v1.Image{"linux/arm64": imageFor(t, platform.ARM64), "linux/riscv64": imageFor(t, platform.RISCV64)}))
	sent := map[platform.Architecture]*Image{}
	for _, a := range platform.Supported() {
		image, err := s.For(a).Resolve(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		sent[a] = image
	}
	var last Progress
	there, err := s.Push(t.Context(), ref, to.host+"/app:1", func(p Progress) { last = p })
	if err != nil || last.Stage != StageUpload || last.Done != last.Total || last.Total == 0 {
		t.Fatalf("pushed %s, %+v, %v", there, last, err)
	}
	if again, err := s.Push(t.Context(), ref, to.host+"/app:2", nil); err != nil || again != there {
		t.Errorf("the second push: %s, %v", again, err)
	}
	for _, ref := range []string{to.host + "/app:1", there} {
		for a, want := range sent {
			back, err := openStore(t, "").For(a).Pull(t.Context(), ref, nil)
			if err != nil || back.Architecture != a || back.SourceDigest != want.SourceDigest || back.RootDiskDigest != want.RootDiskDigest {
				t.Errorf("%s for %s: %+v, %v", ref, a, back, err)
			}
		}
	}
	one, err := s.For(platform.ARM64).Push(t.Context(), ref, to.host+"/one", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openStore(t, "").For(platform.RISCV64).Pull(t.Context(), one, nil); !errors.As(err, new(*PlatformError)) {
		t.Errorf("only arm64 was to be sent: %v", err)
	}
	checkNoTemporary(t, s)
}

// TestConfigurationLies pulls images whose configuration and programs disagree. Neither wins, and nothing is kept that could boot.
func TestConfigurationLies(t *testing.T) {
	r := newRegistry(t)
	for says, is := range map[platform.Architecture]platform.Architecture{platform.ARM64: platform.RISCV64, platform.RISCV64: platform.ARM64} {
		ref := r.push(t, "lies-"+string(says), makeImage(t, says, makeLayer(t, file("bin/sh", shellFor(t, is)))))
		for _, want := range []platform.Architecture{"", says, is} {
			s := openStore(t, "")
			_, err := s.For(want).Pull(t.Context(), ref, nil)
			var wrong *ArchitectureError
			switch {
			case want == is && !errors.As(err, new(*PlatformError)):
				t.Errorf("says %s, is %s, wanted %s: %v", says, is, want, err)
			case want != is && (!errors.As(err, &wrong) || wrong.Stated != says || wrong.Machine != is.Platform() || wrong.Program != "/bin/sh"):
				t.Errorf("says %s, is %s, wanted %q: %v", says, is, want, err)
			}
			left, listErr := s.List()
			disks, dirErr := os.ReadDir(s.diskDir())
			if listErr != nil || dirErr != nil || len(left) != 0 || len(disks) != 0 {
				t.Errorf("kept %v and %v: %v, %v", left, disks, listErr, dirErr)
			}
		}
	}
	variant, err := mutate.ConfigFile(imageFor(t, platform.ARM64), &v1.ConfigFile{Architecture: "arm64", Variant: "v9", OS: "linux"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openStore(t, "").Pull(t.Context(), r.push(t, "v9", variant), nil); !errors.As(err, new(*PlatformError)) || !strings.Contains(err.Error(), "linux/arm64/v9") {
		t.Errorf("of a later version of the architecture: %v", err)
	}
}

// TestImportPlatform imports archives: they are for what their programs are for; without one for what is said, else for the preferred platform.
func TestImportPlatform(t *testing.T) {
	for _, test := range []struct {
		content []entry
		want    platform.Architecture
		got     string // the architecture, or part of the error
	}{
		{[]entry{file("bin/sh", shellFor(t, platform.ARM64))}, "", "arm64"},
		{[]entry{file("bin/sh", shellFor(t, platform.ARM64))}, platform.ARM64, "arm64"},
		{[]entry{file("bin/sh", shellFor(t, platform.ARM64))}, platform.RISCV64, "said to be for linux/riscv64, but its /bin/sh is for linux/arm64"},
		{[]entry{file("data", nil)}, "", "riscv64"},
		{[]entry{file("data", nil)}, platform.ARM64, "arm64"},
	} {
		s := openStore(t, "").For(test.want)
		image, err := s.Import(t.Context(), "mine", bytes.NewReader(makeTar(t, test.content)))
		switch {
		case err != nil && !strings.Contains(err.Error(), test.got):
			t.Errorf("%v for %q: %v", test.content[0].Name, test.want, err)
		case err == nil && string(image.Architecture) != test.got:
			t.Errorf("%v for %q: %+v", test.content[0].Name, test.want, image)
		}
		if found, err := s.Resolve(t.Context(), "mine"); image != nil && (err != nil || found.Architecture != image.Architecture) {
			t.Errorf("%v for %q is found as %+v, %v", test.content[0].Name, test.want, found, err)
		}
	}
	// Once more with a disk that is there already.
	s := openStore(t, "")
	archive := makeTar(t, []entry{file("bin/sh", shellFor(t, platform.ARM64))})
	if _, err := s.Import(t.Context(), "mine", bytes.NewReader(archive)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.For(platform.RISCV64).Import(t.Context(), "mine", bytes.NewReader(archive)); !errors.As(err, new(*ArchitectureError)) {
		t.Errorf("imported for a platform that it is not for: %v", err)
	}
	if image, err := s.Find("mine"); err != nil || image.Architecture != platform.ARM64 {
		t.Errorf("the image is %+v, %v", image, err)
	}
}

// TestStoreOfEarlierVersion reads records as earlier versions wrote them: without an architecture where they knew no program.
func TestStoreOfEarlierVersion(t *testing.T) {
	s := openStore(t, "")
	if _, err := s.Import(t.Context(), "mine", bytes.NewReader(makeTar(t, []entry{file("data", nil)}))); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(s.recordDir(), "mine.json")
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	former := bytes.Replace(text, []byte(",\n  \"architecture\": \"riscv64\""), nil, 1)
	if len(former) == len(text) {
		t.Fatalf("no architecture in %s", text)
	}
	if err := os.WriteFile(record, former, 0o600); err != nil {
		t.Fatal(err)
	}
	if image, err := s.Resolve(t.Context(), "mine"); err != nil || image.Architecture != platform.RISCV64 {
		t.Errorf("an image of an earlier version is %+v, %v", image, err)
	}
	if _, err := s.For(platform.ARM64).Find("mine"); !errors.Is(err, ErrNotFound) {
		t.Errorf("it is for arm64, too: %v", err)
	}
	// The record of one platform under the name of another's is damage.
	if err := os.Rename(record, filepath.Join(s.recordDir(), "mine+arm64.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Find("mine"); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("found where it does not belong: %v", err)
	}
	if err := s.Remove(t.Context(), "mine"); err != nil {
		t.Errorf("a damaged record cannot be removed: %v", err)
	}
}

// TestAlpineForBoth pulls and imports the genuine release for arm64, which is pinned, beside that for riscv64.
func TestAlpineForBoth(t *testing.T) {
	s := openStore(t, genuine(t))
	image, err := s.For(platform.ARM64).Pull(t.Context(), imagestest.Alpine, nil)
	if err != nil || image.Architecture != platform.ARM64 || !strings.HasSuffix(image.Ref, "/aarch64/alpine-minirootfs-3.20.3-aarch64.tar.gz") {
		t.Fatalf("pulled %+v, %v", image, err)
	}
	tree := readDisk(t, rawDisk(t, s, image))
	if tree["lib/ld-musl-aarch64.so.1"] == nil {
		t.Error("it is not Alpine for arm64")
	}
	if found, err := s.Find(imagestest.Alpine); err != nil || found.Architecture != platform.ARM64 {
		t.Errorf("the store has %+v, %v", found, err)
	}
	if first, err := s.Resolve(t.Context(), imagestest.Alpine); err != nil || first.Architecture != platform.RISCV64 {
		t.Errorf("without a platform it is %+v, %v", first, err)
	}
	folder, _ := imagestest.Folder(t)
	archive, err := os.ReadFile(filepath.Join(folder, "alpine-minirootfs-3.20.3-aarch64.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []platform.Architecture{"", platform.ARM64} {
		if image, err := openStore(t, "").For(want).Import(t.Context(), AlpineName, bytes.NewReader(archive)); err != nil || image.Architecture != platform.ARM64 || image.Name != imagestest.Alpine {
			t.Errorf("imported %+v, %v", image, err)
		}
	}
	if _, err := openStore(t, "").For(platform.RISCV64).Import(t.Context(), AlpineName, bytes.NewReader(archive)); err == nil || strings.Contains(err.Error(), "aarch64") {
		t.Errorf("imported for another platform, or told to get its file: %v", err)
	}
}
