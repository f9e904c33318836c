//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"

	"agentvm/vm"
)

// memory is that of all guests, in MiB.
const memory = 256

// guest is a booted Linux on either side of a comparison.
type guest interface {
	// sh runs shell source and returns its output; a command that fails is an error.
	sh(ctx context.Context, line string) (string, error)
	// typed runs an interactive shell on a terminal with these keys as its input, and returns what it shows.
	typed(ctx context.Context, keys string) (string, error)
	// put makes an executable file in the guest.
	put(ctx context.Context, path string, content []byte) error
	// pid is the host process that computes for the guest.
	pid() int
	close()
}

// ownGuest is a guest on agentvm, in this process.
type ownGuest struct{ vm *vm.VM }

func (k *kit) startOwn(ctx context.Context) (*ownGuest, error) { return startOwn(ctx, k.config()) }

func startOwn(ctx context.Context, config vm.Config) (*ownGuest, error) {
	v, err := vm.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	return &ownGuest{v}, nil
}

func (k *kit) config() vm.Config {
	return vm.Config{StoreDir: k.store, Image: k.image.Name, Memory: uint64(k.memory) << 20, Platform: k.architecture.Platform()}
}

func (g *ownGuest) sh(ctx context.Context, line string) (string, error) {
	var stdout bytes.Buffer
	r, err := g.vm.Run(ctx, vm.Command{Line: line, Stdout: &stdout})
	if err != nil {
		return "", err
	}
	return stdout.String(), failed(line, r.ExitCode, r.Stderr)
}

func (g *ownGuest) typed(ctx context.Context, keys string) (string, error) {
	var stdout bytes.Buffer
	_, err := g.vm.Run(ctx, vm.Command{
		Args: []string{"/bin/sh", "-i"}, Terminal: &vm.Size{Columns: 120, Rows: 40}, Stdin: strings.NewReader(keys), Stdout: &stdout,
	})
	return stdout.String(), err
}

func (g *ownGuest) put(ctx context.Context, path string, content []byte) error {
	line := putLine(path)
	r, err := g.vm.Run(ctx, vm.Command{Line: line, Stdin: bytes.NewReader(content)})
	if err != nil {
		return err
	}
	return failed(line, r.ExitCode, r.Stderr)
}

func putLine(path string) string { return "cat >" + path + " && chmod +x " + path }

func (g *ownGuest) pid() int { return os.Getpid() }

func (g *ownGuest) close() { _ = g.vm.Close() }

func failed(line string, code int, stderr []byte) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%q exited with %d: %s", line, code, bytes.TrimSpace(stderr))
}
