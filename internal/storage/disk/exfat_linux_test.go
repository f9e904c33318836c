package disk

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"agentvm/internal/test/smalldisk"
)

// TestWithoutHolesAndLinks: where files have neither, a disk and its copies take what is on them. The layers are copied.
func TestWithoutHolesAndLinks(t *testing.T) {
	smalldisk.RunExfat(t, 64<<20, func(t *testing.T, dir string) {
		path := filepath.Join(dir, "disk.img")
		if err := Create(path, 10<<30); err != nil {
			t.Fatal(err)
		}
		d := open(t, path)
		noise := bytes.Repeat([]byte("noise"), 4<<20/5)
		for _, at := range []int64{1 << 20, 5 << 30} {
			if _, err := d.WriteAt(noise, at); err != nil {
				t.Fatal(err)
			}
		}
		f := freeze(t, d)
		holds := smalldisk.Used(t, dir)
		if holds > 14<<20 {
			t.Errorf("a disk of 10 GiB with 8 MiB on it takes %d KiB", holds>>10)
		}
		for _, name := range []string{"a.img", "b.img"} {
			before := smalldisk.Used(t, dir)
			if err := f.Clone(t.Context(), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			if took := smalldisk.Used(t, dir) - before; took > holds {
				t.Errorf("a copy takes %d KiB, the disk %d", took>>10, holds>>10)
			}
		}
		a, b := open(t, filepath.Join(dir, "a.img")), open(t, filepath.Join(dir, "b.img"))
		if _, err := a.WriteAt([]byte("other"), 5<<30); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(noise))
		for _, d := range []*Disk{d, b} {
			if _, err := d.ReadAt(got, 5<<30); err != nil || !bytes.Equal(got, noise) {
				t.Errorf("%s has something else: %v", d.Path(), err)
			}
		}
		before := smalldisk.Used(t, dir)
		if err := errors.Join(f.Close(), a.Close(), b.Close(), Remove(a.Path()), Remove(b.Path())); err != nil {
			t.Fatal(err)
		}
		if now := smalldisk.Used(t, dir); now > before-2*8<<20 {
			t.Errorf("removed, the copies have given back %d KiB", (before-now)>>10)
		}
		checkNothingLeft(t, dir, "disk.img")
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}

// checkNothingLeft wants nothing in dir but one disk.
func checkNothingLeft(t *testing.T, dir, disk string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if name := filepath.Base(path); name != disk && name != disk+".lock" && name != disk+layersSuffix {
			t.Errorf("left: %s", name)
		}
	}
}
