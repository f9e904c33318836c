package images

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/erofs/go-erofs"
	"github.com/google/go-cmp/cmp"
)

// entry is one entry of a test archive.
type entry struct {
	tar.Header
	content []byte
}

// makeTar writes entries as a plain tar archive.
func makeTar(t testing.TB, entries []entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		e.Header.Size = int64(len(e.content))
		e.Header.Format = tar.FormatPAX
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// buildDisk builds a root disk of archive in a file.
func buildDisk(t testing.TB, archive []byte) (string, diskFacts) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "root.erofs")
	var own, plain bytes.Buffer
	facts, err := buildRootDisk(context.Background(), &own, Limits{}, archiveTo(bytes.NewReader(archive), &plain))
	if err != nil {
		t.Fatal(err)
	}
	assemble(t, file, facts, own.Bytes(), plain.Bytes())
	return file, facts
}

// assemble writes a disk as the guest sees it.
func assemble(t testing.TB, file string, facts diskFacts, sources ...[]byte) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	end := int64(0)
	for _, e := range facts.extents {
		if e.at < end || e.length <= 0 {
			t.Fatalf("extent %+v begins before %d", e, end)
		}
		if _, err := f.WriteAt(sources[e.source][e.offset:e.offset+e.length], e.at); err != nil {
			t.Fatal(err)
		}
		end = e.at + e.length
	}
	if end > facts.Size || facts.Size%blockSize != 0 || facts.own() != int64(len(sources[0])) {
		t.Fatalf("disk of %d bytes is said to have %d, of which %d are its own, not %d", end, facts.Size, facts.own(), len(sources[0]))
	}
	if err := f.Truncate(facts.Size); err != nil {
		t.Fatal(err)
	}
}

// rawDisk writes the disk of a store's image as the guest sees it.
func rawDisk(t testing.TB, s *Store, image *Image) string {
	t.Helper()
	disk, err := s.OpenRootDisk(image)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	f, err := os.Create(filepath.Join(t.TempDir(), "root.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	hash := sha256.New()
	if n, err := io.Copy(io.MultiWriter(f, hash), io.NewSectionReader(disk, 0, disk.Size())); err != nil || n != image.Size {
		t.Fatalf("disk of %d bytes gave %d: %v", image.Size, n, err)
	}
	if former, err := disk.FormerDigest(t.Context()); err != nil || former != fmt.Sprintf("sha256:%x", hash.Sum(nil)) {
		t.Fatalf("disk has the digest %x, said to be %s: %v", hash.Sum(nil), former, err)
	}
	return f.Name()
}

// thing is what a reader of the disk must see at one path.
type thing struct {
	Mode   uint16
	UID    uint32
	GID    uint32
	Sec    int64
	Nsec   uint32
	Links  int
	Size   int64  // of files and symlinks
	Device uint32 // as encoded by deviceNumber
	Data   string // hash of a file's content, a symlink's target
	Xattrs map[string]string
}

// model says what unpacking entries gives: an account of the rules that shares no code with the builder.
func model(entries []entry) map[string]*thing {
	tree := map[string]*thing{".": {Mode: typeDir | 0o755}}
	for _, e := range entries {
		name := path.Clean("./" + e.Name)
		for dir := path.Dir(name); tree[dir] == nil; dir = path.Dir(dir) {
			tree[dir] = &thing{Mode: typeDir | 0o755, Sec: e.ModTime.Unix()}
		}
		if e.Typeflag == tar.TypeLink {
			tree[name] = tree[path.Clean("./"+e.Linkname)]
			continue
		}
		if tree[name] != nil && e.Typeflag != tar.TypeDir {
			for below := range tree {
				if strings.HasPrefix(below, name+"/") {
					delete(tree, below)
				}
			}
		}
		tree[name] = modelThing(e)
	}
	links := map[*thing]int{}
	for _, x := range tree {
		links[x]++
	}
	for name, x := range tree {
		x.Links = links[x]
		if x.Mode&typeMask == typeDir {
			x.Links = 2
			for other, y := range tree {
				if other != "." && path.Dir(other) == name && y.Mode&typeMask == typeDir {
					x.Links++
				}
			}
		}
	}
	return tree
}

func modelThing(e entry) *thing {
	x := &thing{
		Mode: uint16(e.Mode & 0o7777), UID: uint32(e.Uid), GID: uint32(e.Gid),
		Sec: e.ModTime.Unix(), Nsec: uint32(e.ModTime.Nanosecond()),
	}
	for key, value := range e.PAXRecords {
		if x.Xattrs == nil {
			x.Xattrs = map[string]string{}
		}
		x.Xattrs[strings.TrimPrefix(key, "SCHILY.xattr.")] = value
	}
	switch e.Typeflag {
	case tar.TypeReg:
		x.Mode |= typeRegular
		x.Size, x.Data = int64(len(e.content)), hashOf(e.content)
	case tar.TypeDir:
		x.Mode |= typeDir
	case tar.TypeSymlink:
		x.Mode |= typeSymlink
		x.Size, x.Data = int64(len(e.Linkname)), e.Linkname
	case tar.TypeFifo:
		x.Mode |= typeFIFO
	case tar.TypeChar:
		x.Mode |= typeChar
	case tar.TypeBlock:
		x.Mode |= typeBlock
	}
	x.Device = uint32(e.Devminor&0xFF | e.Devmajor<<8 | e.Devminor>>8<<20)
	return x
}

func hashOf(p []byte) string { return fmt.Sprintf("%x", sha256.Sum256(p)) }

// readDisk reads a whole disk with go-erofs, which shares no code with the builder.
func readDisk(t testing.TB, file string) map[string]*thing {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return walkDisk(t, f)
}

func walkDisk(t testing.TB, r io.ReaderAt) map[string]*thing {
	t.Helper()
	disk, err := erofs.Open(r)
	if err != nil {
		t.Fatalf("open disk: %v", err)
	}
	tree := map[string]*thing{}
	err = fs.WalkDir(disk, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		tree[name], err = diskThing(disk, name, info)
		return err
	})
	if err != nil {
		t.Fatalf("walk disk: %v", err)
	}
	return tree
}

func diskThing(disk fs.FS, name string, info fs.FileInfo) (*thing, error) {
	stat := info.Sys().(*erofs.Stat)
	x := &thing{
		Mode: unixMode(info.Mode()), UID: stat.UID, GID: stat.GID, Sec: int64(stat.Mtime), Nsec: stat.MtimeNs,
		Links: stat.Nlink, Device: stat.Rdev, Xattrs: stat.Xattrs,
	}
	if len(x.Xattrs) == 0 {
		x.Xattrs = nil
	}
	switch {
	case info.Mode().IsRegular():
		content, err := fs.ReadFile(disk, name)
		x.Size, x.Data = info.Size(), hashOf(content)
		return x, err
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := disk.(interface{ ReadLink(string) (string, error) }).ReadLink(name)
		x.Size, x.Data = info.Size(), target
		return x, err
	}
	return x, nil
}

func unixMode(mode fs.FileMode) uint16 {
	out := uint16(mode.Perm())
	switch mode.Type() {
	case 0:
		return out | typeRegular
	case fs.ModeDir:
		return out | typeDir
	case fs.ModeSymlink:
		return out | typeSymlink
	case fs.ModeNamedPipe:
		return out | typeFIFO
	case fs.ModeDevice | fs.ModeCharDevice:
		return out | typeChar
	case fs.ModeDevice:
		return out | typeBlock
	}
	return out
}

// fsck runs Debian's checker over a disk. It gives false where there is none.
func fsck(t testing.TB, file string, args ...string) bool {
	t.Helper()
	tool, err := exec.LookPath("fsck.erofs")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("fsck.erofs is missing: install erofs-utils")
		}
		return false
	}
	out, err := exec.Command(tool, append(args, file)...).CombinedOutput()
	if err != nil {
		t.Errorf("fsck.erofs: %v\n%s", err, out)
	}
	return true
}

// checkDisk builds a disk of entries and compares what readers see with the model.
func checkDisk(t testing.TB, entries []entry) string {
	t.Helper()
	file, _ := buildDisk(t, makeTar(t, entries))
	want := model(entries)
	for _, x := range want {
		x.Mode &^= 0o7000 // go-erofs does not read these bits
	}
	if diff := cmp.Diff(want, readDisk(t, file)); diff != "" {
		t.Errorf("disk (-want +got):\n%s", diff)
	}
	return file
}

// failingDisk is a disk that breaks after some bytes.
type failingDisk struct {
	left int64
	err  error
}

func (d *failingDisk) Write(p []byte) (int, error) {
	if d.left -= int64(len(p)); d.left < 0 {
		return 0, d.err
	}
	return len(p), nil
}
