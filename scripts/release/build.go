package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// program is agentvm for one platform.
type program struct {
	os, arch string
	binary   []byte
	info     *debug.BuildInfo // which the linker has put into it
	modules  []module         // the same modules as info.Deps, with their packages
}

func (p *program) name() string {
	if p.os == "windows" {
		return "agentvm.exe"
	}
	return "agentvm"
}

// module is a Go module of which a program has packages.
type module struct {
	path, version string
	dir           string   // in Go's cache
	packages      []string // their directories
}

// goEnvironment returns variables for the go command: those of this process without the ones that change what it makes,
// whether they come from the environment or from `go env -w`.
func goEnvironment(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "-json", "GOPROXY", "GOSUMDB", "GONOSUMDB", "GONOPROXY", "GOPRIVATE", "GOINSECURE", "GOMODCACHE", "GOCACHE", "GOPATH", "GOTOOLCHAIN").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	var kept map[string]string
	if err := json.Unmarshal(out, &kept); err != nil {
		return nil, err
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GO") || strings.HasPrefix(v, "CGO_") })
	for name, value := range kept {
		env = append(env, name+"="+value)
	}
	return append(env, "GOENV=off", "GOWORK=off", "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0"), nil
}

// run runs the go command for a platform ("" for the host's) and returns its output.
func (r *release) goCommand(ctx context.Context, platform string, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, "go", args...)
	c.Env = r.env
	if goos, goarch, ok := strings.Cut(platform, "/"); ok {
		c.Env = append(slices.Clip(c.Env), "GOOS="+goos, "GOARCH="+goarch)
	}
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", args[0], err)
	}
	return out, nil
}

// manual makes the man pages and completions, which are the same for all platforms.
func (r *release) manual(ctx context.Context) (map[string]entry, error) {
	writer, dir := filepath.Join(r.work, "manual.exe"), filepath.Join(r.work, "manual")
	if _, err := r.goCommand(ctx, "", "build", "-trimpath", "-tags", "manual", "-buildvcs=false", "-ldflags", "-X main.version="+r.version, "-o", writer, "./cmd/agentvm"); err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, writer, dir, r.time.Format(time.RFC3339))
	c.Stderr = os.Stderr
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("man pages and completions: %w", err)
	}
	return readTree(dir, "")
}

// build builds agentvm for a platform.
func (r *release) build(ctx context.Context, platform string) (p *program, err error) {
	p = &program{}
	p.os, p.arch, _ = strings.Cut(platform, "/")
	path := filepath.Join(r.work, "agentvm-"+p.os+"-"+p.arch)
	// -s -w leaves out symbols and DWARF, a quarter of the file; stack traces do not need them.
	if _, err := r.goCommand(ctx, platform, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+r.version, "-o", path, "./cmd/agentvm"); err != nil {
		return nil, err
	}
	if p.binary, err = os.ReadFile(path); err != nil {
		return nil, err
	}
	if p.info, err = buildinfo.Read(bytes.NewReader(p.binary)); err != nil {
		return nil, err
	}
	if p.modules, err = r.listModules(ctx, platform, "./cmd/agentvm"); err != nil {
		return nil, err
	}
	same := slices.EqualFunc(p.info.Deps, p.modules, func(a *debug.Module, b module) bool {
		return a.Replace == nil && a.Path == b.path && a.Version == b.version
	})
	if !same {
		return nil, errors.New("the program says that it has other modules than `go list` does")
	}
	return p, nil
}

// listModules lists the modules of which a program has packages, without ours and Go's own, by path.
func (r *release) listModules(ctx context.Context, platform, program string) ([]module, error) {
	out, err := r.goCommand(ctx, platform, "list", "-deps", "-json=Dir,Module", program)
	if err != nil {
		return nil, err
	}
	found := map[string]*module{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir    string
			Module *struct {
				Path, Version, Dir string
				Main               bool
			}
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if p.Module == nil || p.Module.Main {
			continue
		}
		m := found[p.Module.Path]
		if m == nil {
			m = &module{path: p.Module.Path, version: p.Module.Version, dir: p.Module.Dir}
			found[m.path] = m
		}
		m.packages = append(m.packages, p.Dir)
	}
	list := make([]module, 0, len(found))
	for _, m := range found {
		list = append(list, *m)
	}
	slices.SortFunc(list, func(a, b module) int { return strings.Compare(a.path, b.path) })
	return list, nil
}
