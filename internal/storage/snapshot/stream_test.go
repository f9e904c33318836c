package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

var update = flag.Bool("update", false, "write testdata/golden.zst anew")

func digestOf(b []byte) digest { return sha256.Sum256(b) }

func exported(t testing.TB, f *File) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := f.Export(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func importFile(t testing.TB, stream []byte, path string) *File {
	t.Helper()
	if err := Import(t.Context(), bytes.NewReader(stream), path, ImportLimits{}); err != nil {
		t.Fatal(err)
	}
	return openFile(t, path)
}

func unpacked(t testing.TB, stream []byte) []byte {
	t.Helper()
	z, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	b, err := z.DecodeAll(stream, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func packed(t testing.TB, b []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll(b, nil)
}

func TestExportAndImport(t *testing.T) {
	dir := t.TempDir()
	c := content(newMemory(700*PageSize, 0, 2, 300, 699))
	disk := newMemory(1000*PageSize, 7, 500)
	c.Disk, c.DiskSize = bytes.NewReader(disk), int64(len(disk))
	f := writeFile(t, filepath.Join(dir, "a.snap"), c)
	copied := importFile(t, exported(t, f), filepath.Join(dir, "b.snap"))
	if copied.ID() != f.ID() || !bytes.Equal(readAll(t, f.Path()), readAll(t, copied.Path())) {
		t.Error("the imported file is another one")
	}
	if err := copied.Verify(t.Context()); err != nil {
		t.Error(err)
	}
}

// goldenContent is small, and has something of everything that a file can have.
func goldenContent(t testing.TB) Content {
	m := newMemory(600*PageSize, 598)
	copy(m[5*PageSize+100:], "the golden snapshot")
	copy(m[300*PageSize:], bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 8}, 3*PageSize/8))
	disk := make(memory, 64*PageSize)
	copy(disk[63*PageSize:], "and its disk")
	c := content(m)
	c.Disk, c.DiskSize = bytes.NewReader(disk), int64(len(disk))
	return c
}

// The ID of the golden snapshot: it is the same wherever it is computed.
const goldenID = "267af56cf32b187bfc1b4c69283c1acde161512661652480deb34bc698d16832"

// TestGolden reads a committed stream, makes the file of it, makes the file from its contents, and makes the stream again: all
// of it has to be the same bytes on every architecture. TestOtherByteOrder runs it elsewhere.
func TestGolden(t *testing.T) {
	dir, golden := t.TempDir(), filepath.Join("testdata", "golden.zst")
	made := writeFile(t, filepath.Join(dir, "made.snap"), goldenContent(t))
	if *update {
		if err := os.WriteFile(golden, exported(t, made), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stream := readAll(t, golden)
	f := importFile(t, stream, filepath.Join(dir, "imported.snap"))
	if f.ID() != goldenID || made.ID() != goldenID {
		t.Errorf("imported %s, made %s, want %s", f.ID(), made.ID(), goldenID)
	}
	if !bytes.Equal(readAll(t, f.Path()), readAll(t, made.Path())) {
		t.Error("the imported file is not the one made")
	}
	again := exported(t, f)
	if !bytes.Equal(unpacked(t, again), unpacked(t, stream)) {
		t.Error("exported again, the stream is another one")
	}
	if !bytes.Equal(again, stream) {
		t.Error("compressed again, the stream is another one: when github.com/klauspost/compress has changed, run go test -run TestGolden -update ./internal/storage/snapshot")
	}
	sum := digestOf(readAll(t, f.Path()))
	t.Logf("%s/%s: ID %s, file %s", runtime.GOOS, runtime.GOARCH, f.ID(), hex.EncodeToString(sum[:]))
}

func TestImportRefuses(t *testing.T) {
	dir := t.TempDir()
	c := content(newMemory(300*PageSize, 1, 2, 299))
	f := writeFile(t, filepath.Join(dir, "good.snap"), c)
	stream := exported(t, f)
	plain := unpacked(t, stream)
	changed := func(at int, to byte) []byte {
		b := bytes.Clone(plain)
		b[at] = to
		return packed(t, b)
	}
	layered := bytes.Clone(plain)
	layered[streamBegin+48] = 1
	seal(layered[streamBegin : streamBegin+headerSize])
	wide, err := zstd.NewWriter(nil, zstd.WithWindowSize(2*streamWindow))
	if err != nil {
		t.Fatal(err)
	}
	var far bytes.Buffer
	wide.Reset(&far)
	wide.Write(plain)
	wide.Write(make([]byte, 3*streamWindow))
	wide.Close()
	for _, test := range []struct {
		name   string
		stream []byte
		want   error
		says   string
	}{
		{"empty", nil, ErrCorrupt, "too early"},
		{"text", []byte("no snapshot at all, but long enough"), ErrFormat, ""},
		{"a file", readAll(t, f.Path()), ErrFormat, ""},
		{"another stream", packed(t, []byte("something else that is compressed")), ErrFormat, ""},
		{"another version", changed(8, 3), ErrVersion, "format 3"},
		{"a version that its header does not have", changed(8, 1), ErrCorrupt, "another version"},
		{"the header's version", changed(streamBegin+8, 3), ErrVersion, "format 3"},
		{"reserved", changed(12, 2), ErrCorrupt, "begin"},
		{"the header changed", changed(streamBegin+90, 2), ErrCorrupt, "header"},
		{"the description changed", changed(streamBegin+headerSize+3, 'X'), ErrCorrupt, "description"},
		{"the table changed", changed(streamBegin+headerSize+int(f.header.meta.length)+9, 77), ErrCorrupt, "table"},
		{"a page changed", changed(len(plain)-1, plain[len(plain)-1]^1), ErrCorrupt, "memory at 0x100000"},
		{"with a base", packed(t, layered), ErrCorrupt, "base"},
		{"something behind it", packed(t, append(bytes.Clone(plain), 0)), ErrCorrupt, "follows"},
		{"a page too few", packed(t, plain[:len(plain)-PageSize]), ErrCorrupt, "too early"},
		{"cut", stream[:len(stream)-1], ErrCorrupt, ""},
		{"cut in half", stream[:len(stream)/2], ErrCorrupt, ""},
		{"a byte changed", append(append(bytes.Clone(stream[:len(stream)/2]), stream[len(stream)/2]^1), stream[len(stream)/2+1:]...), ErrCorrupt, ""},
		{"too large a window", far.Bytes(), ErrCorrupt, "window"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := Import(t.Context(), bytes.NewReader(test.stream), filepath.Join(dir, "import.snap"), ImportLimits{})
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v, want %v with %q", err, test.want, test.says)
			}
		})
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Import(cancelled, bytes.NewReader(stream), filepath.Join(dir, "import.snap"), ImportLimits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if diff := cmp.Diff([]string{"good.snap"}, names(t, dir)); diff != "" {
		t.Errorf("failures left something: %s", diff)
	}
}

// TestImportIsBounded: a stream's announced sizes cost no memory before the bytes arrive.
func TestImportIsBounded(t *testing.T) {
	h := &header{version: Version, memorySize: MaxMemory, diskSize: MaxDisk}
	h.memory.length, h.disk.length = MaxMemory, MaxDisk
	h.memoryTable.length, h.diskTable.length = chunks(MaxMemory)*chunkEntry, chunks(MaxDisk)*chunkEntry
	m := testMeta(MaxMemory)
	m.Disk = &Disk{Size: MaxDisk}
	meta, err := encodeMeta(m)
	if err != nil {
		t.Fatal(err)
	}
	h.meta.length, h.meta.sum = int64(len(meta)), digestOf(meta)
	h.place()
	stream := append([]byte(streamMagic), Version, 0, 0, 0, 0, 0, 0, 0)
	stream = append(append(stream, h.encode()...), meta...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = Import(t.Context(), bytes.NewReader(packed(t, stream)), filepath.Join(t.TempDir(), "x.snap"), ImportLimits{})
	runtime.ReadMemStats(&after)
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("error %v", err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
		t.Errorf("%d bytes for a stream of nothing", used)
	}
}

// A small hostile stream does not fill the disk: a size and the stream's own size bound the file, and a failure leaves none.
func TestImportLimits(t *testing.T) {
	const pages = 96 << 20 / PageSize
	m := make([]byte, pages*PageSize)
	for i := range m {
		m[i] = 0x55 // compresses to nothing
	}
	dir := t.TempDir()
	c := content(m)
	bomb := exported(t, writeFile(t, filepath.Join(dir, "bomb.snap"), c))
	if len(bomb) > len(m)/ImportRatio/4 {
		t.Fatalf("%d bytes are no bomb", len(bomb))
	}
	before := names(t, dir)
	for _, test := range []struct {
		limits ImportLimits
		ok     bool
	}{
		{ImportLimits{}, false}, {ImportLimits{Size: int64(len(m)) - 1}, false}, {ImportLimits{Size: int64(len(m))}, true},
	} {
		path := filepath.Join(dir, "import.snap")
		err := Import(t.Context(), bytes.NewReader(bomb), path, test.limits)
		if (err == nil) != test.ok || err != nil && !errors.Is(err, ErrLimit) {
			t.Errorf("%+v: error %v, want one: %t", test.limits, err, !test.ok)
		}
		_ = os.Remove(path)
		if diff := cmp.Diff(before, names(t, dir)); diff != "" {
			t.Errorf("%+v: left (-want +got)\n%s", test.limits, diff)
		}
	}
}

func TestExportOfDamage(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "x.snap"), content(newMemory(10*PageSize, 1))).Path()
	b := readAll(t, path)
	b[memoryAt+PageSize] ^= 1
	f := openFile(t, saved(t, path, b))
	if err := f.Export(t.Context(), &bytes.Buffer{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("error %v", err)
	}
	if err := f.Export(t.Context(), fullWriter{}); !errors.Is(err, errFull) && !errors.Is(err, ErrCorrupt) {
		t.Errorf("error %v", err)
	}
}

var errFull = errors.New("full")

type fullWriter struct{}

func (fullWriter) Write([]byte) (int, error) { return 0, errFull }

func names(t testing.TB, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// Import makes a snapshot of an exported one at any path.
func Import(ctx context.Context, r io.Reader, path string, limits ImportLimits) error {
	return receive(ctx, r, path, limits, publication{})
}
