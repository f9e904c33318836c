package disk

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

// tool runs one of e2fsprogs.
func tool(t testing.TB, name string, arguments ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath(filepath.Join("/usr/sbin", name))
	}
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is missing; on Debian: apt install e2fsprogs", name)
		}
		t.Skipf("needs %s (Debian: e2fsprogs)", name)
	}
	command := exec.Command(path, arguments...)
	command.Env = append(os.Environ(), "LC_ALL=C")
	output, err := command.CombinedOutput()
	return string(output), err
}

// rawOf returns a disk without layers: the file itself, or a copy.
func rawOf(t testing.TB, path string) string {
	t.Helper()
	if _, raw, _, err := readManifest(path); err != nil {
		t.Fatal(err)
	} else if raw {
		return path
	}
	to := filepath.Join(t.TempDir(), "raw.img")
	if err := WriteRaw(t.Context(), path, to); err != nil {
		t.Fatal(err)
	}
	return to
}

// newRaw makes a disk without layers.
func newRaw(t testing.TB, size int64) string { return rawOf(t, newDisk(t, size)) }

// fsck fails the test unless e2fsck finds nothing wrong with the disk.
func fsck(t testing.TB, path string) {
	t.Helper()
	if output, sound := sound(t, path); !sound {
		t.Errorf("e2fsck:\n%s", output)
	}
}

// sound runs e2fsck, which also exits with 0 when it has ignored something.
func sound(t testing.TB, path string) (output string, ok bool) {
	t.Helper()
	output, err := tool(t, "e2fsck", "-f", "-n", rawOf(t, path))
	return output, err == nil && !strings.Contains(output, "? no") && !strings.Contains(output, "IGNORED") && !strings.Contains(output, "WARNING")
}

// facts returns the lines of dumpe2fs.
func facts(t testing.TB, path string) map[string]string {
	t.Helper()
	output, err := tool(t, "dumpe2fs", "-h", rawOf(t, path))
	if err != nil {
		t.Fatalf("dumpe2fs: %v\n%s", err, output)
	}
	found := make(map[string]string)
	for line := range strings.Lines(output) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			found[name] = strings.TrimSpace(value)
		}
	}
	return found
}

func TestNewDisksAreSound(t *testing.T) {
	version4 := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := make(map[string]bool)
	for _, size := range []int64{0, 0, MinSize, DefaultSize - sizeStep} {
		path := newDisk(t, size)
		fsck(t, path)
		reserved := "127"
		if size == 0 { // two blocks of descriptors
			reserved = "126"
			if output, err := tool(t, "e2fsck", "-f", "-n", "-B", "4096", "-b", "32768", rawOf(t, path)); strings.Contains(output, "checksum") || strings.Contains(output, "Superblock") {
				t.Errorf("by the superblock's copy: %v\n%s", err, output)
			}
		}
		found := facts(t, path)
		for _, name := range []string{"Filesystem UUID", "Directory Hash Seed"} {
			if id := found[name]; !version4.MatchString(id) || seen[id] {
				t.Errorf("%s is %q, or was seen before", name, id)
			}
			seen[found[name]] = true
		}
		want := map[string]string{
			"Filesystem volume name": "agentvm", "Filesystem state": "clean", "Block size": "4096", "Inodes per group": "8192",
			"Maximum mount count": "-1", "Check interval": "0 (<none>)", "Reserved block count": "0", "Errors behavior": "Remount read-only",
			"Filesystem features": "has_journal ext_attr resize_inode dir_index filetype extent 64bit flex_bg sparse_super large_file huge_file uninit_bg dir_nlink extra_isize",
			"Total journal size":  "16M", "Reserved GDT blocks": reserved, "Group descriptor size": "64",
		}
		for name, value := range want {
			if found[name] != value {
				t.Errorf("%s: %q, want %q", name, found[name], value)
			}
		}
	}
}

// TestChecksumMatters: the other tests would see a descriptor with a wrong checksum.
func TestChecksumMatters(t *testing.T) {
	path := newRaw(t, MinSize)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt([]byte{0xde, 0xad}, blockSize+fieldGroupSum); err != nil {
		t.Fatal(err)
	}
	if output, sound := sound(t, path); sound {
		t.Errorf("e2fsck accepts it:\n%s", output)
	}
}

// TestGrows grows file systems to the size of their disk with resize2fs, which does what the kernel does when it is asked.
func TestGrows(t *testing.T) {
	for _, size := range []int64{MinSize, MinSize + sizeStep, 128 << 20, 128<<20 + sizeStep, 1<<30 + 12345, DefaultSize, 100 << 30, MaxSize} {
		path := filepath.Join(t.TempDir(), "disk.img")
		if err := Create(path, size); err != nil {
			t.Fatal(err)
		}
		path = rawOf(t, path)
		if output, err := tool(t, "resize2fs", path); err != nil {
			t.Fatalf("resize2fs to %d: %v\n%s", size, err, output)
		}
		fsck(t, path)
		found := facts(t, path)
		if !strings.Contains(found["Filesystem features"], "resize_inode") || strings.Contains(found["Filesystem features"], "meta_bg") {
			t.Errorf("%d bytes: the reserved descriptors did not suffice: %s", size, found["Filesystem features"])
		}
		d := open(t, path)
		if blocks := fmt.Sprint(d.Size() / blockSize); found["Block count"] != blocks {
			t.Errorf("%d bytes: %s blocks, want %s", size, found["Block count"], blocks)
		}
		d.Close()
	}
}

// TestDiskIsSparse: an empty disk of any size takes little room.
func TestDiskIsSparse(t *testing.T) {
	path := newDisk(t, DefaultSize)
	before := allocated(t, path)
	if before > 900<<10 {
		t.Errorf("an empty disk takes %d bytes", before)
	}
	d := open(t, path)
	for _, p := range [][]byte{bytes.Repeat([]byte{1}, 1<<20), make([]byte, 1<<20)} {
		if _, err := d.WriteAt(p, 5<<30); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	if after := allocated(t, path); after > before+100<<10 {
		t.Errorf("with a MiB written and zeroed it takes %d bytes, before %d", after, before)
	}
}

// provenance is what build.sh records.
type provenance struct {
	Inputs  map[string]string `json:"inputs"`
	Image   recorded          `json:"image"`
	Default recorded          `json:"default"`

	Toolchain struct {
		Mke2fs string `json:"mke2fs"`
	} `json:"toolchain"`
}

// recorded is what build.sh records of a template.
type recorded struct {
	RawSHA256  string `json:"raw_sha256"`
	RawBytes   int    `json:"raw_bytes"`
	ZstdSHA256 string `json:"zstd_sha256"`
	ZstdBytes  int    `json:"zstd_bytes"`
}

func readProvenance(t *testing.T, path string) (p provenance) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// TestTemplateIsBuiltFromTheseSources fails when build.sh changed and the template did not.
func TestTemplateIsBuiltFromTheseSources(t *testing.T) {
	want := readProvenance(t, "provenance.json")
	script, err := os.ReadFile("build.sh")
	if err != nil {
		t.Fatal(err)
	}
	reader, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	got := want
	got.Inputs = map[string]string{"build.sh": hash(script)}
	for template, is := range map[*[]byte]*recorded{&smallTemplate: &got.Image, &defaultTemplate: &got.Default} {
		image, err := reader.DecodeAll(*template, nil)
		if err != nil {
			t.Fatal(err)
		}
		*is = recorded{hash(image), len(image), hash(*template), len(*template)}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("provenance.json (-) and the files beside it (+) disagree, run internal/storage/disk/build.sh:\n%s", diff)
	}
}

// TestTemplateIsReproducible builds it again, when the same version of mke2fs is installed.
func TestTemplateIsReproducible(t *testing.T) {
	want := readProvenance(t, "provenance.json")
	version, err := tool(t, "mke2fs", "-V")
	if err != nil || !strings.HasPrefix(version, "mke2fs "+want.Toolchain.Mke2fs+" ") {
		t.Skipf("built by mke2fs %s; this is %s, %v", want.Toolchain.Mke2fs, version, err)
	}
	out := t.TempDir()
	command := exec.Command("./build.sh", out)
	command.Env = append(os.Environ(), "TZ=Asia/Tokyo")
	if output, err := command.CombinedOutput(); errors.Is(err, exec.ErrNotFound) {
		t.Skip(err)
	} else if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	built := readProvenance(t, filepath.Join(out, "provenance.json"))
	if diff := cmp.Diff([]string{want.Image.RawSHA256, want.Default.RawSHA256}, []string{built.Image.RawSHA256, built.Default.RawSHA256}); diff != "" {
		t.Errorf("the same sources gave other file systems (-recorded +built):\n%s", diff)
	}
}

// TestCreateTakesLittleMemory holds that making a disk unpacks what the template has, and not the file system's zeros: each VM's first start waits
// for it.
func TestCreateTakesLittleMemory(t *testing.T) {
	var before, after runtime.MemStats
	path := filepath.Join(t.TempDir(), "disk")
	runtime.ReadMemStats(&before)
	if err := Create(path, 0); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 2<<20 {
		t.Errorf("%d bytes allocated", n)
	}
}
