package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"agentvm/images/imagestest"
)

// maxImage is how large the layers of an image may be together, compressed, in bytes.
const maxImage = 37_500_000

// checkContainer looks at the images of the archive of containers, and runs the one for this host.
func checkContainer(t *testing.T, dir, image, platforms string) {
	blobs := map[string][]byte{}
	f, err := os.Open(filepath.Join(dir, "agentvm_9.8.7-test_oci.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if blobs[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var outer, inner v1.IndexManifest
	decode := func(name string, to any) {
		t.Helper()
		if err := json.Unmarshal(blobs[name], to); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	decode("index.json", &outer)
	if len(outer.Manifests) != 1 || outer.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "9.8.7-test" {
		t.Fatalf("index.json names %+v", outer.Manifests)
	}
	decode(blob(outer.Manifests[0].Digest), &inner)
	var found []string
	for _, d := range inner.Manifests {
		platform := d.Platform.OS + "/" + d.Platform.Architecture
		found = append(found, platform)
		var manifest v1.Manifest
		var config v1.ConfigFile
		decode(blob(d.Digest), &manifest)
		decode(blob(manifest.Config.Digest), &config)
		if config.Config.User != "65532:65532" || config.OS+"/"+config.Architecture != platform || config.Created.Unix() != 1700000000 {
			t.Errorf("%s: the configuration is %+v", platform, config)
		}
		var size int64
		var layers [][]byte
		for _, l := range manifest.Layers {
			size += l.Size
			layers = append(layers, blobs[blob(l.Digest)])
		}
		if size > maxImage {
			t.Errorf("%s: the layers have %d bytes, more than %d", platform, size, maxImage)
		}
		if platform == runtime.GOOS+"/"+runtime.GOARCH {
			runContainer(t, config, layers, image)
		}
	}
	var want []string
	for p := range strings.SplitSeq(platforms, ",") {
		if strings.HasPrefix(p, "linux/") {
			want = append(want, p)
		}
	}
	if strings.Join(found, ",") != strings.Join(want, ",") {
		t.Errorf("there are images for %s, want %s", found, want)
	}
}

// runContainer unpacks an image and runs a command in a VM there, as a container's runtime would: with the configuration's user
// and environment, a root that is read-only, no network, and the volume with what the image has in it.
func runContainer(t *testing.T, config v1.ConfigFile, layers [][]byte, image string) {
	for _, tool := range []string{"unshare", "chroot", "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s is missing", tool)
			}
			t.Skipf("%s is missing", tool)
		}
	}
	if out, err := exec.Command("unshare", "--mount", "--net", "true").CombinedOutput(); err != nil {
		t.Skipf("this user may not make namespaces here: %v\n%s", err, out)
	}
	root, volume := t.TempDir(), t.TempDir()
	for _, layer := range layers {
		unpack(t, layer, root, volume)
	}
	for _, dir := range []string{"proc", "dev"} { // which a runtime makes
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "etc/resolv.conf"), []byte("nameserver 127.0.0.1\n"), 0o644); err != nil { // as a runtime does
		t.Fatal(err)
	}
	// The directories of tests are their owner's only.
	if err := errors.Join(os.Chmod(root, 0o755), os.Chmod(volume, 0o700), os.Chown(volume, containerUser, containerUser)); err != nil {
		t.Fatal(err)
	}
	const script = `set -e
root=$1 volume=$2 user=$3; shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
if [ "$volume" = tmpfs ]; then mount -t tmpfs -o "mode=700,uid=${user%:*},gid=${user#*:}" tmpfs "$root/var/lib/agentvm"
else mount --bind "$volume" "$root/var/lib/agentvm"; fi
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -o remount,ro,bind "$root"
exec chroot --userspec="$user" --groups= "$root" "$@"`
	notice := "using the built-in BusyBox image instead"
	filled := notice
	if image == imagestest.Alpine {
		filled = "using " + image // which is not the newest that is pinned
	}
	for _, store := range []struct{ what, volume, stderr string }{
		{"the image's volume", volume, filled},
		{"the image's volume, again", volume, filled},
		{"an empty volume", "tmpfs", notice},
	} {
		args := append([]string{"--mount", "--net", "--pid", "--fork", "sh", "-c", script, "sh", root, store.volume, config.Config.User}, config.Config.Entrypoint...)
		c := exec.CommandContext(t.Context(), "unshare", append(args, "exec", "true && echo done")...)
		var stdout, stderr bytes.Buffer
		c.Stdout, c.Stderr = &stdout, &stderr
		c.Env = append(slices.Clone(config.Config.Env), "PATH="+os.Getenv("PATH"))
		err := c.Run()
		if err != nil || stdout.String() != "done\n" || !strings.Contains(stderr.String(), store.stderr) || store.stderr == "" && stderr.Len() > 0 {
			t.Errorf("with %s: %v\n%s%s", store.what, err, stdout.String(), stderr.String())
		}
	}
}

// unpack unpacks a layer below root, and what is in the home to volume.
func unpack(t *testing.T, layer []byte, root, volume string) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(root, h.Name)
		if below, ok := strings.CutPrefix(h.Name, containerHome+"/"); ok && below != "" {
			to = filepath.Join(volume, below)
		}
		mode := fs.FileMode(h.Mode).Perm()
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(to, mode)
		case tar.TypeReg:
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(to, content, mode)
			}
		default:
			err = fmt.Errorf("%s has type %q", path.Clean(h.Name), h.Typeflag)
		}
		if err := errors.Join(err, os.Chmod(to, mode), os.Chown(to, h.Uid, h.Gid)); err != nil {
			t.Fatal(err)
		}
	}
}
