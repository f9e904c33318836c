package images

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"agentvm/images/imagestest"
	"agentvm/internal/host/platform"
)

// provenance is what images/busybox/build.sh says about its result.
type provenance struct {
	Sources  string `json:"sources_sha256"`
	Archives []struct {
		Architecture platform.Architecture `json:"architecture"`
		SHA256       string                `json:"archive_sha256"`
	} `json:"archives"`
}

// TestBuiltinIsUpToDate fails when a source of the built-in roots changed and an archive did not.
func TestBuiltinIsUpToDate(t *testing.T) {
	text, err := os.ReadFile("busybox/provenance.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded provenance
	if err := json.Unmarshal(text, &recorded); err != nil {
		t.Fatal(err)
	}
	if len(recorded.Archives) != len(builtinRoots) {
		t.Errorf("%d archives are recorded, the program has %d", len(recorded.Archives), len(builtinRoots))
	}
	for _, archive := range recorded.Archives {
		if got := hashOf(builtinRoots[archive.Architecture]); got != archive.SHA256 {
			t.Errorf("the archive for %s has sha256 %s, recorded is %s: run images/busybox/build.sh", archive.Architecture, got, archive.SHA256)
		}
		if got := builtinDigests[archive.Architecture]; got != "sha256:"+archive.SHA256 {
			t.Errorf("the program takes %s for the digest of the archive for %s, which is %s: mend builtinDigests", got, archive.Architecture, archive.SHA256)
		}
	}
	if got := sourcesHash(t); got != recorded.Sources {
		t.Errorf("the sources have sha256 %s, recorded is %s: run images/busybox/build.sh", got, recorded.Sources)
	}
}

// sourcesHash is the hash of what sha256sum prints about the sources, as build.sh computes it.
func sourcesHash(t testing.TB) string {
	t.Helper()
	names := []string{"applets", "build.sh"}
	for _, pattern := range []string{"busybox/root/etc/*", "busybox/root/usr/bin/*"} {
		below, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range below {
			names = append(names, filepath.ToSlash(strings.TrimPrefix(name, "busybox"+string(filepath.Separator))))
		}
	}
	list := sha256.New()
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join("busybox", name))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(list, "%s  %s\n", hashOf(text), name)
	}
	return fmt.Sprintf("%x", list.Sum(nil))
}

func TestBuiltin(t *testing.T) {
	s := openStore(t, "http://127.0.0.1:1")
	image, err := s.Resolve(t.Context(), BuiltinName)
	if err != nil {
		t.Fatal(err)
	}
	if image.Architecture != platform.RISCV64 || image.Ref != "builtin" {
		t.Errorf("image %+v", image)
	}
	tree := readDisk(t, rawDisk(t, s, image))
	for path, want := range map[string]uint16{
		"bin/busybox": typeRegular | 0o755, "bin/sh": typeSymlink | 0o777, "etc/passwd": typeRegular | 0o644, "root": typeDir | 0o700,
		"proc": typeDir | 0o755, "usr/share/doc/busybox/copyright": typeRegular | 0o644,
	} {
		if x := tree[path]; x == nil || x.Mode != want || x.UID != 0 || x.GID != 0 {
			t.Errorf("%s: %+v, want mode %o", path, x, want)
		}
	}
	fsck(t, rawDisk(t, s, image))
}

// TestBuiltinOfAnotherVersion replaces the root that an older program has stored: another tree, and the same with another compression.
func TestBuiltinOfAnotherVersion(t *testing.T) {
	for name, older := range map[string][]byte{"tree": makeTar(t, []entry{file("older", nil)}), "gzip": compress(t, unpacked(t, builtinRoots[platform.RISCV64]), toGzip)} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, "http://127.0.0.1:1")
			stored, err := s.addArchive(t.Context(), Image{Name: BuiltinName, Ref: "builtin"}, bytes.NewReader(older), nil)
			if err != nil {
				t.Fatal(err)
			}
			image, err := s.Resolve(t.Context(), BuiltinName)
			if err != nil {
				t.Fatal(err)
			}
			if image.SourceDigest == stored.SourceDigest || stale(image) || readDisk(t, rawDisk(t, s, image))["bin/busybox"] == nil {
				t.Errorf("resolved %+v", image)
			}
		})
	}
}

// unpacked is the tar archive in one that is compressed.
func unpacked(t testing.TB, archive []byte) []byte {
	t.Helper()
	stream, err := openArchive(bytes.NewReader(archive), Limits{Bytes: 1 << 30, Ratio: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	plain, err := io.ReadAll(stream)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

// TestBuiltinRegistersNoFrames holds images/busybox/build.sh to what it changes: the tables of stack frames that busybox would
// register end before the first that belongs to its code.
func TestBuiltinRegistersNoFrames(t *testing.T) {
	for architecture, machine := range map[platform.Architecture]elf.Machine{platform.RISCV64: elf.EM_RISCV, platform.ARM64: elf.EM_AARCH64} {
		program, err := elf.NewFile(bytes.NewReader(imagestest.Busybox(t, architecture)))
		if err != nil {
			t.Fatal(err)
		}
		if program.Machine != machine {
			t.Errorf("busybox for %s is for %v", architecture, program.Machine)
		}
		frames := program.Section(".eh_frame")
		if frames == nil {
			t.Fatalf("busybox for %s has no section .eh_frame: build.sh need not change it any more", architecture)
		}
		table, err := frames.Data()
		if err != nil {
			t.Fatal(err)
		}
		const ofTheStartCode = 3
		records := 0
		for len(table) >= 4 {
			size := uint64(binary.LittleEndian.Uint32(table)) + 4
			if size == 4 || size > uint64(len(table)) {
				break
			}
			table = table[size:]
			records++
		}
		if records > ofTheStartCode {
			t.Errorf("busybox for %s: %d records of stack frames, want at most %d", architecture, records, ofTheStartCode)
		}
	}
}

// TestNohup: BusyBox has no nohup, so that a command behind it did nothing, and what starts it with & did not learn that.
func TestNohup(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("wants a shell")
	}
	for script, want := range map[string]string{
		`"$0" sh -c 'kill -HUP $$; echo "$1 $2"' sh "a b" c`: "a b c 0", `"$0" no-such-program 2>/dev/null`: "127", `"$0" 2>/dev/null`: "127", `"$0" false`: "1",
	} {
		out, err := exec.Command("sh", "-c", script+"; echo $?", "./busybox/root/usr/bin/nohup").Output()
		if got := strings.Join(strings.Fields(string(out)), " "); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", script, got, err, want)
		}
	}
}
