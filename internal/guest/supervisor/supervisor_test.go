package supervisor

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write manifest.json and the digest for the artifact that was just built")

// manifest is manifest.json.
type manifest struct {
	Artifact string `json:"artifact"`
	Command  string `json:"command"`
	Licence  string `json:"licence"`
	Go       string `json:"go"`     // toolchain that built it; another one gives other bytes
	SHA256   string `json:"sha256"` // of the uncompressed program
	Bytes    int    `json:"bytes"`
	// Sources are the program's own files with their SHA-256, Modules the versions of everything else in it.
	Sources map[string]string `json:"sources"`
	Modules []string          `json:"modules"`
}

func TestManifest(t *testing.T) {
	b, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	now := manifest{
		Artifact: "agentvm-guest.zst", Command: "internal/guest/build.sh", Licence: "Apache-2.0", Go: runtime.Version(),
		SHA256: hex.EncodeToString(sum[:]), Bytes: len(b),
	}
	now.Sources, now.Modules = inputs(t)
	if *update {
		text, err := json.MarshalIndent(now, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile("manifest.json", append(text, '\n'), 0o644), os.WriteFile("agentvm-guest.sha256", []byte(now.SHA256+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile("manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	var committed manifest
	if err := json.Unmarshal(text, &committed); err != nil {
		t.Fatal(err)
	}
	now.Go = committed.Go // whoever runs the test may have another one
	if diff := cmp.Diff(committed, now); diff != "" {
		t.Errorf("the supervisor's sources and the committed artifact differ; run internal/guest/build.sh (-committed +now):\n%s", diff)
	}
}

// inputs asks the go command what the program is made of.
func inputs(t *testing.T) (map[string]string, []string) {
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Standard,Module,GoFiles,SFiles,EmbedFiles", "./cmd/agentvm-guest")
	cmd.Dir = filepath.Join("..", "..", "..")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=riscv64", "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	sources, modules := map[string]string{}, []string{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath, Dir             string
			Standard                    bool
			GoFiles, SFiles, EmbedFiles []string
			Module                      *struct {
				Path, Version string
				Main          bool
			}
		}
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		switch {
		case p.Standard:
		case p.Module.Main:
			for _, name := range slices.Concat(p.GoFiles, p.SFiles, p.EmbedFiles) {
				b, err := os.ReadFile(filepath.Join(p.Dir, name))
				if err != nil {
					t.Fatal(err)
				}
				sources[p.ImportPath+"/"+name] = fmt.Sprintf("%x", sha256.Sum256(b))
			}
		default:
			modules = append(modules, p.Module.Path+" "+p.Module.Version)
		}
	}
	slices.Sort(modules)
	return sources, slices.Compact(modules)
}

func TestBinary(t *testing.T) {
	b, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if f.Machine != elf.EM_RISCV || f.Type != elf.ET_EXEC {
		t.Errorf("the supervisor is %v %v", f.Machine, f.Type)
	}
	if libraries, err := f.ImportedLibraries(); err == nil && len(libraries) > 0 {
		t.Errorf("the supervisor needs libraries %v", libraries)
	}
}

func TestDigest(t *testing.T) {
	program, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(program)
	if d := Digest(); d != hex.EncodeToString(sum[:]) {
		t.Errorf("Digest = %q, want %x", d, sum)
	}
}

func ExampleBinary() {
	b, err := Binary()
	fmt.Println(string(b[1:4]), err)
	// Output: ELF <nil>
}
