package snapshot

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"agentvm/internal/test/smalldisk"
)

// TestWithoutHoles: a store on a file system without holes and hard links has a key, files take what is in them, and layered ones what has changed.
func TestWithoutHoles(t *testing.T) { smalldisk.RunExfat(t, 64<<20, storeWithoutHoles) }

func storeWithoutHoles(t *testing.T, dir string) {
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	const most = 1 << 20 // what may be in use for some pages, with directories
	var pages []int
	for page := 0; page < 100_000; page += 10_000 {
		pages = append(pages, page)
	}
	m := newMemory(100_000*PageSize, pages...)
	used := smalldisk.Used(t, dir)
	took := func(what string, most int64) {
		t.Helper()
		now := smalldisk.Used(t, dir)
		if now-used > most {
			t.Errorf("%s takes %d KiB, want at most %d", what, (now-used)>>10, most>>10)
		}
		used = now
	}
	if err := s.WriteBase(t.Context(), "key", content(m)); err != nil {
		t.Fatal(err)
	}
	took("a base", most)
	base, err := s.Base("key")
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	if !base.Own() {
		t.Error("the store has no key")
	}
	changed := append(memory(nil), m...)
	changed.scribble(55_555, 1)
	c := layer(changed, base, m)
	c.Disk, c.DiskSize = bytes.NewReader(newMemory(10_000*PageSize, 7)), 10_000*PageSize
	if err := s.Create(t.Context(), "layered", c); err != nil {
		t.Fatal(err)
	}
	took("one on it", most)
	f, err := s.Open("layered")
	if err != nil {
		t.Fatal(err)
	}
	checkMemory(t, f, changed)
	if !f.Own() {
		t.Error("it is untrusted")
	}
	var stream bytes.Buffer
	if err := errors.Join(f.Export(t.Context(), &stream), f.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.Import(t.Context(), &stream, "imported", ImportLimits{}); err != nil {
		t.Fatal(err)
	}
	took("imported, with the base's pages", most)
	if err := errors.Join(s.Remove(t.Context(), "layered"), s.Remove(t.Context(), "imported"), base.Close(), os.Remove(base.Path())); err != nil {
		t.Error(err)
	}
}
