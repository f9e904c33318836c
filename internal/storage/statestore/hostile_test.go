package statestore

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"

	"agentvm/internal/storage/snapshot"
)

// pushed makes a store with a snapshot.
func pushed(t testing.TB, key *Key) (s *Store, dir string, m *Manifest) {
	dir, url := directory(t)
	s = open(t, url, key)
	here := localStore(t)
	f, _ := layered(t, here, "one", newBase(t, here), 2)
	if _, err := s.Push(t.Context(), "vm", Push{File: f}); err != nil {
		t.Fatal(err)
	}
	m, err := s.Read(t.Context(), "vm")
	if err != nil {
		t.Fatal(err)
	}
	return s, dir, m
}

func TestWithoutTheKey(t *testing.T) {
	s, dir, _ := pushed(t, newTestKey(t))
	url := s.String()
	name := filepath.Join(dir, "snapshots", "vm")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	packs, err := filepath.Glob(filepath.Join(dir, "packs", "*"))
	if err != nil || len(packs) == 0 {
		t.Fatal(packs, err)
	}
	for _, other := range []*Key{nil, newTestKey(t)} {
		if _, err := open(t, url, other).Read(t.Context(), "vm"); !errors.Is(err, ErrKey) {
			t.Errorf("read with %v: %v", other, err)
		}
	}
	// A snapshot under another name, and one that only the public half of the key has made.
	if err := os.WriteFile(filepath.Join(dir, "snapshots", "other"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(t.Context(), "other"); !errors.Is(err, ErrKey) {
		t.Errorf("a manifest of another name: %v", err)
	}
	public := &Key{identity: s.key.identity, mac: make([]byte, 32)}
	forged, err := public.close(make([]byte, 100))
	if err != nil {
		t.Fatal(err)
	}
	plain, _ := (*Key)(nil).close(make([]byte, 100))
	for _, forged := range [][]byte{forged, plain} {
		if err := os.WriteFile(name, forged, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Read(t.Context(), "vm"); !errors.Is(err, ErrKey) {
			t.Errorf("a forged manifest: %v", err)
		}
	}
}

// What is changed in packs is found before it is unpacked.
func TestChangedPacks(t *testing.T) {
	for _, key := range []*Key{nil, newTestKey(t)} {
		s, dir, m := pushed(t, key)
		name := filepath.Join(dir, "packs", m.Packs[0].Name)
		intact, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		changes := map[string][]byte{"cut": intact[:len(intact)/2], "empty": {}, "longer": append(bytes.Clone(intact), 0)}
		flipped := bytes.Clone(intact)
		flipped[len(flipped)-10] ^= 1
		changes["flipped"] = flipped
		for what, b := range changes {
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
			there := localStore(t)
			err := s.Pull(t.Context(), m, there, path(t, there, "copy"))
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrKey) {
				t.Errorf("%s: %v", what, err)
			}
			if _, err := os.Stat(path(t, there, "copy")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: there is a file: %v", what, err)
			}
		}
	}
}

// Manifests that anyone can make with right hashes.
func TestHostileManifests(t *testing.T) {
	s, _, m := pushed(t, nil)
	encode := func(m *Manifest) []byte {
		b, err := s.encodeManifest("snapshots/vm", m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, change := range map[string]func(m *Manifest){
		"no snapshot":        func(m *Manifest) { m.Top = nil },
		"no base":            func(m *Manifest) { m.Base = nil },
		"base of itself":     func(m *Manifest) { m.Base = m.Top },
		"no pack":            func(m *Manifest) { m.Packs = nil },
		"pack elsewhere":     func(m *Manifest) { m.Packs[0].Name = "../snapshots/vm" },
		"huge pack":          func(m *Manifest) { m.Packs[0].Size = 1 << 40 },
		"short pack":         func(m *Manifest) { m.Packs[0].Size = 4096 },
		"piece beyond":       func(m *Manifest) { binary.LittleEndian.PutUint32(m.Top.Places[4:], packSize-1) },
		"piece in no pack":   func(m *Manifest) { binary.LittleEndian.PutUint32(m.Top.Places, 1<<31) },
		"fewer pieces":       func(m *Manifest) { m.Top.Places = m.Top.Places[placeSize:] },
		"more pieces":        func(m *Manifest) { m.Top.Places = append(m.Top.Places, m.Top.Places...) },
		"cut outline":        func(m *Manifest) { m.Top.Outline = m.Top.Outline[:4500] },
		"changed outline":    func(m *Manifest) { m.Top.Outline[4096+200] ^= 1 },
		"image beyond":       func(m *Manifest) { m.Image = &Image{Size: 1 << 50, Places: m.Top.Places} },
		"image without size": func(m *Manifest) { m.Image = &Image{Places: m.Top.Places} },
	} {
		var changed Manifest
		b, err := json.Marshal(m)
		if err == nil {
			err = json.Unmarshal(b, &changed)
		}
		if err != nil {
			t.Fatal(err)
		}
		change(&changed)
		if m, err := s.decodeManifest("snapshots/vm", encode(&changed)); err == nil {
			t.Errorf("%s: accepted: %+v", name, m.Packs)
		}
	}
	// A small object that becomes large.
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	bomb := z.EncodeAll(make([]byte, 100<<20), nil)
	sum := (*Key)(nil).sum("", bomb)
	object, _ := (*Key)(nil).close(append(sum[:], bomb...))
	if _, err := s.decodeManifest("snapshots/vm", object); !errors.Is(err, ErrDamaged) {
		t.Errorf("a bomb: %v", err)
	}
	// A memory whose pieces are one piece, again and again.
	large := &Manifest{Packs: []Pack{{Name: m.Packs[0].Name, Size: packSize, Stored: 100}}, Top: m.Top}
	large.Image = &Image{Size: 40 << 30}
	if err := s.fits(large); !errors.Is(err, snapshot.ErrLimit) {
		t.Errorf("more than is allowed: %v", err)
	}
}

func FuzzManifest(f *testing.F) {
	s, _, m := pushed(f, nil)
	b, err := json.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"packs":[],"top":{}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		b, err := s.compress(b)
		if err != nil {
			t.Fatal(err)
		}
		sum := s.key.sum("", b)
		object, err := s.key.close(append(sum[:], b...))
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.decodeManifest("snapshots/vm", object)
		if err != nil {
			return
		}
		for i, p := range m.Top.places {
			if int(p.offset)+m.Top.outline.Size(i) > m.Packs[p.pack].Size {
				t.Error("a piece is beyond its pack")
			}
		}
		there := localStore(t)
		_ = s.Pull(t.Context(), m, there, path(t, there, "copy"))
	})
}
