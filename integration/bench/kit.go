//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"agentvm/images"
	"agentvm/images/imagestest"
	"agentvm/internal/guest/supervisor"
	"agentvm/internal/host/platform"
	"agentvm/internal/machine/initramfs"
	"agentvm/internal/machine/kernel"
)

// kit is a temporary directory with everything that both sides of a comparison boot.
type kit struct {
	dir   string
	store string // image store and cache of compiled code
	image *images.Image
	root  string // of the repository
	// memory is that of guests, in MiB.
	memory       int
	architecture platform.Architecture // of guests
}

// missingTool says that this host cannot run one side of a comparison.
type missingTool struct{ name, pkg string }

func (e *missingTool) Error() string {
	return fmt.Sprintf("%s is missing (Debian: apt install %s)", e.name, e.pkg)
}

func needTool(name, pkg string) error {
	if _, err := exec.LookPath(name); err != nil {
		return &missingTool{name, pkg}
	}
	return nil
}

func newKit(ctx context.Context) (*kit, error) {
	dir, err := os.MkdirTemp("", "agentvm-bench-")
	if err != nil {
		return nil, err
	}
	k := &kit{dir: dir, store: filepath.Join(dir, "store"), memory: memory, architecture: platform.RISCV64}
	if err = k.findRepository(); err == nil {
		err = errors.Join(k.pull(ctx), k.writeBootFiles())
	}
	if err != nil {
		k.remove()
		return nil, err
	}
	return k, nil
}

func (k *kit) remove() { _ = os.RemoveAll(k.dir) }

func (k *kit) path(name string) string { return filepath.Join(k.dir, name) }

func (k *kit) findRepository() error {
	out, err := output(exec.Command("go", "list", "-f", "{{.Module.Dir}}", "agentvm/vm"))
	k.root = strings.TrimSpace(out)
	return err
}

// pull gets Alpine: from the folder that the tests use too when there is one, else from the release server, or else the
// built-in root. With imagestest.FolderEnv=none it is the built-in root, as for the tests.
func (k *kit) pull(ctx context.Context) error {
	config := images.Config{Dir: k.store}
	if os.Getenv(imagestest.FolderEnv) == "none" {
		store, err := config.Open()
		if err == nil {
			k.image, err = store.Resolve(ctx, images.BuiltinName)
		}
		return err
	}
	if folder := k.imageFolder(); folder != "" {
		server := httptest.NewServer(imagestest.Handler(folder))
		defer server.Close()
		config.AlpineMirror = server.URL
	}
	store, err := config.Open()
	if err != nil {
		return err
	}
	// The release of docs/measurements, whatever the default is, so that figures stay comparable.
	if k.image, err = store.Resolve(ctx, imagestest.Alpine); errors.Is(err, images.ErrUnreachable) {
		fmt.Fprintln(os.Stderr, "bench: using the built-in BusyBox image:", err)
		k.image, err = store.Resolve(ctx, images.BuiltinName)
	}
	return err
}

func (k *kit) imageFolder() string {
	if folder := os.Getenv(imagestest.FolderEnv); folder != "" {
		return folder
	}
	beside := filepath.Join(k.root, "..", "shared", "images")
	if _, err := os.Stat(beside); err != nil {
		return ""
	}
	return beside
}

// writeBootFiles writes the kernel, the initramfs and the root disk for QEMU.
func (k *kit) writeBootFiles() error {
	image, err := kernel.Image(k.architecture)
	if err != nil {
		return err
	}
	program, err := supervisor.Binary(k.architecture)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(k.path("kernel"), image, 0o600), os.WriteFile(k.path("initramfs"), initramfs.Of(program), 0o600), k.writeRoot())
}

// writeRoot writes the root disk as guests read it.
func (k *kit) writeRoot() error {
	store, err := images.Open(k.store)
	if err != nil {
		return err
	}
	root, err := store.OpenRootDisk(k.image)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := os.Create(k.path("root"))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, io.NewSectionReader(root, 0, root.Size()))
	return errors.Join(err, f.Close())
}

// output runs a command and returns what it prints; its errors show what it complained about.
func output(c *exec.Cmd) (string, error) {
	var complaint bytes.Buffer
	c.Stderr = &complaint
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(c.Path), err, bytes.TrimSpace(complaint.Bytes()))
	}
	return string(out), nil
}
