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
	"agentvm/internal/host/platform"
)

// provenance is the part of ARCHITECTURE.json that can be checked without a compiler.
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

func readProvenance(t *testing.T, architecture platform.Architecture) provenance {
	t.Helper()
	data, err := os.ReadFile(string(architecture) + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var p provenance
	if err := json.Unmarshal(data, &p); err != nil {
		t.Fatalf("%s.json: %v", architecture, err)
	}
	return p
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func mustImage(t testing.TB, architecture platform.Architecture) []byte {
	t.Helper()
	image, err := Image(architecture)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// A changed fragment or script without a rebuild is the mistake this is for.
func TestImageIsBuiltFromTheseSources(t *testing.T) {
	for architecture, compressed := range map[platform.Architecture][]byte{platform.RISCV64: compressedRISCV64, platform.ARM64: compressedARM64} {
		want := readProvenance(t, architecture)
		got := want
		got.Artifact, got.Licence, got.Release = string(architecture)+".zst", "GPL-2.0-only WITH Linux-syscall-note", Version
		got.Inputs = map[string]string{}
		for _, name := range []string{
			"agentvm.config", string(architecture) + ".config", "build.sh", "boot-cost.patch", "vmfork.patch", "copy.patch", "fuse.patch", "tty.patch",
		} {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got.Inputs[name] = hash(data)
		}
		image := mustImage(t, architecture)
		got.Image.RawSHA256, got.Image.RawBytes = hash(image), len(image)
		got.Image.ZstdSHA256, got.Image.ZstdBytes = hash(compressed), len(compressed)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s.json (-) and the files beside it (+) disagree, run `make kernel`:\n%s", architecture, diff)
		}
	}
}

func TestImageHeader(t *testing.T) {
	for _, test := range []struct {
		architecture platform.Architecture
		magic        string
		textOffset   uint64
		flags        uint64 // of a little-endian kernel; on arm64 with pages of 4 KiB, anywhere in memory
	}{
		{platform.RISCV64, "RSC\x05", 2 << 20, 0},
		{platform.ARM64, "ARM\x64", 0, 1<<1 | 1<<3},
	} {
		image := mustImage(t, test.architecture)
		field := func(offset int) uint64 { return binary.LittleEndian.Uint64(image[offset:]) }
		if got := string(image[0x38:0x3c]); got != test.magic {
			t.Errorf("%s: magic = %q, want %q", test.architecture, got, test.magic)
		}
		if got := field(0x08); got != test.textOffset {
			t.Errorf("%s: text_offset = %#x, want %#x", test.architecture, got, test.textOffset)
		}
		// image_size counts .bss too, which the file does not hold.
		if got := field(0x10); got < uint64(len(image)) || got > 16<<20 {
			t.Errorf("%s: image_size = %d, want from %d to 16 MiB", test.architecture, got, len(image))
		}
		if got := field(0x18); got != test.flags {
			t.Errorf("%s: flags = %#x, want %#x", test.architecture, got, test.flags)
		}
	}
}

// BenchmarkDecompress is what the first VM of a process pays.
func BenchmarkDecompress(b *testing.B) {
	b.SetBytes(int64(len(mustImage(b, platform.RISCV64))))
	for b.Loop() {
		if _, err := embedded.Unpack("kernel image", compressedRISCV64); err != nil {
			b.Fatal(err)
		}
	}
}

func TestDigest(t *testing.T) {
	for architecture := range kernels {
		want := hash(mustImage(t, architecture))
		if d, err := Digest(architecture); err != nil || d != want {
			t.Errorf("Digest(%s) = %s, %v; want %s", architecture, d, err, want)
		}
	}
	if _, err := Digest("m68k"); err == nil {
		t.Error("there is a kernel for m68k")
	}
}
