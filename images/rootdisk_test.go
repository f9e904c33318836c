package images

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// compress returns p as w writes it.
func compress(t testing.TB, p []byte, open func(io.Writer) io.WriteCloser) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := open(&buf)
	if _, err := w.Write(p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func toGzip(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }

func toZstd(w io.Writer) io.WriteCloser {
	z, err := zstd.NewWriter(w)
	if err != nil {
		panic(err)
	}
	return z
}

// nowhere takes a disk and forgets it.
type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

func tryBuild(archive []byte, limits Limits) error {
	_, err := buildRootDisk(context.Background(), nowhere{}, limits, archiveOf(bytes.NewReader(archive)))
	return err
}

func TestHostileEntries(t *testing.T) {
	special := func(e entry, change func(*tar.Header)) []entry {
		change(&e.Header)
		return []entry{e}
	}
	tests := []struct {
		name    string
		entries []entry
		want    []string // parts of the error
	}{
		{"parent in a name", []entry{file("../etc/passwd", nil)}, []string{`entry "../etc/passwd"`, `contains ".."`}},
		{"parent inside a name", []entry{file("a/../../b", nil)}, []string{`entry "a/../../b"`, `contains ".."`}},
		{"parent in a hard link", []entry{hardlink("a", "../../etc/shadow")}, []string{`entry "a"`, `contains ".."`}},
		{"hard link to nothing", []entry{hardlink("a", "/etc/shadow")}, []string{`entry "a"`, "has not brought"}},
		{"hard link to a directory", []entry{dir("d"), hardlink("a", "d")}, []string{`entry "a"`, "directory"}},
		{"hard link to the root", []entry{hardlink("a", "/")}, []string{`entry "a"`, "directory"}},
		{"hard link through a symlink", []entry{symlink("l", "/"), file("f", nil), hardlink("a", "l/f")}, []string{`entry "a"`, "has not brought"}},
		{"below a symlink", []entry{symlink("etc", "/etc"), file("etc/passwd", nil)}, []string{`entry "etc/passwd"`, "symbolic link"}},
		{"below a file", []entry{file("f", nil), file("f/g", nil)}, []string{`entry "f/g"`, "not a directory"}},
		{"root as a file", []entry{file("./.", nil)}, []string{"must be a directory"}},
		{"long component", []entry{file(strings.Repeat("n", 256), nil)}, []string{"longer than 255"}},
		{"long name", []entry{file(strings.Repeat("n/", 2050)+"n", nil)}, []string{"longer than the limit of 4096"}},
		{"long hard link", []entry{hardlink("a", "t"+strings.Repeat("/"+strings.Repeat("t", 200), 20))}, []string{`entry "a"`, "has not brought"}},
		{"long name below a file", []entry{file("f", nil), file("f"+strings.Repeat("/"+strings.Repeat("n", 200), 20), nil)}, []string{`entry "f/nnn`, "not a directory"}},
		{"long target", []entry{symlink("l", strings.Repeat("t", 4096))}, []string{`entry "l"`, "4095"}},
		{"no target", []entry{symlink("l", "")}, []string{`entry "l"`, "without a target"}},
		{"device out of range", special(file("d", nil), func(h *tar.Header) { h.Typeflag, h.Devmajor = tar.TypeChar, 4096 }), []string{`entry "d"`, "4096:0"}},
		{"negative owner", special(file("f", nil), func(h *tar.Header) { h.Uid = -1 }), []string{`entry "f"`, "-1:0"}},
		{"unknown type", special(file("f", nil), func(h *tar.Header) { h.Typeflag = 'Z' }), []string{`entry "f"`, "unsupported"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := tryBuild(makeTar(t, test.entries), Limits{})
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want one with %q", err, want)
				}
			}
			if err != nil && len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

func TestDamagedArchives(t *testing.T) {
	whole := makeTar(t, []entry{dir("d"), file("d/file", noise(5000)), file("d/last", noise(100))})
	gz, zs := compress(t, whole, toGzip), compress(t, whole, toZstd)
	flip := func(p []byte, at int) []byte {
		p = bytes.Clone(p)
		p[at] ^= 0xFF
		return p
	}
	tests := []struct {
		name    string
		archive []byte
		want    string
	}{
		{"empty", nil, "empty"},
		{"text", bytes.Repeat([]byte("no archive "), 200), "not a tar archive"},
		{"short text", []byte("x"), "unexpected EOF"},
		{"nothing inside", makeTar(t, nil), "no entries"},
		{"cut in a file", whole[:4000], `entry "d/file"`},
		{"cut in a header", whole[:8192+100], `after entry "d/file"`},
		{"cut between entries", whole[:8192], "no end marker"},
		{"cut before the end marker", whole[:len(whole)-1024], "no end marker"},
		{"cut gzip", gz[:len(gz)/2], "unexpected EOF"},
		{"gzip without its checksum", gz[:len(gz)-4], "unexpected EOF"},
		{"gzip with a wrong checksum", flip(gz, len(gz)-6), "checksum"},
		{"gzip header only", gz[:5], "damaged gzip"},
		{"cut zstd", zs[:len(zs)/2], "unexpected EOF"},
		{"damaged zstd", flip(zs, len(zs)-2), "archive"},
		{"garbage after gzip", append(bytes.Clone(gz), "garbage"...), "archive"},
		{"xz", []byte("\xFD7zXZ\x00\x00\x04"), "xz"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := tryBuild(test.archive, Limits{})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
	for name, archive := range map[string][]byte{"plain": whole, "gzip": gz, "zstd": zs} {
		if err := tryBuild(archive, Limits{}); err != nil {
			t.Errorf("undamaged %s: %v", name, err)
		}
	}
}

func TestLimits(t *testing.T) {
	bomb := makeTar(t, []entry{file("zeros", make([]byte, 4<<20))})
	many := makeTar(t, []entry{file("a", nil), file("a", nil), file("a", nil)})
	replaced := makeTar(t, []entry{file("a", make([]byte, 6000)), file("a", make([]byte, 6000))})
	deep := makeTar(t, []entry{file("a/b/c/d", nil)})
	named := makeTar(t, []entry{file("a", nil), file("b", nil)})
	tests := []struct {
		name    string
		archive []byte
		limits  Limits
		want    string
	}{
		{"implied directories", deep, Limits{Entries: 3}, "more than 3 entries"},
		{"depth", deep, Limits{Depth: 3}, "more than 3 directories"},
		{"metadata", named, Limits{Metadata: nodeMemory + 10}, "take more than 360 bytes"},
		{"bytes", compress(t, bomb, toGzip), Limits{Bytes: 1 << 20}, `entry "zeros"`},
		{"entries", many, Limits{Entries: 2}, "more than 2 entries"},
		{"bytes of replaced entries", replaced, Limits{Bytes: 10000}, "more than 10000 bytes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := tryBuild(test.archive, test.limits)
			if !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

// A few kilobytes of archive do not take gigabytes of memory: directories that names imply, long links and attributes are counted, and
// an archive of some size only has so many. Nothing of it is left in the store.
func TestMetadataBombs(t *testing.T) {
	deep := func(i, depth int) string { return fmt.Sprintf("%06d/", i) + strings.Repeat("a/", depth) + "f" }
	for _, bomb := range []struct {
		name  string
		n     int
		entry func(i int) entry
	}{
		{"deep names", 600, func(i int) entry { return file(deep(i, 2000), nil) }},
		{"names as deep as may be", 5000, func(i int) entry { return file(deep(i, 250), nil) }},
		{"long links", 28_000, func(i int) entry {
			return entry{Header: tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("x", 4000)}}
		}},
		{"attributes", 35_000, func(i int) entry {
			return entry{Header: tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeReg, PAXRecords: map[string]string{paxXattr + "user.a": strings.Repeat("x", 3000)}}}
		}},
	} {
		t.Run(bomb.name, func(t *testing.T) {
			var entries []entry
			for i := range bomb.n {
				entries = append(entries, bomb.entry(i))
			}
			archive := compress(t, makeTar(t, entries), toZstd)
			entries = nil
			s := openStore(t, "http://127.0.0.1:1")
			before := files(t, s)
			var stats, after runtime.MemStats
			runtime.ReadMemStats(&stats)
			_, err := s.Import(t.Context(), "bomb", bytes.NewReader(archive))
			runtime.ReadMemStats(&after)
			if !errors.Is(err, ErrLimit) {
				t.Errorf("%d bytes of archive: error %v", len(archive), err)
			}
			if used := after.TotalAlloc - stats.TotalAlloc; used > 1<<30 { // in all, of which a part is in use at a time; the race detector adds to it
				t.Errorf("%d MiB of memory for %d bytes of archive", used>>20, len(archive))
			}
			if diff := cmp.Diff(before, files(t, s)); diff != "" {
				t.Errorf("left (-want +got)\n%s", diff)
			}
		})
	}
}

// TestRatioLimit feeds more zeros than compression explains. The stream never ends by itself.
func TestRatioLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("decompresses 2 GiB")
	}
	in, out := io.Pipe()
	go func() {
		z := toZstd(out)
		_, err := io.Copy(z, io.MultiReader(bytes.NewReader(makeTar(t, []entry{file("f", nil)})), zeroReader{}))
		out.CloseWithError(err)
	}()
	defer in.Close()
	_, err := buildRootDisk(t.Context(), nowhere{}, Limits{Ratio: 100}, archiveOf(in))
	if !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "100 times") {
		t.Errorf("error %v", err)
	}
}

func TestBuildStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := buildRootDisk(ctx, nowhere{}, Limits{}, archiveOf(bytes.NewReader(makeTar(t, everything()))))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestArchitecture(t *testing.T) {
	tests := []struct {
		name    string
		entries []entry
		want    string // part of the error, or the architecture
	}{
		{"riscv64", []entry{file("bin/sh", program(243, 2))}, "riscv64"},
		{"riscv64 through symlinks", []entry{symlink("bin", "usr/bin"), symlink("usr/bin/sh", "/bin/busybox"), file("usr/bin/busybox", program(243, 2))}, "riscv64"},
		{"arm64", []entry{file("bin/sh", program(183, 2))}, "arm64"},
		{"x86_64", []entry{file("bin/sh", program(62, 2))}, "x86_64 (its /bin/sh is), but agentvm runs linux/riscv64 or linux/arm64"},
		{"arm64 of 32 bits", []entry{file("bin/sh", program(183, 1))}, "aarch64_be or ilp32"},
		{"arm64 of the other byte order", []entry{file("bin/sh", append([]byte{0x7F, 'E', 'L', 'F', 2, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 183}, noise(100)...))}, "aarch64_be or ilp32"},
		{"riscv32", []entry{file("bin/sh", program(243, 1))}, "riscv32"},
		{"unknown machine", []entry{file("bin/busybox", program(99, 2))}, "ELF machine 99"},
		{"symlink loop", []entry{symlink("bin/sh", "sh")}, ""},
		{"no programs", []entry{file("readme", nil)}, ""},
		{"scripts", []entry{file("bin/sh", []byte("#!/bin/true\n"))}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			facts, err := buildRootDisk(t.Context(), nowhere{}, Limits{}, archiveOf(bytes.NewReader(makeTar(t, test.entries))))
			var wrong *ArchitectureError
			got := string(facts.Architecture)
			if errors.As(err, &wrong) {
				got = err.Error()
			}
			if !strings.Contains(got, test.want) || (test.want == "") != (got == "") {
				t.Errorf("got %q, %v; want %q", got, err, test.want)
			}
		})
	}
}

// program begins like a program for an ELF machine below 256, of class 1 (32 bits) or 2 (64 bits).
func program(machine, class byte) []byte {
	return append([]byte{0x7F, 'E', 'L', 'F', class, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, machine, 0}, noise(100)...)
}

// FuzzRootDisk checks that no archive makes the builder panic, and that every disk it builds can be read.
func FuzzRootDisk(f *testing.F) {
	small := makeTar(f, append(specials(), file("d/f", noise(5000)), hardlink("l", "d/f"), symlink("s", "/d")))
	f.Add(small)
	f.Add(compress(f, small, toGzip))
	f.Add(compress(f, small, toZstd))
	f.Add(makeTar(f, []entry{file("d/a", nil), hardlink("b", "d/a"), file("d", nil)}))
	limits := Limits{Bytes: 1 << 20, Entries: 100}.withDefaults()
	f.Fuzz(func(t *testing.T, archive []byte) {
		var own, plain bytes.Buffer
		facts, err := buildRootDisk(t.Context(), &own, limits, archiveTo(bytes.NewReader(archive), &plain))
		if err != nil {
			return
		}
		file := filepath.Join(t.TempDir(), "root.erofs")
		assemble(t, file, facts, own.Bytes(), plain.Bytes())
		readDisk(t, file)
	})
}

// archiveOf is a whole root.
func archiveOf(r io.Reader) archive { return archive{Reader: r} }

// archiveTo is a whole root, of which plain receives the plain archive.
func archiveTo(r io.Reader, plain io.Writer) archive { return archive{Reader: r, plain: plain} }
