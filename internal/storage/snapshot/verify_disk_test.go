package snapshot

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestVerifyDisk: verifying finds each damage to the disk beside a snapshot, and an export does not give damaged contents new hashes. The disk of
// an earlier version, which has no hashes, must be whole in its structure.
func TestVerifyDisk(t *testing.T) {
	s, err := OpenStore(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	frozen, _ := kept(t)
	for _, tt := range []struct {
		name             string
		unhashed, intact bool
		damage           func(layer string) error
	}{
		{name: "none", intact: true, damage: func(string) error { return nil }},
		{name: "overwritten", damage: func(layer string) error {
			b, err := os.ReadFile(layer)
			if err != nil {
				return err
			}
			at := bytes.LastIndex(b, []byte("keptkept"))
			b[at] = 'K'
			return errors.Join(os.Remove(layer), os.WriteFile(layer, b, 0o600)) // the original is shared
		}},
		{name: "emptied", damage: func(layer string) error { return errors.Join(os.Remove(layer), os.WriteFile(layer, nil, 0o600)) }},
		{name: "missing", damage: os.Remove},
		{name: "without layers", damage: func(layer string) error { return os.RemoveAll(filepath.Dir(layer)) }},
		{name: "without a disk", damage: func(layer string) error { return os.RemoveAll(filepath.Dir(filepath.Dir(layer))) }},
		{name: "hash emptied", damage: func(layer string) error {
			return errors.Join(os.Remove(layer+".sum"), os.WriteFile(layer+".sum", nil, 0o600))
		}},
		{name: "unhashed", unhashed: true, intact: true, damage: func(string) error { return nil }},
		{name: "unhashed and missing", unhashed: true, damage: os.Remove},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := content(newMemory(10*PageSize, 1))
			c.Disk, c.HashDisk = frozen, !tt.unhashed
			if err := s.Create(t.Context(), "one", c); err != nil {
				t.Fatal(err)
			}
			defer s.Remove(t.Context(), "one")
			sums, err := filepath.Glob(filepath.Join(s.snapshots(), "*"+besideSuffix, besideDisk+".layers", "*.sum"))
			if err != nil || len(sums) != 1 {
				t.Fatalf("hashes: %q, %v", sums, err)
			}
			if tt.unhashed {
				if err := os.Remove(sums[0]); err != nil {
					t.Fatal(err)
				}
			}
			if err := tt.damage(sums[0][:len(sums[0])-len(".sum")]); err != nil {
				t.Fatal(err)
			}
			f, err := s.Open("one")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := f.Verify(t.Context()); (err == nil) != tt.intact || err != nil && !errors.Is(err, ErrCorrupt) {
				t.Errorf("verified: %v", err)
			}
			if err := f.Export(t.Context(), io.Discard); (err == nil) != tt.intact {
				t.Errorf("exported: %v", err)
			}
			if tt.intact && f.DiskHashed() == tt.unhashed {
				t.Errorf("hashed: %t", !tt.unhashed)
			}
		})
	}
}
