//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

// measureImage compares the way from a registry on the loopback interface to the first command with skopeo's copy of the same image to a
// directory in the OCI layout, and measures what the image takes in the store and how fast later commands are.
func measureImage(ctx context.Context, b *bench) error {
	if b.image == "" {
		return &missingTool{"-image FILE", "integration/bench/image.sh makes FILE"}
	}
	if err := needTool("skopeo", "skopeo"); err != nil {
		return err
	}
	if err := b.kit.build(ctx); err != nil {
		return err
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	name := strings.TrimPrefix(server.URL, "http://") + "/bench:1"
	if err := skopeo(ctx, "--dest-tls-verify=false", "oci-archive:"+b.image, "docker://"+name); err != nil {
		return err
	}
	// The machine's compiled code stays, as on a host on which agentvm has run before.
	if err := b.kit.withImageStore(ctx, "exec", "-i=false", "--image", "busybox", "true"); err != nil {
		return err
	}
	var own, pulls, copies, later, size samples
	for range b.rounds(5) {
		for _, dir := range []string{"layout", "image-store/blobs", "image-store/layers", "image-store/disks", "image-store/images", "image-store/bases"} {
			if err := os.RemoveAll(b.kit.path(dir)); err != nil {
				return err
			}
		}
		began := time.Now()
		if err := skopeo(ctx, "--src-tls-verify=false", "docker://"+name, "oci:"+b.kit.path("layout")+":1"); err != nil {
			return err
		}
		copies = append(copies, time.Since(began).Seconds())
		began = time.Now()
		if err := b.kit.withImageStore(ctx, "image", "pull", name); err != nil {
			return err
		}
		pulls = append(pulls, time.Since(began).Seconds())
		if err := b.kit.withImageStore(ctx, "run", "-i=false", name, "/bin/true"); err != nil {
			return err
		}
		own = append(own, time.Since(began).Seconds())
		time.Sleep(2 * time.Second) // the base is being written
		for range 5 {
			began = time.Now()
			if err := b.kit.withImageStore(ctx, "run", "-i=false", name, "/bin/true"); err != nil {
				return err
			}
			later = append(later, time.Since(began).Seconds()*1e3)
		}
		bytes, err := folderSize(b.kit.path("image-store/layers"), b.kit.path("image-store/disks"), b.kit.path("image-store/blobs"))
		if err != nil {
			return err
		}
		size = append(size, float64(bytes)/1e6)
	}
	var allowed samples
	for i, took := range own {
		allowed = append(allowed, took-1.2*copies[i])
	}
	b.report.add(figure{page: storagePage, name: "skopeo copies the image to an OCI layout", unit: "s", value: copies.median(), spread: copies})
	b.report.add(figure{page: storagePage, name: "`image pull`", unit: "s", value: pulls.median(), spread: pulls})
	b.report.add(figure{page: storagePage, name: "`image pull` and the first command, less 1.2 times skopeo's copy", unit: "s", value: allowed.median(), spread: allowed, bar: atMost(2)})
	b.report.add(figure{page: storagePage, name: "later commands", unit: "ms", value: later.median(), spread: later, bar: atMost(40)})
	b.report.add(figure{page: storagePage, name: "size in the store", unit: "MB", value: size.median(), spread: size})
	return nil
}

func skopeo(ctx context.Context, args ...string) error {
	_, err := output(exec.CommandContext(ctx, "skopeo", append([]string{"--insecure-policy", "copy", "-q"}, args...)...))
	return err
}

// withImageStore runs agentvm with a store of its own.
func (k *kit) withImageStore(ctx context.Context, args ...string) error {
	c := exec.CommandContext(ctx, k.path("agentvm"), args...)
	c.Env = append(os.Environ(), "AGENTVM_STORE="+k.path("image-store"))
	_, err := output(c)
	return err
}

func folderSize(dirs ...string) (size int64, err error) {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err == nil {
				size += info.Size()
			}
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("size of %s: %w", dir, err)
		}
	}
	return size, nil
}
