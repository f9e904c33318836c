package images

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"agentvm/images/imagestest"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/platform"
	"agentvm/internal/host/private"
)

// diskOf returns the path of the own data of an image's disk.
func diskOf(s *Store, image *Image) string {
	source, _ := parseDigest(image.SourceDigest)
	return s.diskPath(source)
}

// files lists what a store holds, but its lock files.
func files(t testing.TB, s *Store) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(s.Dir(), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasPrefix(path, s.lockDir()) {
			list = append(list, strings.TrimPrefix(path, s.Dir()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestImportListRemove(t *testing.T) {
	s := openStore(t, "")
	archive := makeTar(t, everything())
	for name, bytesOf := range map[string][]byte{"mine": archive, "mine:2": compress(t, archive, toGzip), "team/other.1:Tag": compress(t, archive, toZstd), "same": archive} {
		image, err := s.Import(t.Context(), name, bytes.NewReader(bytesOf))
		if err != nil {
			t.Fatal(err)
		}
		if image.Name != name || image.Ref != "import" {
			t.Errorf("imported %+v", image)
		}
		if info, err := os.Stat(diskOf(s, image)); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
			t.Errorf("disk: %v, %v", info.Mode(), err)
		}
	}
	list, err := s.List()
	if err != nil || len(list) != 4 || list[0].Name != "mine" || list[3].Name != "team/other.1:Tag" {
		t.Fatalf("list: %+v, %v", list, err)
	}
	for _, image := range list {
		if image.RootDiskDigest != list[0].RootDiskDigest {
			t.Errorf("%s: the same tree gives another disk", image.Name)
		}
	}
	if err := s.Remove(t.Context(), "mine"); err != nil {
		t.Fatal(err)
	}
	if image, err := s.Resolve(t.Context(), "same"); err != nil || !s.usable(image) {
		t.Errorf("removing one image took another's disk: %v", err)
	}
	if err := s.Remove(t.Context(), "mine"); !errors.Is(err, ErrNotFound) {
		t.Errorf("second removal: %v", err)
	}
	for _, name := range []string{"same", "mine:2", "team/other.1:Tag"} {
		if err := s.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if left := files(t, s); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestImportReplaces(t *testing.T) {
	s := openStore(t, "")
	for _, content := range []string{"one", "two"} {
		archive := makeTar(t, []entry{file("f", []byte(content))})
		if _, err := s.Import(t.Context(), "mine", bytes.NewReader(archive)); err != nil {
			t.Fatal(err)
		}
	}
	image, err := s.Resolve(t.Context(), "mine")
	if err != nil {
		t.Fatal(err)
	}
	if got := readDisk(t, rawDisk(t, s, image))["f"].Data; got != hashOf([]byte("two")) {
		t.Error("the first import is still there")
	}
}

func TestImportRefuses(t *testing.T) {
	good := makeTar(t, []entry{file("f", nil)})
	tests := []struct {
		name    string
		image   string
		archive []byte
		want    string
	}{
		{"own name", "alpine", good, "not the alpine-minirootfs file"},
		{"own name with a tag", "alpine:mine", good, "version of Alpine"},
		{"built-in name", "busybox", good, "agentvm's own"},
		{"name that is a path", "../../x", good, "lower-case"},
		{"name with an odd byte", "a\nb", good, "lower-case"},
		{"garbage", "mine", bytes.Repeat([]byte("garbage "), 1000), "not a tar archive"},
		{"nothing", "mine", nil, "empty"},
		{"hostile", "mine", makeTar(t, []entry{file("../x", nil)}), `".."`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := openStore(t, "")
			_, err := s.Import(t.Context(), test.image, bytes.NewReader(test.archive))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
			if left := files(t, s); len(left) != 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// TestImportOtherArchitecture imports the genuine Alpine for another machine.
func TestImportOtherArchitecture(t *testing.T) {
	folder, ok := imagestest.Folder(t)
	if !ok {
		t.Skip("no genuine Alpine release here: set " + imagestest.FolderEnv)
	}
	f, err := os.Open(filepath.Join(folder, "alpine-minirootfs-3.20.3-x86_64.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := openStore(t, "")
	_, err = s.Import(t.Context(), "other", f)
	var wrong *ArchitectureError
	if !errors.As(err, &wrong) || wrong.Machine != "x86_64" {
		t.Errorf("error %v", err)
	}
	if left := files(t, s); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestDamagedStore(t *testing.T) {
	archive := makeTar(t, []entry{file("f", []byte("x"))})
	tests := []struct {
		name   string
		damage func(s *Store, image *Image) error
		want   string // part of the error; "" when the image comes back
	}{
		{"archive changed, disk gone", func(s *Store, image *Image) error {
			digest, _ := parseDigest(image.SourceDigest)
			return errors.Join(os.Remove(diskOf(s, image)), os.WriteFile(s.layerPath(digest), archive[:512], 0o600))
		}, "damaged: pull or import it again"},
		{"both gone", func(s *Store, image *Image) error {
			digest, _ := parseDigest(image.SourceDigest)
			return errors.Join(os.Remove(diskOf(s, image)), os.Remove(s.layerPath(digest)))
		}, "damaged: pull or import it again"},
		{"record cut", func(s *Store, image *Image) error {
			return os.Truncate(filepath.Join(s.recordDir(), recordFile(image.Name, platform.RISCV64)), 10)
		}, "damaged record"},
		{"disk's record gone", func(s *Store, image *Image) error {
			return errors.Join(os.Remove(diskOf(s, image)+recordSuffix), os.Truncate(diskOf(s, image), 0))
		}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := openStore(t, "")
			image, err := s.Import(t.Context(), "mine", bytes.NewReader(archive))
			if err != nil {
				t.Fatal(err)
			}
			if err := test.damage(s, image); err != nil {
				t.Fatal(err)
			}
			_, err = s.Resolve(t.Context(), "mine")
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
			if _, err := s.Import(t.Context(), "mine", bytes.NewReader(archive)); err != nil {
				t.Errorf("import again: %v", err)
			}
			if image, err := s.Resolve(t.Context(), "mine"); err != nil || !s.usable(image) {
				t.Errorf("after another import: %v", err)
			}
		})
	}
}

// TestSweep finds what a killed process left.
func TestSweep(t *testing.T) {
	s := openStore(t, "")
	for _, dir := range []string{s.blobDir(), s.layerDir(), s.diskDir(), s.recordDir()} {
		if err := os.WriteFile(filepath.Join(dir, ".x.new-123"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Import(t.Context(), "mine", bytes.NewReader(makeTar(t, []entry{file("f", nil)}))); err != nil {
		t.Fatal(err)
	}
	for _, name := range files(t, s) {
		if atomicfile.IsTemporary(filepath.Base(name)) {
			t.Errorf("left behind: %s", name)
		}
	}
}

func TestRecordNames(t *testing.T) {
	for _, name := range []string{"a", "a:1", "a/b", "registry.example/x/y:V1.0_z", "a.b-c_d"} {
		for _, a := range platform.Supported() {
			file := recordFile(name, a)
			if strings.ContainsAny(file, `/:\`) || strings.ToLower(file) != file {
				t.Errorf("%s is kept as %s", name, file)
			}
			if back, of, ok := recordName(file); !ok || back != name || of != a {
				t.Errorf("%s for %s is kept as %s, which is read as %q for %q", name, a, file, back, of)
			}
		}
	}
	for _, file := range []string{"x", "%.json", "%zz.json", "a%3.json", "A.json", ".json", ".x.json.new-1", "a%61.json", "a+riscv64.json", "a+amd64.json", "a+arm64+arm64.json", "a+.json", "+arm64.json"} {
		if name, _, ok := recordName(file); ok {
			t.Errorf("%s is taken for %q", file, name)
		}
	}
}

// A store that others can change is refused, before anything is looked at in it: they would say what machines run.
func TestStoreOfOthers(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no modes")
	}
	for _, part := range []string{".", "blobs", "layers", "disks", "images", "locks", ".."} {
		dir := filepath.Join(t.TempDir(), "above", "store")
		if _, err := Open(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, part), 0o777); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); !errors.Is(err, private.ErrNotPrivate) {
			t.Errorf("others can write to %s: %v", part, err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can give a folder to others")
	}
	const another = 12345
	for _, part := range []string{".", "blobs", "layers", "disks", "images", "locks", ".."} {
		dir := filepath.Join(t.TempDir(), "above", "store")
		if _, err := Open(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(dir, part), another, another); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); !errors.Is(err, private.ErrNotPrivate) {
			t.Errorf("%s belongs to another user: %v", part, err)
		}
	}
}

func TestStoreDirectory(t *testing.T) {
	want := filepath.Join(t.TempDir(), "store")
	t.Setenv("AGENTVM_STORE", want)
	s, err := Open("")
	if err != nil || s.Dir() != want {
		t.Fatalf("store in %v, %v", s, err)
	}
	info, err := os.Stat(filepath.Join(want, "blobs"))
	if err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := (Config{AlpineMirror: "ftp://x"}).Open(); err == nil || !strings.Contains(err.Error(), "AGENTVM_ALPINE_MIRROR") {
		t.Errorf("odd mirror: %v", err)
	}
}
