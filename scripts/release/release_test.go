package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"

	"agentvm/images/imagestest"
)

// maxBinary bounds a program, in bytes. The aim is 40 MB: docs/internals/release.md says what weighs.
const maxBinary = 50_100_000

// TestRelease makes a release twice, from two directories and under conditions that must not matter, and looks at what is in it. AGENTVM_TEST_RELEASE
// has the platforms, or "all" (make release-test). The container has the built-in image where there is no Alpine.
func TestRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the program, twice")
	}
	if runtime.GOOS != "linux" {
		t.Skip("a release is made on Linux")
	}
	platforms, image := os.Getenv("AGENTVM_TEST_RELEASE"), imagestest.Alpine
	switch platforms {
	case "":
		t.Skip("it takes minutes: make release-test")
	case "all":
		platforms = allPlatforms
	}
	mirror, ok := imagestest.Mirror(t)
	if !ok {
		image = "busybox"
	}
	work := t.TempDir()
	script := filepath.Join(work, "release")
	run(t, "../..", nil, "go", "build", "-o", script, "./scripts/release")
	copied := copySources(t, filepath.Join(work, "sources"))
	caches := strings.Fields(run(t, "", nil, "go", "env", "GOCACHE", "GOMODCACHE"))
	first, second := filepath.Join(work, "first"), filepath.Join(work, "second")
	for _, c := range []struct {
		sources, to, umask string
		env                []string
	}{
		{"../..", first, "022", nil},
		// GOFLAGS would make another program of it.
		{copied, second, "077", []string{"GOFLAGS=-tags=manual", "CGO_ENABLED=1", "GOAMD64=v3", "LC_ALL=tr_TR.UTF-8", "TZ=Pacific/Auckland", "TMPDIR=" + t.TempDir(), "HOME=" + t.TempDir(), "GOCACHE=" + caches[0], "GOMODCACHE=" + caches[1]}},
	} {
		env := append([]string{"SOURCE_DATE_EPOCH=1700000000", "AGENTVM_ALPINE_MIRROR=" + mirror}, c.env...)
		run(t, c.sources, env, "sh", "-c", "umask "+c.umask+` && exec "$@"`, "sh", script, "-version", "v9.8.7-test", "-platforms", platforms, "-image", image, "-o", c.to)
	}
	t.Run("again", func(t *testing.T) {
		if diff := cmp.Diff(sums(t, first), sums(t, second)); diff != "" {
			t.Errorf("the same sources gave other bytes (-first +second):\n%s", diff)
		}
	})
	t.Run("sums", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join(first, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		want := sums(t, first)
		delete(want, "SHA256SUMS")
		got := map[string]string{}
		for line := range strings.Lines(string(text)) {
			sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
			got[name] = sum
		}
		if diff := cmp.Diff(want, got); diff != "" || len(got) < 3 {
			t.Errorf("SHA256SUMS (-files +listed):\n%s", diff)
		}
	})
	for platform := range strings.SplitSeq(platforms, ",") {
		t.Run(platform, func(t *testing.T) { checkPlatform(t, first, platform) })
	}
	t.Run("container", func(t *testing.T) { checkContainer(t, first, image, platforms) })
}

// checkPlatform looks at the archive and the SBOM of a platform.
func checkPlatform(t *testing.T, dir, platform string) {
	goos, goarch, _ := strings.Cut(platform, "/")
	stem := "agentvm_9.8.7-test_" + goos + "_" + goarch
	suffix, name := ".tar.gz", "agentvm"
	if goos == "windows" {
		suffix, name = ".zip", "agentvm.exe"
	}
	files := readArchive(t, filepath.Join(dir, stem+suffix), stem+"/")
	binary := files[name]
	info, err := buildinfo.Read(bytes.NewReader(binary.content))
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if binary.mode != 0o755 || settings["GOOS"] != goos || settings["GOARCH"] != goarch || settings["CGO_ENABLED"] != "0" || settings["-tags"] != "" || settings["vcs"] != "" {
		t.Errorf("the program has mode %v and was built with %v", binary.mode, settings)
	}
	if !bytes.Contains(binary.content, []byte("9.8.7-test")) {
		t.Error("the program does not have its version")
	}
	if size := len(binary.content); os.Getenv("AGENTVM_TEST_RELEASE") != "" && size > maxBinary {
		t.Errorf("the program has %d bytes, more than %d", size, maxBinary)
	}
	for _, want := range []string{
		"LICENSE", "NOTICE", "internal/machine/kernel/COPYING", "images/busybox/COPYING", "images/busybox/COPYING.LGPL", "licences/std/LICENSE",
		"man1/agentvm.1", "man1/agentvm-exec.1", "man1/agentvm-image-pull.1",
		"completions/agentvm.bash", "completions/_agentvm", "completions/agentvm.fish", "completions/agentvm.ps1",
	} {
		if len(files[want].content) == 0 {
			t.Errorf("the archive has no %s", want)
		}
	}
	var linked []string
	for _, m := range info.Deps {
		linked = append(linked, m.Path+" "+m.Version)
		if !bytes.Contains(files["NOTICE"].content, []byte("  "+m.Path+" ")) && !bytes.Contains(files["NOTICE"].content, []byte("  "+m.Path+"\n")) {
			t.Errorf("NOTICE does not name %s", m.Path)
		}
		if len(slices.Collect(keysBelow(files, "licences/"+m.Path+"/"))) == 0 {
			t.Errorf("the archive has no licence of %s", m.Path)
		}
	}
	if len(linked) < 10 {
		t.Errorf("the program has %d modules", len(linked))
	}
	for file := range keysBelow(files, "licences/") {
		below := strings.TrimPrefix(file, "licences/")
		known := strings.HasPrefix(below, "std/")
		for _, m := range linked {
			path, _, _ := strings.Cut(m, " ")
			known = known || strings.HasPrefix(below, path+"/")
		}
		if !known {
			t.Errorf("%s belongs to no module of the program", file)
		}
	}
	checkSBOM(t, filepath.Join(dir, stem+".cdx.json"), binary.content, linked, strings.TrimPrefix(info.GoVersion, "go"))
	if platform == runtime.GOOS+"/"+runtime.GOARCH {
		checkManual(t, files)
	}
}

// keysBelow are the names that begin with prefix.
func keysBelow(files map[string]entry, prefix string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for name := range files {
			if strings.HasPrefix(name, prefix) && !yield(name) {
				return
			}
		}
	}
}

func checkSBOM(t *testing.T, file string, binary []byte, linked []string, goVersion string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(binary)
	if hashes := *bom.Metadata.Component.Hashes; hashes[0].Value != hex.EncodeToString(sum[:]) {
		t.Errorf("%s is of another program: %v", file, hashes)
	}
	var listed, others []string
	for _, c := range *bom.Components {
		if strings.HasPrefix(c.PackageURL, "pkg:golang/") && c.Name != "std" {
			listed = append(listed, c.Name+" "+c.Version)
		} else {
			others = append(others, c.Name)
		}
	}
	if diff := cmp.Diff(linked, listed); diff != "" {
		t.Errorf("modules (-of the program +of its SBOM):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"std", "linux-source-6.12", "busybox-static", "busybox-static", "glibc", "agentvm-guest"}, others); diff != "" {
		t.Errorf("what else is in the program (-want +got):\n%s", diff)
	}
	for _, c := range *bom.Components {
		if c.Name == "std" && c.Version != goVersion {
			t.Errorf("the SBOM says Go %s, the program %s", c.Version, goVersion)
		}
	}
}

// checkManual compares man pages and completions with what the program itself says.
func checkManual(t *testing.T, files map[string]entry) {
	program := filepath.Join(t.TempDir(), "agentvm")
	if err := os.WriteFile(program, files["agentvm"].content, 0o755); err != nil {
		t.Fatal(err)
	}
	output := func(args ...string) string {
		c := exec.Command(program, args...)
		c.Env = append(os.Environ(), "AGENTVM_STORE="+t.TempDir())
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		return string(out)
	}
	if !strings.HasPrefix(output("version"), "agentvm 9.8.7-test\n") {
		t.Errorf("agentvm version says %q", output("version"))
	}
	for shell, file := range map[string]string{"bash": "agentvm.bash", "zsh": "_agentvm", "fish": "agentvm.fish", "powershell": "agentvm.ps1"} {
		if string(files["completions/"+file].content) != output("completion", shell) {
			t.Errorf("completions/%s is not what agentvm completion %s prints", file, shell)
		}
	}
	commandLine, flagLine := regexp.MustCompile(`^  ([a-z0-9-]+) +\S`), regexp.MustCompile(`^ {2,6}(?:-\w, )?--([a-z0-9-]+)`)
	pages := map[string]bool{}
	var walk func(command []string)
	walk = func(command []string) {
		page := "man1/" + strings.Join(append([]string{"agentvm"}, command...), "-") + ".1"
		text := strings.ReplaceAll(string(files[page].content), `\-`, "-")
		pages[page] = true
		if text == "" {
			t.Errorf("there is no %s", page)
			return
		}
		group := ""
		for line := range strings.Lines(output(append(slices.Clone(command), "--help")...)) {
			if !strings.HasPrefix(line, " ") && strings.HasSuffix(line, ":\n") {
				group = line
			}
			if m := flagLine.FindStringSubmatch(line); m != nil && strings.Contains(group, "Flags") && m[1] != "help" && !strings.Contains(text, "--"+m[1]) {
				t.Errorf("%s does not have --%s", page, m[1])
			}
			m := commandLine.FindStringSubmatch(line)
			if m != nil && m[1] != "help" && (group == "Available Commands:\n" || len(command) == 0 && (strings.Contains(group, "VMs") || group == "Everything else:\n")) {
				walk(append(slices.Clone(command), m[1]))
			}
		}
	}
	walk(nil)
	for page := range keysBelow(files, "man1/") {
		if !pages[page] && !strings.HasPrefix(page, "man1/agentvm-help") {
			t.Errorf("%s is of a command that the help does not name", page)
		}
	}
	if len(pages) < 40 {
		t.Errorf("the help names %d commands", len(pages))
	}
}

// TestArguments: what is refused, and what the message says.
func TestArguments(t *testing.T) {
	t.Chdir("../..")
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		version, dir, platforms, epoch, want string
	}{
		{"1.2.3", full, allPlatforms, "1", "give one as v1.2.3"},
		{"v1.2.3 -X main.x=y", full, allPlatforms, "1", "give one as v1.2.3"},
		{"v1.2.3", "", allPlatforms, "1", "-o DIR is missing"},
		{"v1.2.3", full, "linux/mips", "1", `"linux/mips" is none of`},
		{"v1.2.3", full, allPlatforms, "yesterday", "give seconds since 1970"},
		{"v1.2.3", full, allPlatforms, "1", "the directory is not empty"},
	} {
		t.Setenv("SOURCE_DATE_EPOCH", test.epoch)
		r := &release{dir: test.dir}
		err := r.configure(test.version, test.platforms)
		if err == nil {
			err = r.run(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// copySources copies what git has of this repository, as it is in the working tree, and returns where to.
func copySources(t *testing.T, to string) string {
	t.Helper()
	list := run(t, "../..", []string{"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	for name := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join("../..", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed, and not committed yet
		}
		path := filepath.Join(to, name)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// run runs a program and returns what it prints on standard output.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", c, err, out, stderr.String())
	}
	return string(out)
}

// sums are the SHA-256 of the files of a directory.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := readTree(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	list := map[string]string{}
	for name, f := range files {
		list[name] = fmt.Sprintf("%x", sha256.Sum256(f.content))
	}
	return list
}

// readArchive reads the files of a tar.gz or zip, all of which have to be below prefix and none of which may tell who made it or when.
func readArchive(t *testing.T, file, prefix string) map[string]entry {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]entry{}
	add := func(name string, e entry) {
		below, ok := strings.CutPrefix(name, prefix)
		if !ok {
			t.Errorf("%s has %s", file, name)
		}
		files[below] = e
	}
	if strings.HasSuffix(file, ".zip") {
		z, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range z.File {
			r, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			if f.Modified.Unix() != 1700000000 {
				t.Errorf("%s is of %v", f.Name, f.Modified)
			}
			add(f.Name, entry{text, f.Mode().Perm()})
		}
		return files
	}
	z, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.ModTime.Unix() != 1700000000 || h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s is of %v, %d:%d %q", h.Name, h.ModTime, h.Uid, h.Gid, h.Uname)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			add(h.Name, entry{text, fs.FileMode(h.Mode)})
		}
	}
}
