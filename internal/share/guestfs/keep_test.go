//go:build linux

package guestfs_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"testing"

	"agentvm/internal/share/guestfs"
)

// TestCopyInKeeps copies what a tree has beyond contents: several names of a file, holes and, when asked for, owners and the
// bits that go with them.
func TestCopyInKeeps(t *testing.T) {
	for _, test := range []struct {
		name    string
		options guestfs.CopyOptions
		owner   uint32
		special fs.FileMode
	}{
		{"default", guestfs.CopyOptions{}, 0, 0},
		{"owner", guestfs.CopyOptions{Owner: guestfs.Owner{UID: 7, GID: 7}}, 7, 0},
		{"owners kept", guestfs.CopyOptions{KeepOwners: true}, 1234, fs.ModeSetuid | fs.ModeSetgid},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, guest := fakeGuest(t)
			host := t.TempDir()
			src := host + "/src"
			err := errors.Join(os.MkdirAll(src+"/d", 0o755), os.WriteFile(src+"/d/a", []byte("content"), 0o600), os.Link(src+"/d/a", src+"/z"),
				os.WriteFile(src+"/alone", []byte("content"), 0o600), os.Symlink("z", src+"/link"), os.WriteFile(src+"/holes", nil, 0o600),
				os.Truncate(src+"/holes", 32<<20))
			for _, name := range []string{"", "/d", "/d/a", "/alone", "/link", "/holes"} {
				err = errors.Join(err, os.Lchown(src+name, 1234, 1234))
			}
			err = errors.Join(err, os.Chmod(src+"/d/a", 0o755|fs.ModeSetuid|fs.ModeSetgid), os.Chmod(src, 0o755|fs.ModeSetgid),
				os.Chmod(src+"/alone", 0o755|fs.ModeSetuid|fs.ModeSetgid))
			if err != nil {
				t.Fatal(err)
			}
			copied, err := f.CopyTo(limited(t), src, "/to/copy", test.options)
			if err != nil || copied.Entries != 6 || copied.Bytes != 32<<20+14 {
				t.Fatalf("CopyTo = %+v, %v", copied, err)
			}
			if _, err := f.CopyTo(limited(t), src+"/alone", "/to/one", test.options); err != nil {
				t.Fatal(err)
			}
			stat := func(name string) (st syscall.Stat_t) {
				t.Helper()
				if err := syscall.Lstat(guest+"/to/"+name, &st); err != nil {
					t.Fatal(err)
				}
				return st
			}
			for _, name := range []string{"copy", "copy/d", "copy/d/a", "copy/z", "copy/alone", "copy/link", "copy/holes", "one"} {
				if st := stat(name); st.Uid != test.owner || st.Gid != test.owner {
					t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
				}
			}
			for name, want := range map[string]fs.FileMode{"copy/d/a": test.special, "copy/alone": test.special, "one": test.special, "copy": fs.ModeDir | test.special&fs.ModeSetgid} {
				if info, err := os.Lstat(guest + "/to/" + name); err != nil || info.Mode() != 0o755|want {
					t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, 0o755|want)
				}
			}
			if a, z := stat("copy/d/a"), stat("copy/z"); a.Ino != z.Ino || a.Nlink != 2 || stat("copy/alone").Ino == a.Ino {
				t.Errorf("the two names are of files %d and %d, with %d names", a.Ino, z.Ino, a.Nlink)
			}
			if st := stat("copy/holes"); st.Size != 32<<20 || st.Blocks*512 > 1<<20 {
				t.Errorf("%d bytes of zeros take %d", st.Size, st.Blocks*512)
			}
		})
	}
}

// A file with holes has them again on the host, alone and in a tree.
func TestCopyOutKeepsHoles(t *testing.T) {
	f, guest := fakeGuest(t)
	content := make([]byte, 8<<20)
	copy(content[5<<20-3:], "data")
	if err := errors.Join(os.Mkdir(guest+"/d", 0o755), os.WriteFile(guest+"/d/f", content, 0o600)); err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	for from, path := range map[string]string{"/d/f": to + "/alone", "/d": to + "/tree"} {
		if _, err := f.CopyFrom(limited(t), from, path, guestfs.CopyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{to + "/alone", to + "/tree/f"} {
		var st syscall.Stat_t
		b, err := os.ReadFile(path)
		if err = errors.Join(err, syscall.Stat(path, &st)); err != nil || !bytes.Equal(b, content) {
			t.Fatalf("%s: %d bytes that are not those of the original, %v", path, len(b), err)
		}
		if taken := st.Blocks * 512; taken > 1<<20 {
			t.Errorf("%s takes %d bytes of the disk", path, taken)
		}
	}
}

// TestCopyInWithOwnerToNowhere refuses a single file whose directory is not there, as without owners.
func TestCopyInWithOwnerToNowhere(t *testing.T) {
	f, guest := fakeGuest(t)
	file := t.TempDir() + "/f"
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.CopyTo(limited(t), file, "/none/f", guestfs.CopyOptions{KeepOwners: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("CopyTo = %v", err)
	}
	if entries, err := os.ReadDir(guest); err != nil || len(entries) > 0 {
		t.Errorf("there are %v, %v", entries, err)
	}
}
