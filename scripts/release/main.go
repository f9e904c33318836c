// Command release makes the files of a release of agentvm, the same bytes from the same sources with the same version of Go:
//
//	go run ./scripts/release -version v1.2.3 -o DIR
//
// For each platform it writes an archive (program, manual, completions, licences) and the list of what the program is made of (CycloneDX), then one archive of
// a container image for linux/amd64 and linux/arm64, and SHA256SUMS. Times in them are SOURCE_DATE_EPOCH (seconds since 1970) or
// the commit's. It runs at the root of the repository and needs git, the network for Go modules that are not in Go's
// cache, and, for the default image of the container, Alpine's server or AGENTVM_ALPINE_MIRROR.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// allPlatforms are those of a release: GOOS/GOARCH.
const allPlatforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64"

// release is one run.
type release struct {
	version   string // without the v
	dir       string // where the artifacts go
	work      string // for what is only needed meanwhile
	platforms []string
	image     string // of the store in the container
	time      time.Time
	env       []string // of the go command
}

func main() {
	r := &release{}
	var version, platforms string
	flag.StringVar(&version, "version", "", "the release, as v1.2.3 or v1.2.3-rc.1")
	flag.StringVar(&r.dir, "o", "", "the `directory` to write to; it must be empty or absent")
	flag.StringVar(&platforms, "platforms", allPlatforms, "build for these")
	flag.StringVar(&r.image, "image", "alpine", "the `image` that the container has in its store")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := r.configure(version, platforms)
	if err == nil {
		err = r.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// configure checks the flags and finds the time of the release.
func (r *release) configure(version, platforms string) error {
	if ok, _ := regexp.MatchString(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`, version); !ok {
		return fmt.Errorf("-version %q: give one as v1.2.3 or v1.2.3-rc.1", version)
	}
	r.version = version[1:]
	if r.dir == "" || flag.NArg() > 0 {
		return errors.New("-o DIR is missing, or there are arguments: go run ./scripts/release -version v1.2.3 -o DIR")
	}
	r.platforms = strings.Split(platforms, ",")
	for _, p := range r.platforms {
		if !slices.Contains(strings.Split(allPlatforms, ","), p) {
			return fmt.Errorf("-platforms: %q is none of %s", p, allPlatforms)
		}
	}
	if _, err := os.Stat("cmd/agentvm"); err != nil {
		return errors.New("run it at the root of the repository")
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		out, err := exec.Command("git", "log", "-1", "--format=%ct").Output()
		if err != nil {
			return fmt.Errorf("the time of the commit: git: %w (outside of a clone set SOURCE_DATE_EPOCH)", err)
		}
		epoch = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || seconds < 0 {
		return fmt.Errorf("SOURCE_DATE_EPOCH %q: give seconds since 1970", epoch)
	}
	r.time = time.Unix(seconds, 0).UTC()
	return nil
}

func (r *release) run(ctx context.Context) (err error) {
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	if entries, err := os.ReadDir(r.dir); err != nil || len(entries) > 0 {
		return errors.Join(err, fmt.Errorf("-o %s: the directory is not empty", r.dir))
	}
	if r.env, err = goEnvironment(ctx); err != nil {
		return err
	}
	if r.work, err = os.MkdirTemp("", "agentvm-release-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.work)) }()
	manual, err := r.manual(ctx)
	if err != nil {
		return err
	}
	supervisor, err := r.listModules(ctx, "linux/riscv64", "./cmd/agentvm-guest")
	if err != nil {
		return err
	}
	var containers []container
	for _, platform := range r.platforms {
		fmt.Fprintln(os.Stderr, "release:", platform)
		p, err := r.build(ctx, platform)
		if err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
		licences, err := r.licences(ctx, p.modules, supervisor)
		if err != nil {
			return fmt.Errorf("licences for %s: %w", platform, err)
		}
		content := map[string]entry{}
		maps.Copy(content, manual)
		maps.Copy(content, licences)
		content[p.name()] = entry{content: p.binary, mode: 0o755}
		if err := r.writeArchive(p, content); err != nil {
			return err
		}
		if err := r.writeSBOM(p, supervisor); err != nil {
			return err
		}
		if p.os == "linux" {
			containers = append(containers, container{p, licences})
		}
	}
	if len(containers) > 0 {
		if err := r.writeImage(ctx, containers); err != nil {
			return fmt.Errorf("container image: %w", err)
		}
	}
	return r.writeSums()
}

// artifact is the path of an artifact by the end of its name.
func (r *release) artifact(suffix string) string {
	return filepath.Join(r.dir, "agentvm_"+r.version+"_"+suffix)
}

// writeSums writes SHA256SUMS, which `sha256sum -c` reads.
func (r *release) writeSums() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries { // sorted by name
		f, err := os.Open(filepath.Join(r.dir, e.Name()))
		if err != nil {
			return err
		}
		sum := sha256.New()
		size, err := io.Copy(sum, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%9.1f MB  %s\n", float64(size)/1e6, e.Name())
		fmt.Fprintf(&sums, "%x  %s\n", sum.Sum(nil), e.Name())
	}
	return os.WriteFile(filepath.Join(r.dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// entry is a file of an archive. Its owner, its time and its place are the same in each.
type entry struct {
	content []byte
	mode    fs.FileMode
}

// readTree reads the files below dir, by their paths there with prefix before them.
func readTree(dir, prefix string) (map[string]entry, error) {
	tree := map[string]entry{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		tree[prefix+filepath.ToSlash(name)] = entry{content, 0o644}
		return err
	})
	return tree, err
}
