package supervisor

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/host/platform"
)

var update = flag.Bool("update", false, "write manifest.json and the digests for the artifacts that were just built")

// manifest is manifest.json.
type manifest struct {
	Command   string                             `json:"command"`
	Licence   string                             `json:"licence"`
	Go        string                             `json:"go"` // toolchain that built them; another one gives other bytes
	Artifacts map[platform.Architecture]artifact `json:"artifacts"`
	// Sources are the program's own files with their SHA-256, Modules the versions of everything else in it; some are of one architecture only.
	Sources map[string]string `json:"sources"`
	Modules []string          `json:"modules"`
}

// artifact is one architecture's program, uncompressed.
type artifact struct {
	SHA256 string `json:"sha256"`
	Bytes  int    `json:"bytes"`
}

func TestManifest(t *testing.T) {
	now := manifest{
		Command: "internal/guest/build.sh", Licence: "Apache-2.0", Go: runtime.Version(), Artifacts: map[platform.Architecture]artifact{},
		Sources: map[string]string{}, Modules: []string{},
	}
	for _, architecture := range platform.Supported() {
		b, err := Binary(architecture)
		if err != nil {
			t.Fatal(err)
		}
		now.Artifacts[architecture] = artifact{fmt.Sprintf("%x", sha256.Sum256(b)), len(b)}
		now.addInputs(t, architecture)
	}
	slices.Sort(now.Modules)
	now.Modules = slices.Compact(now.Modules)
	if *update {
		text, err := json.MarshalIndent(now, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		err = os.WriteFile("manifest.json", append(text, '\n'), 0o644)
		for architecture, a := range now.Artifacts {
			err = errors.Join(err, os.WriteFile(string(architecture)+".sha256", []byte(a.SHA256+"\n"), 0o644))
		}
		if err != nil {
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
		t.Errorf("the supervisor's sources and the committed artifacts differ; run internal/guest/build.sh (-committed +now):\n%s", diff)
	}
}

// addInputs asks the go command what the program is made of.
func (m *manifest) addInputs(t *testing.T, architecture platform.Architecture) {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Standard,Module,GoFiles,SFiles,EmbedFiles", "./cmd/agentvm-guest")
	cmd.Dir = filepath.Join("..", "..", "..")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+string(architecture), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
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
				m.Sources[p.ImportPath+"/"+name] = fmt.Sprintf("%x", sha256.Sum256(b))
			}
		default:
			m.Modules = append(m.Modules, p.Module.Path+" "+p.Module.Version)
		}
	}
}

func TestBinary(t *testing.T) {
	machines := map[platform.Architecture]elf.Machine{platform.RISCV64: elf.EM_RISCV, platform.ARM64: elf.EM_AARCH64}
	for _, architecture := range platform.Supported() {
		t.Run(string(architecture), func(t *testing.T) {
			b, err := Binary(architecture)
			if err != nil {
				t.Fatal(err)
			}
			f, err := elf.NewFile(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			if f.Machine != machines[architecture] || f.Type != elf.ET_EXEC {
				t.Errorf("the supervisor is %v %v", f.Machine, f.Type)
			}
			if libraries, err := f.ImportedLibraries(); err == nil && len(libraries) > 0 {
				t.Errorf("the supervisor needs libraries %v", libraries)
			}
			if d, want := Digest(architecture), fmt.Sprintf("%x", sha256.Sum256(b)); d != want {
				t.Errorf("Digest = %q, want %q", d, want)
			}
		})
	}
}

func TestNoSuchArchitecture(t *testing.T) {
	if b, err := Binary("mips"); err == nil || !strings.Contains(err.Error(), "linux/arm64") || Digest("mips") != "" {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func ExampleBinary() {
	b, err := Binary(platform.RISCV64)
	fmt.Println(string(b[1:4]), err)
	// Output: ELF <nil>
}
