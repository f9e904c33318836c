// Command footprint reports what the program costs whoever builds it: how many modules are in it, how many bytes of them are downloaded, and how
// large it is without symbols, for linux/amd64 and without cgo as releases are.
//
//	go run ./scripts/footprint            seconds, with a warm cache
//	go run ./scripts/footprint -compile   also the processor time of compiling everything, from an empty cache: minutes
//
// Bytes are those of the modules' archives as a proxy sends them.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

const program = "agentvm/cmd/agentvm"

func main() {
	compile := flag.Bool("compile", false, "measure compiling, too")
	flag.Parse()
	if err := report(os.Stdout, *compile); err != nil {
		fmt.Fprintln(os.Stderr, "footprint:", err)
		os.Exit(1)
	}
}

func report(out io.Writer, compile bool) error {
	list, err := modules()
	if err != nil {
		return err
	}
	for _, m := range list[:min(len(list), 10)] {
		fmt.Fprintf(out, "%6.1f MB  %s\n", float64(m.bytes)/1e6, m.Path)
	}
	fmt.Fprintf(out, "%d modules, %.1f MB to download\n", len(list), float64(total(list))/1e6)
	dir, err := os.MkdirTemp("", "footprint-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cache := ""
	if compile {
		cache = filepath.Join(dir, "cache")
	}
	size, used, err := build(filepath.Join(dir, "agentvm"), cache)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%.1f MB stripped\n", float64(size)/1e6)
	if compile {
		fmt.Fprintf(out, "%.1f minutes of processor time to compile\n", used.Minutes())
	}
	return nil
}

// module is one that has a package in the program.
type module struct {
	Path, Version string
	bytes         int64 // of its archive
}

func total(list []module) (bytes int64) {
	for _, m := range list {
		bytes += m.bytes
	}
	return bytes
}

// errNoArchive is the error for a module whose sources are here without the archive that they were downloaded in.
var errNoArchive = errors.New("the module cache has no archive")

// modules returns the modules in the program, the largest first.
func modules() (list []module, err error) {
	type of struct {
		Module *struct {
			Path, Version string
			Main          bool
		}
	}
	err = decode(func(p of) error {
		if p.Module == nil || p.Module.Main {
			return nil
		}
		if m := (module{Path: p.Module.Path, Version: p.Module.Version}); !slices.Contains(list, m) {
			list = append(list, m)
		}
		return nil
	}, "list", "-deps", "-json=Module", program)
	if err != nil {
		return nil, err
	}
	download := []string{"mod", "download", "-json"}
	for _, m := range list {
		download = append(download, m.Path+"@"+m.Version)
	}
	err = decode(func(d struct{ Path, Zip string }) error {
		info, err := os.Stat(d.Zip)
		if err != nil {
			return fmt.Errorf("%s: %w", d.Path, errNoArchive)
		}
		list[slices.IndexFunc(list, func(m module) bool { return m.Path == d.Path })].bytes = info.Size()
		return nil
	}, download...)
	slices.SortFunc(list, func(a, b module) int { return cmp.Compare(b.bytes, a.bytes) })
	return list, err
}

// decode passes each JSON value that a go command prints to use.
func decode[T any](use func(T) error, args ...string) error {
	out, err := goCommand(args...).Output()
	if err != nil {
		return fmt.Errorf("go %s: %w", args[0], err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var value T
		if err := d.Decode(&value); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("go %s: %w", args[0], err)
		}
		if err := use(value); err != nil {
			return err
		}
	}
}

// build makes the program, with a cache of compiled packages unless that is "", and returns its size and the processor time that was used.
func build(path, cache string) (size int64, used time.Duration, err error) {
	c := goCommand("build", "-trimpath", "-buildvcs=false", "-ldflags=-s", "-o", path, program)
	if cache != "" {
		c.Env = append(c.Env, "GOCACHE="+cache)
	}
	if out, err := c.CombinedOutput(); err != nil {
		return 0, 0, fmt.Errorf("go build: %w: %s", err, out)
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	return info.Size(), c.ProcessState.UserTime() + c.ProcessState.SystemTime(), nil
}

func goCommand(args ...string) *exec.Cmd {
	c := exec.Command("go", args...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	return c
}
