package wasi

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// entryOf is an entry that fd_readdir returned.
type entryOf struct {
	Name string
	Type Filetype
}

// list reads a directory with buffers of a size and returns the entries in order, and their inodes.
func (g *guest) list(fd uint64, size int) (entries []entryOf, inodes map[string]uint64) {
	g.Helper()
	buf, n := g.alloc(size), g.alloc(4)
	inodes = map[string]uint64{}
	for cookie, last := uint64(0), false; !last; {
		g.want(ErrnoSuccess, "fd_readdir", fd, buf, uint64(size), cookie, n)
		b := g.bytes(buf, int(g.u32(n)))
		last = len(b) < size
		whole := 0
		for len(b) >= direntSize && len(b) >= direntSize+int(le.Uint32(b[16:])) {
			end := direntSize + int(le.Uint32(b[16:]))
			name := string(b[direntSize:end])
			entries = append(entries, entryOf{name, Filetype(b[20])})
			inodes[name] = le.Uint64(b[8:])
			cookie = le.Uint64(b)
			b = b[end:]
			whole++
		}
		if whole == 0 && !last {
			g.Fatalf("no whole entry fits into %d bytes", size)
		}
	}
	return entries, inodes
}

func TestReaddir(t *testing.T) {
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, "b=x", "a/", "link->b", strings.Repeat("n", 100)+"=")
	want := []entryOf{
		{".", FiletypeDirectory}, {"..", FiletypeDirectory}, {"a", FiletypeDirectory}, {"b", FiletypeRegularFile},
		{"link", FiletypeSymbolicLink}, {strings.Repeat("n", 100), FiletypeRegularFile},
	}
	for _, size := range []int{124, 130, 200, 4096} {
		got, inodes := g.list(3, size)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("with %d bytes (-want +got):\n%s", size, diff)
		}
		if st, _ := g.stat("b", 0); st.Ino != inodes["b"] || st.Ino == 0 {
			t.Errorf("inode %d in the directory, %d of the file", inodes["b"], st.Ino)
		}
	}
	buf, n := g.alloc(64), g.alloc(4)
	for _, c := range []struct {
		name             string
		fd, size, cookie uint64
		want             Errno
		used             uint32
	}{
		{"cut head", 3, 10, 0, ErrnoSuccess, 10},
		{"cut name", 3, 26, 1, ErrnoSuccess, 26},
		{"no room", 3, 0, 0, ErrnoSuccess, 0},
		{"cookie after the end", 3, 64, 6, ErrnoSuccess, 0},
		{"huge cookie", 3, 64, 1<<64 - 1, ErrnoSuccess, 0},
		{"not open", 9, 64, 0, ErrnoBadf, 0},
		{"outside of memory", 3, 1 << 31, 0, ErrnoFault, 0},
	} {
		clear(g.bytes(n, 4))
		if got := g.call("fd_readdir", c.fd, buf, c.size, c.cookie, n); got != c.want || g.u32(n) != c.used {
			t.Errorf("%s: %v with %d bytes, want %v with %d", c.name, got, g.u32(n), c.want, c.used)
		}
	}
	makeTree(t, dir, "c=")
	if got, _ := g.list(3, 4096); !slices.Contains(got, entryOf{"c", FiletypeRegularFile}) {
		t.Error("cookie 0 does not read the directory again")
	}
	g.want(ErrnoNotdir, "fd_readdir", g.mustOpen("b", 0, rightsRW, 0), buf, 64, 0, n)
}
