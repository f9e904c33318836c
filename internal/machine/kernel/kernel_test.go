package kernel

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/host/embedded"
)

// provenance is the part of provenance.json that can be checked without a compiler.
type provenance struct {
	Artifact string            `json:"artifact"`
	Licence  string            `json:"licence"`
	Release  string            `json:"release"`
	Inputs   map[string]string `json:"inputs"`
	Image    struct {
		RawSHA256  string `json:"raw_sha256"`
		RawBytes   int    `json:"raw_bytes"`
		ZstdSHA256 string `json:"zstd_sha256"`
		ZstdBytes  int    `json:"zstd_bytes"`
	} `json:"image"`
}

func readProvenance(t *testing.T) provenance {
	t.Helper()
	data, err := os.ReadFile("provenance.json")
	if err != nil {
		t.Fatal(err)
	}
	var p provenance
	if err := json.Unmarshal(data, &p); err != nil {
		t.Fatalf("provenance.json: %v", err)
	}
	return p
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func mustImage(t testing.TB) []byte {
	t.Helper()
	image, err := Image()
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// A changed fragment or script without a rebuild is the mistake this is for.
func TestImageIsBuiltFromTheseSources(t *testing.T) {
	want := readProvenance(t)
	got := want
	got.Artifact, got.Licence, got.Release = "Image.zst", "GPL-2.0-only WITH Linux-syscall-note", Version
	got.Inputs = map[string]string{}
	for _, name := range []string{"agentvm.config", "build.sh", "boot-cost.patch", "vmfork.patch", "copy.patch", "fuse.patch", "tty.patch"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		got.Inputs[name] = hash(data)
	}
	image := mustImage(t)
	got.Image.RawSHA256, got.Image.RawBytes = hash(image), len(image)
	got.Image.ZstdSHA256, got.Image.ZstdBytes = hash(compressed), len(compressed)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("provenance.json (-) and the files beside it (+) disagree, run `make kernel`:\n%s", diff)
	}
}

func TestImageHeader(t *testing.T) {
	image := mustImage(t)
	field := func(offset int) uint64 { return binary.LittleEndian.Uint64(image[offset:]) }
	if got := string(image[0x30:0x38]); got != "RISCV\x00\x00\x00" {
		t.Errorf("magic = %q, want RISCV", got)
	}
	if got := string(image[0x38:0x3c]); got != "RSC\x05" {
		t.Errorf("magic2 = %q, want RSC\\x05", got)
	}
	if got := binary.LittleEndian.Uint32(image[0x20:]); got != 2 {
		t.Errorf("header version = %#x, want 0.2", got)
	}
	if got := field(0x08); got != 2<<20 {
		t.Errorf("text_offset = %#x, want 2 MiB", got)
	}
	// image_size counts .bss too, which the file does not hold.
	if got := field(0x10); got < uint64(len(image)) || got > 16<<20 {
		t.Errorf("image_size = %d, want from %d to 16 MiB", got, len(image))
	}
	if got := field(0x18); got != 0 {
		t.Errorf("flags = %#x, want 0 (little endian)", got)
	}
}

// BenchmarkDecompress is what the first VM of a process pays.
func BenchmarkDecompress(b *testing.B) {
	b.SetBytes(int64(len(mustImage(b))))
	for b.Loop() {
		if _, err := embedded.Unpack("kernel image", compressed); err != nil {
			b.Fatal(err)
		}
	}
}

func TestDigest(t *testing.T) {
	image, err := Image()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(image)
	if d, err := Digest(); err != nil || d != hex.EncodeToString(sum[:]) {
		t.Errorf("Digest = %s, %v; want %x", d, err, sum)
	}
}
