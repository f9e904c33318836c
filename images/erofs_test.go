package images

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/erofs/go-erofs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var day = time.Unix(1_700_000_000, 123456789)

func dir(name string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: day}}
}

func file(name string, content []byte) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, ModTime: day}, content: content}
}

func symlink(name, target string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: day}}
}

func hardlink(name, target string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644, ModTime: day}}
}

// noise returns n bytes that do not repeat.
func noise(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)}).Read(p)
	return p
}

// everything is an archive with each kind of entry and each layout.
func everything() []entry {
	entries := []entry{dir("./"), dir("etc"), dir("dev"), dir("deep/er/still"), dir("sizes"), dir("holes"), dir("big")}
	for _, size := range []int{0, 1, 100, 2047, 2048, 2049, 4000, 4095, 4096, 4097, 6144, 8192, 65535, 65536, 65537, 200000} {
		entries = append(entries, file(fmt.Sprintf("sizes/%d", size), noise(size)))
	}
	for i := range 3000 {
		entries = append(entries, file(fmt.Sprintf("big/a-rather-long-name-%05d", i*7919%3000), []byte{byte(i)}))
	}
	hole := func(size int, data ...int) []byte {
		p := make([]byte, size)
		for _, at := range data {
			copy(p[at:], noise(100))
		}
		return p
	}
	entries = append(entries,
		file("holes/all", hole(1<<20)),
		file("holes/start", hole(300_001, 200_000)),
		file("holes/middle", hole(700_000, 0, 600_000)),
		file("holes/end", hole(65536*4, 10)),
		file("holes/short-end", hole(65536*3+5, 10)),
		file("holes/none", hole(65536*2, 65536-100, 65536)),
		file("!before-dot", nil), file("-dash", nil), file("~after", nil), file("...", nil),
		file("implicit/parents/here", []byte("x")),
		symlink("absolute", "/etc/passwd"), symlink("up", "../../../../etc"),
		symlink("long", strings.Repeat("x/", 2000)), symlink("longest", strings.Repeat("y", 4095)),
		hardlink("sizes/again", "sizes/200000"), hardlink("etc/link", "./sizes/again"), hardlink("etc/to-symlink", "absolute"),
	)
	entries = append(entries, specials()...)
	return entries
}

func specials() []entry {
	setuid := file("setuid", noise(10))
	setuid.Mode, setuid.Uid, setuid.Gid = 0o6755, 70000, 4294967290
	old, far := file("old", nil), file("far", nil)
	old.ModTime, far.ModTime = time.Unix(-300_000_000, 0), time.Unix(4_200_000_000, 1)
	attributes, directory := file("attributes", noise(3000)), dir("attributed")
	attributes.PAXRecords = map[string]string{
		"SCHILY.xattr.user.small": "v", "SCHILY.xattr.user.large": strings.Repeat("large", 1000),
		"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		"SCHILY.xattr.trusted.odd":         "123",
	}
	directory.PAXRecords = map[string]string{"SCHILY.xattr.user.d": "ir"}
	device := func(kind byte, name string, major, minor int64) entry {
		return entry{Header: tar.Header{Typeflag: kind, Name: name, Mode: 0o620, ModTime: day, Devmajor: major, Devminor: minor}}
	}
	return []entry{
		setuid, old, far, attributes, directory,
		device(tar.TypeChar, "dev/null", 1, 3), device(tar.TypeBlock, "dev/huge", 300, 70000), device(tar.TypeFifo, "dev/pipe", 0, 0),
	}
}

func TestDiskHoldsEverything(t *testing.T) {
	disk := checkDisk(t, everything())
	if !fsck(t, disk) {
		t.Log("fsck.erofs is not installed: checked with go-erofs only")
	}
	if mounted, ok := mountDisk(t, disk); ok {
		if diff := cmp.Diff(model(everything()), readMounted(t, mounted)); diff != "" {
			t.Errorf("as Linux mounts it (-want +got):\n%s", diff)
		}
	}
	if info, err := os.Stat(disk); err != nil || info.Size() > 2<<20 {
		t.Errorf("disk takes %d bytes: holes take space (%v)", info.Size(), err)
	}
}

func TestDiskIsDeterministic(t *testing.T) {
	archive := makeTar(t, everything())
	first, _ := buildDisk(t, archive)
	second, _ := buildDisk(t, archive)
	a, errA := os.ReadFile(first)
	b, errB := os.ReadFile(second)
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("two builds differ (%v, %v)", errA, errB)
	}
}

func TestDiskOfRepeatedNames(t *testing.T) {
	tests := []struct {
		name    string
		entries []entry
	}{
		{"file twice", []entry{file("f", []byte("one")), file("f", []byte("second"))}},
		{"file over symlink", []entry{symlink("f", "/etc"), file("f", []byte("x"))}},
		{"file over directory", []entry{file("d/a", nil), file("d/b/c", nil), file("d", []byte("x"))}},
		{"directory over file", []entry{file("d", []byte("x")), dir("d"), file("d/a", nil)}},
		{"directory again keeps its entries", []entry{file("d/a", nil), dir("d/")}},
		{"link, then its origin replaced", []entry{file("a", []byte("1")), hardlink("b", "a"), file("a", []byte("2"))}},
		{"link below a replaced directory", []entry{file("d/a", []byte("1")), hardlink("b", "d/a"), file("d", nil)}},
		{"link to itself", []entry{file("a", []byte("1")), hardlink("a", "a")}},
		{"absolute names", []entry{dir("/d"), file("/d/f", []byte("x")), hardlink("/l", "/d/f")}},
		{"only the root", []entry{dir("./")}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { fsck(t, checkDisk(t, test.entries)) })
	}
}

func TestDiskOfRandomTrees(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		entries := []entry{dir("a"), dir("b")}
		files := []string{}
		for i := range rapid.IntRange(0, 60).Draw(r, "entries") {
			name := rapid.SampledFrom([]string{"", "a/", "b/", "a/c/"}).Draw(r, "dir") + rapid.StringMatching(`[!-.0-9e-z]{1,40}`).Draw(r, "name")
			if base := name[strings.LastIndex(name, "/")+1:]; base == "." || base == ".." || base == "a" || base == "b" || base == "c" {
				continue
			}
			switch kind := rapid.IntRange(0, 3).Draw(r, "kind"); {
			case kind == 0 && len(files) > 0:
				entries = append(entries, hardlink(name, rapid.SampledFrom(files).Draw(r, "target")))
			case kind == 1:
				entries = append(entries, symlink(name, strings.Repeat("t", rapid.IntRange(1, 4095).Draw(r, "length"))))
			default:
				entries = append(entries, file(name, noise(rapid.IntRange(0, 10000).Draw(r, "size")+i)))
			}
			files = append(files, name)
		}
		checkDisk(t, entries)
	})
}

// TestDiskOfFileOver4GiB reads the end of a file whose size takes more than 32 bits and that is nearly all hole.
func TestDiskOfFileOver4GiB(t *testing.T) {
	if testing.Short() {
		t.Skip("goes through 5 GiB of zeros")
	}
	path := filepath.Join(t.TempDir(), "root.erofs")
	const holes = 5 << 30
	var own bytes.Buffer
	b := newDiskBuilder(&own)
	n := &node{mode: typeRegular | 0o644, size: holes + 7}
	content := io.MultiReader(io.LimitReader(zeroReader{}, holes), strings.NewReader("the end"))
	if err := b.data.file(n, content, 0, nil); err != nil {
		t.Fatal(err)
	}
	b.root.put("huge", n)
	size, err := b.finish()
	if err != nil || size > 1<<20 {
		t.Fatalf("disk of %d bytes, %v", size, err)
	}
	assemble(t, path, diskFacts{Size: size, extents: b.data.extents}, own.Bytes())
	fsck(t, path)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	disk, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := fs.Stat(disk, "huge"); err != nil || info.Size() != holes+7 {
		t.Errorf("huge: %v, %v", info, err)
	}
	if mounted, ok := mountDisk(t, path); ok {
		huge, err := os.Open(filepath.Join(mounted, "huge"))
		if err != nil {
			t.Fatal(err)
		}
		defer huge.Close()
		end := make([]byte, 10)
		if _, err := huge.ReadAt(end, holes-3); err != nil || string(end) != "\x00\x00\x00the end" {
			t.Errorf("read %q, %v", end, err)
		}
	}
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestDiskWriteErrors(t *testing.T) {
	archive := makeTar(t, everything())
	for _, left := range []int64{0, 4096, 300_000, 900_000} {
		disk := &failingDisk{left: left, err: syscall.ENOSPC}
		_, err := buildRootDisk(context.Background(), disk, Limits{}, archiveTo(bytes.NewReader(archive), disk))
		if err == nil || !strings.Contains(err.Error(), syscall.ENOSPC.Error()) {
			t.Errorf("disk full after %d bytes: %v", left, err)
		}
	}
}
