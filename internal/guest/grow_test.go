//go:build linux

package guest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/internal/storage/disk"
)

func TestParseExtent(t *testing.T) {
	const size = 10 << 30
	for _, tt := range []struct {
		name                        string
		blocks, high, scale, incomp uint32
		want                        extent
		grows                       bool
	}{
		{"small", 16384, 0, 2, 0x2c2, extent{16384, 2621440, false, 4096}, true},
		{"whole", 2621440, 0, 2, 0x2c2, extent{2621440, 2621440, false, 4096}, false},
		{"killed", 16384, 0, 2, 0x2c6, extent{16384, 2621440, true, 4096}, true},
		{"cut", 2621441, 0, 2, 0x2c2, extent{2621441, 2621440, false, 4096}, false},
		{"more than 16 TiB", 5, 1, 2, 0x80, extent{1<<32 + 5, 2621440, false, 4096}, false},
		{"no upper half without 64bit", 5, 1, 2, 0x40, extent{5, 2621440, false, 4096}, true},
		{"blocks of 1 KiB", 65536, 0, 0, 0x42, extent{65536, 10485760, false, 1024}, true},
		{"blocks of 64 KiB", 1024, 0, 6, 0x42, extent{1024, 163840, false, 65536}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			super := make([]byte, 1024)
			binary.LittleEndian.PutUint16(super[0x38:], 0xef53)
			for at, value := range map[int]uint32{0x4: tt.blocks, 0x18: tt.scale, 0x60: tt.incomp, 0x150: tt.high} {
				binary.LittleEndian.PutUint32(super[at:], value)
			}
			e, err := parseExtent(super, size)
			if diff := cmp.Diff(tt.want, e, cmp.AllowUnexported(extent{})); err != nil || diff != "" {
				t.Errorf("%v, -want +got:\n%s", err, diff)
			}
			if e.grows() != tt.grows {
				t.Errorf("grows: %v", e.grows())
			}
		})
	}
}

// TestReadExtent is about files that are disks, and some that are none.
func TestReadExtent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := disk.Create(path, 1<<30); err != nil {
		t.Fatal(err)
	}
	raw := path + ".raw"
	if err := disk.WriteRaw(t.Context(), path, raw); err != nil {
		t.Fatal(err)
	}
	if e, err := readExtent(raw); err != nil || e != (extent{blocks: 16384, room: 262144, blockSize: 4096}) {
		t.Errorf("a new disk: %+v, %v", e, err)
	}
	for name, content := range map[string]string{
		"empty": "", "short": strings.Repeat("x", 2047), "zeros": strings.Repeat("\x00", 4096),
		"odd blocks": strings.Repeat("\x00", 1024+0x18) + "\x07" + strings.Repeat("\x00", 0x38-0x19) + "\x53\xef" + strings.Repeat("\x00", 4096),
	} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if e, err := readExtent(path); err == nil {
			t.Errorf("%s: %+v", name, e)
		}
	}
	if _, err := readExtent(filepath.Join(t.TempDir(), "missing")); !os.IsNotExist(err) {
		t.Errorf("missing: %v", err)
	}
}

// TestLastCommit writes commits into the journal of a new disk.
func TestLastCommit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := disk.Create(path, 1<<30); err != nil {
		t.Fatal(err)
	}
	raw := path + ".raw"
	if err := disk.WriteRaw(t.Context(), path, raw); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(raw, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	put := func(offset int64, b []byte) {
		t.Helper()
		if _, err := f.WriteAt(b, offset); err != nil {
			t.Fatal(err)
		}
	}
	mounted := func(at uint32) { put(1024+0x2c, binary.LittleEndian.AppendUint32(nil, at)) }
	mounted(1000)
	if at, err := lastCommit(f); err != nil || !at.IsZero() {
		t.Errorf("without a commit: %v, %v", at, err)
	}
	extent := make([]byte, 12)
	if _, err := f.ReadAt(extent, 1024+0x10c+12); err != nil {
		t.Fatal(err)
	}
	journal, blocks := int64(binary.LittleEndian.Uint32(extent[8:]))*4096, int64(binary.LittleEndian.Uint16(extent[4:]))
	for block, at := range map[int64]uint64{1: 1001, 2: 1005, blocks - 1: 1003} {
		b := make([]byte, 64)
		binary.BigEndian.PutUint32(b, journalMagic)
		binary.BigEndian.PutUint32(b[4:], journalCommit)
		binary.BigEndian.PutUint64(b[0x30:], at)
		binary.BigEndian.PutUint32(b[0x38:], 7)
		put(journal+block*4096, b)
	}
	last := time.Unix(1005, 7)
	if at, err := lastCommit(f); err != nil || !at.Equal(last) {
		t.Errorf("the last one: %v, %v", at, err)
	}
	for at, want := range map[time.Time]bool{last: true, last.Add(1): false, last.Add(-tornTime + 1): true, last.Add(-tornTime): false} {
		if got := (ends{time.Unix(1, 0), last}).torn(at); got != want {
			t.Errorf("changed %v before the end: torn is %t", last.Sub(at), got)
		}
	}
	mounted(1006)
	if at, err := lastCommit(f); err != nil || !at.IsZero() {
		t.Errorf("commits of before the last mount: %v, %v", at, err)
	}
	put(1024+0xfd, []byte{0})
	if at, err := lastCommit(f); err == nil {
		t.Errorf("without a journal: %v", at)
	}
}
