package machine

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/tetratelabs/wazero"

	"agentvm/internal/host/private"
	"agentvm/internal/machine/wasmbin"
)

// testKey is the key of tests' caches.
var testKey = bytes.Repeat([]byte{0x5A}, private.KeySize)

// codeNames lists the files of compiled code below a cache.
func codeNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// compileWith compiles the machine and another module with a cache, and returns the files that were there afterwards, with their contents.
func compileWith(t *testing.T, dir string, key []byte) map[string]string {
	t.Helper()
	p, err := NewProgram(t.Context(), ProgramConfig{CacheDir: dir, CacheKey: key})
	if err != nil {
		t.Fatal(err)
	}
	another := []byte("\x00asm\x01\x00\x00\x00" + "\x01\x04\x01\x60\x00\x00" + "\x03\x02\x01\x00" + "\x0a\x04\x01\x02\x00\x0b") // with a function that does nothing
	if _, err := p.runtime.CompileModule(t.Context(), another); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for _, name := range codeNames(t, dir) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(b)
	}
	return files
}

// Compiled code is kept, and found again by who has the key.
func TestCodeCache(t *testing.T) {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("wazero has no compiler here")
	}
	dir := t.TempDir()
	first := compileWith(t, dir, testKey)
	if len(first) == 0 {
		t.Fatal("nothing was kept")
	}
	files := &codeFiles{dir: filepath.Join(dir, codeFolder), key: testKey}
	for path, content := range first {
		var name [32]byte
		if err := parseName(&name, filepath.Base(path)); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		r, found, err := files.Get(name)
		if err != nil || !found {
			t.Fatalf("%s is found: %t, %v", path, found, err)
		}
		got, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil || string(got) != content[32:] {
			t.Errorf("%s has other contents than what was compiled (%v)", path, err)
		}
	}
	stamps := stampsOf(t, first)
	compileWith(t, dir, testKey)
	if diff := stampsOf(t, first); !slices.Equal(stamps, diff) {
		t.Error("what was kept was compiled again")
	}
}

// The machine's code is found without its functions.
func TestHollowCode(t *testing.T) {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("wazero has no compiler here")
	}
	dir := t.TempDir()
	whole := compileWith(t, dir, testKey)
	empty, err := wasmbin.Hollow(riscv64Module)
	if err != nil {
		t.Fatal(err)
	}
	config, _, err := runtimeConfig(ProgramConfig{CacheDir: dir, CacheKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	engine := wazero.NewRuntimeWithConfig(t.Context(), config)
	defer engine.Close(t.Context())
	if _, err := engine.CompileModule(t.Context(), empty); err != nil {
		t.Fatal(err)
	}
	if got := codeNames(t, dir); len(got) != len(whole) {
		t.Errorf("there are %d files of code, want %d: the functions were compiled", len(got), len(whole))
	}
}

func stampsOf(t *testing.T, files map[string]string) (stamps []string) {
	t.Helper()
	for name := range files {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		stamps = append(stamps, name+info.ModTime().String())
	}
	slices.Sort(stamps)
	return stamps
}

func parseName(name *[32]byte, text string) error {
	n, err := hex.Decode(name[:], []byte(text))
	if err == nil && n != len(name) {
		err = errors.New("not a sum")
	}
	return err
}

// What a writer without the key puts into the cache is not executed: native code of its own with wazero's own checksum made
// right, another module's file, a file cut short or changed in a bit, and files of another key. Each time the code is compiled again.
func TestForgedCode(t *testing.T) {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("wazero has no compiler here")
	}
	dir := t.TempDir()
	good := compileWith(t, dir, testKey)
	machine := ""
	for name, content := range good {
		if machine == "" || len(content) > len(good[machine]) {
			machine = name
		}
	}
	var other string
	for name := range good {
		if name != machine {
			other = name
		}
	}
	if other == "" {
		t.Fatal("only one module was compiled: the machine and another one were expected")
	}
	whole := good[machine]
	foreign := compileWith(t, t.TempDir(), bytes.Repeat([]byte{1}, private.KeySize))
	for what, content := range map[string]string{
		"foreign native code": whole[:32] + trapEverywhere(t, whole[32:]),
		"as wazero writes it": trapEverywhere(t, whole[32:]),
		"of another name":     good[other],
		"cut short":           whole[:len(whole)-1],
		"longer":              whole + "x",
		"the last bit":        whole[:len(whole)-1] + string(whole[len(whole)-1]^1),
		"the sum":             string(whole[0]^1) + whole[1:],
		"nothing":             "",
		"of another key":      foreign[filepath.Join(filepath.Dir(onlyKey(foreign)), filepath.Base(machine))],
	} {
		t.Run(what, func(t *testing.T) {
			if content == whole {
				t.Fatal("this is no change")
			}
			if err := os.WriteFile(machine, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if again := compileWith(t, dir, testKey); again[machine] != whole {
				t.Error("what was forged is still there: was it executed?")
			}
		})
	}
}

func onlyKey(m map[string]string) string {
	for k := range m {
		return k
	}
	return ""
}

// trapEverywhere replaces the native code in a file of wazero's by another and makes its checksum right, as a guest could that has the
// folder mounted.
func trapEverywhere(t *testing.T, file string) string {
	t.Helper()
	b := []byte(file)
	// After the header the offsets of the functions and the length of the code, then the code and its CRC: found by that.
	table := crc32.MakeTable(crc32.Castagnoli)
	for at := 0; at+8 < len(b); at++ {
		length := int(binary.LittleEndian.Uint32(b[at:]))
		if binary.LittleEndian.Uint32(b[at+4:]) != 0 || length < 1024 || at+8+length+4 > len(b) {
			continue
		}
		code := b[at+8 : at+8+length]
		if sum := b[at+8+length:]; crc32.Checksum(code, table) == binary.LittleEndian.Uint32(sum) {
			for i := range code {
				code[i] = 0xCC // int3 on amd64; no matter elsewhere
			}
			binary.LittleEndian.PutUint32(sum, crc32.Checksum(code, table))
			return string(b)
		}
	}
	t.Fatal("wazero's file has another form than expected")
	return ""
}

// A cache without a key is refused, and so is one in a place of others.
func TestCodeCacheNeedsKey(t *testing.T) {
	for _, key := range [][]byte{nil, testKey[:16]} {
		if _, err := NewProgram(t.Context(), ProgramConfig{CacheDir: t.TempDir(), CacheKey: key}); !errors.Is(err, errCacheKey) {
			t.Errorf("a key of %d bytes: %v", len(key), err)
		}
	}
}
