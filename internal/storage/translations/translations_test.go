package translations

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/host/atomicfile"
)

type pieces = map[[sha256.Size]byte][]byte

func nameOf(n int) [sha256.Size]byte {
	return sha256.Sum256(binary.BigEndian.AppendUint32(nil, uint32(n)))
}

// contents are those of a piece, by its number and which translation of the page it is.
func contents(n, version int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%d, %d\n", n, version), 50)
}

func some(first, count, version int) pieces {
	p := pieces{}
	for n := first; n < first+count; n++ {
		p[nameOf(n)] = contents(n, version)
	}
	return p
}

var testKey = bytes.Repeat([]byte{7}, 32)

func config(dir string) Config {
	return Config{Dir: dir, Key: func() []byte { return testKey }, Build: "one"}
}

// wants checks that a new process finds pieces of one version.
func wants(t *testing.T, c Config, first, count, version int) {
	t.Helper()
	s := Open(c)
	for n := first; n < first+count; n++ {
		if got := s.Load(nameOf(n)); !bytes.Equal(got, contents(n, version)) {
			t.Errorf("piece %d is %.20q, want %.20q", n, got, contents(n, version))
			return
		}
	}
}

func wantsNone(t *testing.T, c Config, n int) {
	t.Helper()
	if got := Open(c).Load(nameOf(n)); got != nil {
		t.Errorf("piece %d is %.20q, want none", n, got)
	}
}

func packsIn(t *testing.T, dir string) []packFile {
	t.Helper()
	list, err := packFiles(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestKept: what one process has saved others find, the newest of each name, and only those of the same build that have the key.
func TestKept(t *testing.T) {
	c := config(filepath.Join(t.TempDir(), Folder))
	s := Open(c)
	if s.Load(nameOf(1)) != nil {
		t.Error("an empty store has a piece")
	}
	s.Save(some(0, 100, 1))
	wants(t, c, 0, 100, 1)
	s.Save(some(50, 50, 2))
	s.Save(some(100, 3000, 1)) // which is merged with what is smaller
	wants(t, c, 0, 50, 1)
	wants(t, c, 50, 50, 2)
	wants(t, c, 100, 3000, 1)
	wantsNone(t, c, 5000)
	other := c
	other.Build = "another"
	wantsNone(t, other, 1)
	other = c
	other.Key = func() []byte { return nil }
	wantsNone(t, other, 1)
	wants(t, c, 0, 50, 1)
	if info, err := os.Stat(c.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder is %v, %v", info.Mode(), err)
	}
}

// TestSeenLater: a process that has looked already finds what another one saves, not at once.
func TestSeenLater(t *testing.T) {
	c := config(t.TempDir())
	ownerOnly(t, c.Dir)
	early := Open(c)
	if early.Load(nameOf(1)) != nil {
		t.Fatal("an empty store has a piece")
	}
	Open(c).Save(some(0, 10, 1))
	l := *early.listed.Load()
	l.at = l.at.Add(-2 * listedFor)
	early.listed.Store(&l)
	if got := early.Load(nameOf(1)); !bytes.Equal(got, contents(1, 1)) {
		t.Errorf("%.20q", got)
	}
	Open(c).Save(some(10, 100, 1)) // the pack that is open is merged
	for n := range 10 {
		if got := early.Load(nameOf(n)); got != nil && !bytes.Equal(got, contents(n, 1)) {
			t.Errorf("%.20q", got)
		}
	}
}

// ownerOnly gives a folder of tests the mode that a store's has.
func ownerOnly(t *testing.T, dir string) {
	t.Helper()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}

// TestForged: whatever is written into the folder without the key, nothing is found but what was saved by that name, and the file is removed
// when that is noticed.
func TestForged(t *testing.T) {
	c := config(t.TempDir())
	ownerOnly(t, c.Dir)
	Open(c).Save(some(0, 3, 1))
	list := packsIn(t, c.Dir)
	if len(list) != 1 {
		t.Fatalf("%d packs, want one", len(list))
	}
	path := filepath.Join(c.Dir, list[0].name)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	foreign := config(t.TempDir())
	ownerOnly(t, foreign.Dir)
	foreign.Key = func() []byte { return testKey[:31] }
	Open(foreign).Save(some(0, 3, 2))
	theirs, err := os.ReadFile(filepath.Join(foreign.Dir, packsIn(t, foreign.Dir)[0].name))
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, b []byte, mayStay bool) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s := Open(c)
		for n := range 3 {
			if got := s.Load(nameOf(n)); got != nil && !bytes.Equal(got, contents(n, 1)) {
				t.Errorf("%s: found %.20q", what, got)
			}
		}
		if _, err := os.Lstat(path); err == nil && !mayStay {
			t.Errorf("%s: the file is still there", what)
		}
	}
	for at := range good {
		bad := bytes.Clone(good)
		bad[at] ^= 0x81
		check(fmt.Sprint("byte ", at), bad, at >= markAt && at < markAt+markSize)
	}
	for n := 0; n < len(good); n += 7 {
		check(fmt.Sprint("cut at ", n), good[:n], false)
	}
	check("foreign", theirs, false)
	check("zeros", make([]byte, len(good)), false)
	check("longer", append(bytes.Clone(good), good...), true)
	huge := bytes.Clone(good)
	copy(huge[8:], "\xff\xff\xff\xff")
	check("a huge index", huge, false)
	check("whole", good, true)
	wants(t, c, 0, 3, 1)
}

// TestBound: all packs together stay within the bound, whatever builds they are of; those that were used last stay.
func TestBound(t *testing.T) {
	c := config(t.TempDir())
	ownerOnly(t, c.Dir)
	c.Limit = 120 << 10
	ages := []string{"old", "older", "used"}
	for i, build := range ages {
		other := c
		other.Build = build
		Open(other).Save(some(0, 100, 1)) // 32 KB
		for _, f := range packsIn(t, c.Dir) {
			if strings.HasPrefix(f.name, Open(other).prefix()) {
				at := time.Now().Add(-24 * time.Hour * time.Duration(i+1))
				if err := os.Chtimes(filepath.Join(c.Dir, f.name), at, at); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	used := c
	used.Build = "used"
	wants(t, used, 0, 100, 1)
	Open(c).Save(some(0, 150, 1))
	total := int64(0)
	for _, f := range packsIn(t, c.Dir) {
		total += f.size
	}
	if total > c.Limit || total < c.Limit/3 {
		t.Errorf("%d bytes are kept, of at most %d", total, c.Limit)
	}
	wants(t, c, 0, 150, 1)
	wants(t, used, 0, 100, 1)
	for _, build := range ages[:2] {
		other := c
		other.Build = build
		if Open(other).Load(nameOf(1)) != nil && build == "older" {
			t.Errorf("the pack of %q is still there", build)
		}
	}
	small := c
	small.Limit = 1
	Open(small).Save(some(0, 10, 2)) // stays although it is too large
	wants(t, c, 0, 10, 2)
}

// TestFewPacks: many small batches become few packs.
func TestFewPacks(t *testing.T) {
	c := config(t.TempDir())
	ownerOnly(t, c.Dir)
	s := Open(c)
	for i := range 100 {
		s.Save(some(10*i, 10, i))
	}
	if n := len(packsIn(t, c.Dir)); n > 8 {
		t.Errorf("%d packs", n)
	}
	for i := range 100 {
		wants(t, c, 10*i, 10, i)
	}
}

// TestLeftovers: what killed processes and others have left in the folder does no harm, and temporary files go.
func TestLeftovers(t *testing.T) {
	c := config(t.TempDir())
	ownerOnly(t, c.Dir)
	s := Open(c)
	s.Save(some(0, 10, 1))
	f, err := atomicfile.Create(filepath.Join(c.Dir, s.prefix()+"x.pack"))
	if err != nil {
		t.Fatal(err)
	}
	temporary := f.Name()
	if _, err := f.WriteString("half a pack"); err != nil {
		t.Fatal(err)
	}
	if err := f.File.Close(); err != nil { // as a killed process leaves it: without its lock
		t.Fatal(err)
	}
	for _, name := range []string{"something", s.prefix() + "0.pack"} {
		if err := os.WriteFile(filepath.Join(c.Dir, name), []byte("of others"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(c.Dir, s.prefix()+"1.pack"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(c.Dir, s.prefix()+"2.pack")); err != nil {
		t.Log(err) // Windows
	}
	wants(t, c, 0, 10, 1)
	Open(c).Save(some(10, 10, 1))
	wants(t, c, 0, 20, 1)
	if _, err := os.Lstat(filepath.Join(c.Dir, filepath.Base(temporary))); err == nil {
		t.Error("the temporary file is still there")
	}
	if _, err := os.Lstat(filepath.Join(c.Dir, s.prefix()+"0.pack")); err == nil {
		t.Error("a pack that is none is still there")
	}
}

// TestFolderIsGone: without the folder nothing is found or kept, and no error is returned.
func TestFolderIsGone(t *testing.T) {
	c := config(filepath.Join(t.TempDir(), Folder))
	s := Open(c)
	s.Save(some(0, 10, 1))
	if s.Load(nameOf(1)) == nil {
		t.Error("nothing was kept")
	}
	if err := os.RemoveAll(c.Dir); err != nil {
		t.Skip(err) // Windows removes no open file
	}
	s.Save(some(10, 10, 1))
	if !s.broken.Load() {
		t.Error("the store tries again and again")
	}
	s.Save(some(10, 10, 1))
	if s.Load(nameOf(11)) != nil {
		t.Error("there is something in a folder that is not there")
	}
	nowhere := config(filepath.Join(t.TempDir(), "not", "there"))
	Open(nowhere).Save(some(0, 10, 1))
	wantsNone(t, nowhere, 1)
}

// TestOthersMayNotWrite: a folder that other users can write to is not used.
func TestOthersMayNotWrite(t *testing.T) {
	if os.PathSeparator == '\\' {
		t.Skip("Windows has access lists")
	}
	c := config(t.TempDir())
	ownerOnly(t, c.Dir)
	Open(c).Save(some(0, 10, 1))
	if err := os.Chmod(c.Dir, 0o777); err != nil {
		t.Fatal(err)
	}
	wantsNone(t, c, 1)
	Open(c).Save(some(10, 10, 1))
	ownerOnly(t, c.Dir)
	wants(t, c, 0, 10, 1)
	wantsNone(t, c, 10)
}

// TestTogether: several processes save, merge, evict and look for pieces at once; whatever is found is what was saved by that name.
func TestTogether(t *testing.T) {
	c := config(t.TempDir())
	ownerOnly(t, c.Dir)
	c.Limit = 300 << 10
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			s := Open(c)
			for round := range 20 {
				s.Save(some(10*(round%7), 30, 1))
				for n := range 100 {
					if got := s.Load(nameOf(n)); got != nil && !bytes.Equal(got, contents(n, 1)) {
						t.Errorf("piece %d is %.20q", n, got)
					}
				}
				if round%5 == worker {
					s.listed.Store(nil)
				}
			}
			if s.broken.Load() {
				t.Error("a process keeps nothing more")
			}
		})
	}
	all.Wait()
	Open(c).Save(some(0, 10, 2))
	wants(t, c, 0, 10, 2)
}

// TestPrune: counts, then removes, the packs of all builds.
func TestPrune(t *testing.T) {
	c := config(t.TempDir())
	ownerOnly(t, c.Dir)
	if n, size, err := Prune(filepath.Join(c.Dir, "none"), false); n != 0 || size != 0 || err != nil {
		t.Errorf("%d files, %d bytes, %v", n, size, err)
	}
	Open(c).Save(some(0, 10, 1))
	other := c
	other.Build = "another"
	Open(other).Save(some(0, 10, 1))
	for _, dryRun := range []bool{true, false} {
		if n, size, err := Prune(c.Dir, dryRun); n != 2 || size < 2*10*50*5 || err != nil {
			t.Errorf("%d files, %d bytes, %v", n, size, err)
		}
	}
	wantsNone(t, c, 1)
	if n, _, err := Prune(c.Dir, true); n != 0 || err != nil {
		t.Errorf("%d files are left, %v", n, err)
	}
}

// FuzzPack: no file makes a reader fail otherwise than with an error, and without the key none has a piece.
func FuzzPack(f *testing.F) {
	dir := f.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		f.Fatal(err)
	}
	s := Open(config(dir))
	path := filepath.Join(dir, "0.pack")
	if err := writePack(path, seal{testKey, s.build}, some(0, 2, 1)); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		p, file, err := openPack(path, seal{testKey, s.build})
		if err != nil {
			return
		}
		defer file.Close()
		for n := range 3 {
			if got, _ := p.piece(seal{testKey, s.build}, nameOf(n)); got != nil && !bytes.Equal(got, contents(n, 1)) {
				t.Errorf("piece %d is %.20q", n, got)
			}
		}
	})
}

// TestRoom: the last of the disk is for what users write.
func TestRoom(t *testing.T) {
	s := Open(Config{Dir: t.TempDir(), Key: func() []byte { return []byte("key") }, Build: "a"})
	if room, err := s.room(s.config.Dir); room == 0 || err != nil {
		t.Errorf("%d bytes of room, %v", room, err)
	}
	room := uint64(leastRoom - 1)
	s.room = func(string) (uint64, error) { return room, nil }
	name := sha256.Sum256([]byte("a piece"))
	save := func() { s.Save(map[[sha256.Size]byte][]byte{name: []byte("contents")}) }
	save()
	if files, err := os.ReadDir(s.config.Dir); len(files) > 0 || err != nil {
		t.Errorf("a full disk got %v, %v", files, err)
	}
	room++
	save()
	if got := s.Load(name); string(got) != "contents" {
		t.Errorf("with room %q was kept", got)
	}
}
