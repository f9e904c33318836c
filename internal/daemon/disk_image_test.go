package daemon

import (
	"context"
	"os"
	"strings"
	"testing"

	"agentvm/images"
	"agentvm/internal/host/platform"
	"agentvm/vm"
)

// TestDiskKeepsItsImage starts VMs whose disk was made when the name in their configuration meant another image.
func TestDiskKeepsItsImage(t *testing.T) {
	for _, test := range []struct {
		name     string
		recorded string // "none": no file
		config   Config
		store    string // an image that is there
		want     string // what boots, or a part of the error
	}{
		{"recorded", "alpine:3.20.3\n", Config{}, "", "alpine:3.20.3 linux/riscv64"},
		{"recorded, by name", "alpine:3.20.3\n", Config{Config: vm.Config{Image: "alpine"}}, "", "alpine:3.20.3 linux/riscv64"},
		{"recorded with a platform", "alpine:3.20.3\nlinux/arm64\n", Config{Config: vm.Config{Image: "alpine"}}, "", "alpine:3.20.3 linux/arm64"},
		{"recorded with a platform, another is asked for", "alpine:3.20.3\nlinux/arm64\n", Config{Config: vm.Config{Platform: "linux/riscv64"}}, "", "belong to image alpine:3.20.3 for linux/arm64"},
		{"recorded with no platform that there is", "alpine:3.20.3\nlinux/amd64\n", Config{}, "", "VMs do not run programs for x86"},
		{"recorded, another is asked for", "alpine:3.20.3\n", Config{Config: vm.Config{Image: "alpine:3.24.2"}}, "", "belong to image alpine:3.20.3"},
		{"recorded, without a disk now", "alpine:3.20.3\n", Config{DiskSize: -1}, "", ""},
		{"a file", "localhost/x:1\n", Config{Config: vm.Config{Image: "oci:./x"}}, "", "oci:./x"},
		{"of an earlier version", "none", Config{}, "", images.UnrecordedAlpine},
		{"of an earlier version, by name", "none", Config{Config: vm.Config{Image: "alpine"}}, "busybox", images.UnrecordedAlpine},
		{"of an earlier version without a network", "none", Config{}, "busybox", "busybox"},
		{"of an earlier version and another image", "none", Config{Config: vm.Config{Image: "mine"}}, "", "mine"},
		{"empty file", "", Config{}, "", images.UnrecordedAlpine},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("AGENTVM_ALPINE_MIRROR", "http://127.0.0.1:1")
			test.config.StoreDir = t.TempDir()
			if test.store != "" {
				store, err := images.Open(test.config.StoreDir)
				if err == nil {
					_, err = store.Resolve(t.Context(), test.store)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			p := paths{t.TempDir()}
			if err := os.WriteFile(p.disk(), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if test.recorded != "none" {
				if err := os.WriteFile(p.diskImage(), []byte(test.recorded), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := p.bootImage(&test.config)
			got := strings.TrimSpace(test.config.Image + " " + test.config.Platform)
			if got != test.want && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("boots %q, %v; want %q", got, err, test.want)
			}
		})
	}
}

// TestDiskImageIsRecorded starts a VM twice; what "alpine" means has changed in between.
func TestDiskImageIsRecorded(t *testing.T) {
	var booted []string
	var d *inside
	boot := func(_ context.Context, b booting) (VM, error) {
		booted = append(booted, b.config.Image+b.config.Platform)
		return d.vm, os.WriteFile(b.paths.disk(), nil, 0o600)
	}
	d = &inside{store: Store{Dir: t.TempDir(), Version: "test", Command: []string{"none"}}, ended: make(chan error, 1)}
	for range 2 {
		d.vm = newFakeVM()
		d.vm.image.Name, d.vm.image.Architecture = "alpine:3.20.3", platform.ARM64
		d.restart(t, Config{Config: vm.Config{Image: "alpine"}}, timing{}, boot)
		await(t, "the VM", func() bool { return d.vm.runs.Load() > 0 })
		d.stop()
		if err := d.wait(t); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(booted, " "); got != "alpine alpine:3.20.3linux/arm64" {
		t.Errorf("booted %s", got)
	}
	if s := d.status(t); s.Image != "alpine:3.20.3" || s.Platform != "linux/arm64" {
		t.Errorf("status %+v", s)
	}
	if image, err := d.store.DiskImage("dev"); err != nil || image != (images.Key{Name: "alpine:3.20.3", Architecture: platform.ARM64}) {
		t.Errorf("%v, %v", image, err)
	}
}
