package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentvm/internal/storage/disk"
)

// TestNoEmptyDisk: a VM gets an empty disk once. When its own is missing later, the start fails, and makes nothing.
func TestNoEmptyDisk(t *testing.T) {
	for _, tt := range []struct {
		name string
		ran  func(p paths) error // what a start leaves
		gone string              // pattern of files that are removed
		made bool
	}{
		{"it has never run", func(paths) error { return nil }, "disk.img", true},
		{"the disk's own file", paths.noteDisk, "disk.img", false},
		{"all of the disk", paths.noteDisk, "disk.img*", false},
		{"a VM of an earlier version", func(p paths) error {
			d, err := disk.Open(p.disk())
			if err != nil {
				return err
			}
			return d.Close()
		}, "disk.img", false},
		{"nothing", paths.noteDisk, "none", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := paths{filepath.Join(t.TempDir(), "dev")}
			if err := os.Mkdir(p.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := p.makeDisk(disk.MinSize); err != nil {
				t.Fatal(err)
			}
			if err := tt.ran(p); err != nil {
				t.Fatal(err)
			}
			files, _ := filepath.Glob(filepath.Join(p.dir, tt.gone))
			for _, path := range files {
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
			}
			before, _ := filepath.Glob(filepath.Join(p.dir, "*"))
			err := p.makeDisk(disk.MinSize)
			if tt.made {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), p.disk()+" is missing") || !strings.Contains(err.Error(), "agentvm rm dev") {
				t.Errorf("error %v", err)
			}
			if after, _ := filepath.Glob(filepath.Join(p.dir, "*")); len(after) != len(before) {
				t.Errorf("before %q, after %q", before, after)
			}
		})
	}
}
