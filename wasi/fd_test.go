package wasi

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// write and read call fd_write and fd_read with one buffer.
func (g *guest) write(fd uint64, s string) Errno {
	g.Helper()
	vec, buf := g.iovec(len(s))
	copy(g.bytes(buf, len(s)), s)
	return g.call("fd_write", fd, vec, 1, g.alloc(4))
}

func (g *guest) read(fd uint64, size int) (string, Errno) {
	g.Helper()
	vec, buf := g.iovec(size)
	n := g.alloc(4)
	errno := g.call("fd_read", fd, vec, 1, n)
	return string(g.bytes(buf, int(g.u32(n)))), errno
}

func (g *guest) seek(fd uint64, offset int64, whence uint64) (uint64, Errno) {
	g.Helper()
	res := g.alloc(8)
	errno := g.call("fd_seek", fd, uint64(offset), whence, res)
	return g.u64(res), errno
}

// rights returns what fd_fdstat_get says.
func (g *guest) fdstat(fd uint64) (typ Filetype, flags Fdflags, base, inheriting Rights) {
	g.Helper()
	res := g.alloc(fdstatSize)
	g.want(ErrnoSuccess, "fd_fdstat_get", fd, res)
	b := g.bytes(res, fdstatSize)
	return Filetype(b[0]), Fdflags(le.Uint16(b[2:])), Rights(le.Uint64(b[8:])), Rights(le.Uint64(b[16:]))
}

func TestReadWriteRights(t *testing.T) {
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, "file=content")
	for _, c := range []struct {
		name                    string
		rights                  Rights
		read, write, pread, pwr Errno
	}{
		{"read", RightFdRead, ErrnoSuccess, ErrnoBadf, ErrnoSuccess, ErrnoBadf},
		{"write", RightFdWrite, ErrnoBadf, ErrnoSuccess, ErrnoBadf, ErrnoSuccess},
		{"both", RightFdRead | RightFdWrite, ErrnoSuccess, ErrnoSuccess, ErrnoSuccess, ErrnoSuccess},
		{"neither", 0, ErrnoBadf, ErrnoBadf, ErrnoBadf, ErrnoBadf},
	} {
		t.Run(c.name, func(t *testing.T) {
			g.TB = t
			g.reset()
			fd := g.mustOpen("file", 0, uint64(c.rights), 0)
			vec, _ := g.iovec(2)
			n := g.alloc(4)
			g.want(c.read, "fd_read", fd, vec, 1, n)
			g.want(c.write, "fd_write", fd, vec, 1, n)
			g.want(c.pread, "fd_pread", fd, vec, 1, 0, n)
			g.want(c.pwr, "fd_pwrite", fd, vec, 1, 0, n)
			if _, _, base, _ := g.fdstat(fd); base&(RightFdRead|RightFdWrite) != c.rights {
				t.Errorf("rights %b, want %b of reading and writing", base, c.rights)
			}
			g.want(ErrnoSuccess, "fd_close", fd)
			g.want(ErrnoBadf, "fd_close", fd)
		})
	}
}

func TestDroppedRights(t *testing.T) {
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, "file=content")
	_, _, base, inheriting := g.fdstat(3)
	if base&RightFdFilestatSetSize != 0 {
		t.Error("a directory says that its own size can be set")
	}
	base &^= RightPathFilestatSetSize
	g.want(ErrnoSuccess, "fd_fdstat_set_rights", 3, uint64(base), uint64(inheriting))
	g.want(ErrnoNotcapable, "fd_fdstat_set_rights", 3, uint64(base|RightPathFilestatSetSize), uint64(inheriting))
	if _, errno := g.openAt(3, "file", 0, oflagTrunc, 0, 0); errno != ErrnoPerm {
		t.Errorf("truncating without the right: %v", errno)
	}
	inheriting &^= RightFdWrite
	g.want(ErrnoSuccess, "fd_fdstat_set_rights", 3, uint64(base), uint64(inheriting))
	if _, errno := g.openAt(3, "file", 0, 0, rightsRW, 0); errno != ErrnoPerm {
		t.Errorf("opening for writing without the right: %v", errno)
	}
}

func TestSeekTellTruncate(t *testing.T) {
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, "file=0123456789", "dir/")
	fd := g.mustOpen("file", 0, rightsRW, 0)
	for _, c := range []struct {
		offset int64
		whence uint64
		pos    uint64
		errno  Errno
	}{
		{4, 0, 4, 0}, {2, 1, 6, 0}, {-1, 2, 9, 0}, {100, 0, 100, 0}, {-101, 1, 0, ErrnoInval}, {-1, 0, 0, ErrnoInval}, {0, 3, 0, ErrnoInval}, {0, 1, 100, 0},
	} {
		pos, errno := g.seek(fd, c.offset, c.whence)
		if errno != c.errno || pos != c.pos {
			t.Errorf("seek(%d, %d) = %d, %v, want %d, %v", c.offset, c.whence, pos, errno, c.pos, c.errno)
		}
	}
	res := g.alloc(8)
	g.want(ErrnoSuccess, "fd_tell", fd, res)
	if g.u64(res) != 100 {
		t.Errorf("tell = %d", g.u64(res))
	}
	g.want(ErrnoSuccess, "fd_filestat_set_size", fd, 3)
	g.want(ErrnoInval, "fd_filestat_set_size", fd, 1<<63)
	g.want(ErrnoSuccess, "fd_allocate", fd, 0, 2) // never shrinks
	g.want(ErrnoSuccess, "fd_allocate", fd, 2, 4)
	g.want(ErrnoInval, "fd_allocate", fd, 0, 0)
	g.want(ErrnoFbig, "fd_allocate", fd, 1<<63-1, 1<<63-1)
	if got, _ := os.ReadFile(filepath.Join(dir, "file")); string(got) != "012\x00\x00\x00" {
		t.Errorf("file is %q", got)
	}
	g.want(ErrnoSuccess, "fd_advise", fd, 0, 10, 3)
	g.want(ErrnoInval, "fd_advise", fd, 0, 10, 6)
	g.want(ErrnoSuccess, "fd_sync", fd)
	g.want(ErrnoSuccess, "fd_datasync", fd)
}

// A directory's descriptor is none that can be read or written.
func TestDirectoryIsNoFile(t *testing.T) {
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, "dir/")
	fd := g.mustOpen("dir", oflagDirectory, 0, 0)
	vec, _ := g.iovec(8)
	res := g.alloc(64)
	for _, fd := range []uint64{3, fd} {
		g.want(ErrnoBadf, "fd_read", fd, vec, 1, res)
		g.want(ErrnoBadf, "fd_write", fd, vec, 1, res)
		g.want(ErrnoBadf, "fd_pread", fd, vec, 1, 0, res)
		g.want(ErrnoBadf, "fd_pwrite", fd, vec, 1, 0, res)
		g.want(ErrnoBadf, "fd_seek", fd, 0, 1, res)
		g.want(ErrnoBadf, "fd_tell", fd, res)
		g.want(ErrnoBadf, "fd_allocate", fd, 0, 1)
		g.want(ErrnoBadf, "fd_advise", fd, 0, 1, 0)
		g.want(ErrnoBadf, "fd_filestat_set_size", fd, 0)
		g.want(ErrnoBadf, "fd_fdstat_set_flags", fd, uint64(FdAppend))
		g.want(ErrnoNotsock, "sock_shutdown", fd, 1)
		g.want(ErrnoSuccess, "fd_filestat_get", fd, res)
		g.want(ErrnoSuccess, "fd_sync", fd)
	}
	if _, errno := g.openAt(g.mustOpen("f", oflagCreat, 0, 0), "x", 0, 0, 0, 0); errno != ErrnoNotdir {
		t.Errorf("opening below a file's descriptor: %v", errno)
	}
	if _, errno := g.openAt(99, "x", 0, 0, 0, 0); errno != ErrnoBadf {
		t.Errorf("opening below no descriptor: %v", errno)
	}
}

func TestAppend(t *testing.T) {
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, "file=abc")
	fd := g.mustOpen("file", 0, rightsRW, uint64(FdAppend))
	if _, flags, _, _ := g.fdstat(fd); flags != FdAppend {
		t.Errorf("flags %b", flags)
	}
	step := func(errno Errno) {
		t.Helper()
		if errno != ErrnoSuccess {
			t.Fatal(errno)
		}
	}
	step(g.write(fd, "def"))
	g.want(ErrnoSuccess, "fd_fdstat_set_flags", fd, 0)
	_, errno := g.seek(fd, 0, 0)
	step(errno)
	step(g.write(fd, "A"))
	g.want(ErrnoSuccess, "fd_fdstat_set_flags", fd, uint64(FdAppend|FdNonblock))
	step(g.write(fd, "g"))
	g.want(ErrnoInval, "fd_fdstat_set_flags", fd, uint64(FdSync))
	vec, buf := g.iovec(1)
	copy(g.bytes(buf, 1), "B")
	g.want(ErrnoSuccess, "fd_pwrite", fd, vec, 1, 1, g.alloc(4))
	if got, _ := os.ReadFile(filepath.Join(dir, "file")); string(got) != "AbcdefgB" {
		t.Errorf("file is %q", got)
	}
}

func TestVectors(t *testing.T) {
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, "file=0123456789")
	fd := g.mustOpen("file", 0, rightsRW, 0)
	vec, buf := g.iovec(3, 0, 4)
	n := g.alloc(4)
	g.want(ErrnoSuccess, "fd_pread", fd, vec, 3, 2, n)
	if got := string(g.bytes(buf, 7)); g.u32(n) != 7 || got != "2345678" {
		t.Errorf("pread %d %q", g.u32(n), got)
	}
	g.want(ErrnoSuccess, "fd_pwrite", fd, vec, 3, 0, n)
	g.want(ErrnoSuccess, "fd_read", fd, vec, 3, n)
	if got := string(g.bytes(buf, 7)); got != "2345678" {
		t.Errorf("read %q", got)
	}
	g.want(ErrnoSuccess, "fd_read", fd, vec, 3, n)
	if g.u32(n) != 3 {
		t.Errorf("read %d bytes at the end, want 3", g.u32(n))
	}
	g.want(ErrnoInval, "fd_pread", fd, vec, 1, 1<<63, n)
	g.want(ErrnoSuccess, "fd_read", fd, vec, 0, n)

	size := uint64(g.mod.Memory().Size())
	bad, _ := g.iovec(1, 1)
	le.PutUint32(g.bytes(bad+8, 4), uint32(size-1))
	le.PutUint32(g.bytes(bad+12, 4), 2)
	for _, c := range []struct {
		name   string
		params []uint64
		want   Errno
	}{
		{"buffer over the end", []uint64{fd, bad, 2, n}, ErrnoFault},
		{"vector over the end", []uint64{fd, size - 8, 2, n}, ErrnoFault},
		{"vector outside", []uint64{fd, size, 1, n}, ErrnoFault},
		{"result outside", []uint64{fd, vec, 3, size - 2}, ErrnoFault},
		{"count wraps", []uint64{fd, 0, 0x20000001, n}, ErrnoInval},
		{"upper halves are ignored", []uint64{fd | 7<<32, vec | 7<<32, 1 | 7<<32, n | 7<<32}, ErrnoSuccess},
	} {
		for _, f := range []string{"fd_read", "fd_write"} {
			if got := g.call(f, c.params...); got != c.want {
				t.Errorf("%s: %s = %v, want %v", f, c.name, got, c.want)
			}
		}
	}
}

func TestRenumber(t *testing.T) {
	g, dir := newDirGuest(t, false)
	makeTree(t, dir, "a=a", "b=b")
	a, b := g.mustOpen("a", 0, rightsRW, 0), g.mustOpen("b", 0, rightsRW, 0)
	g.want(ErrnoBadf, "fd_renumber", a, 77)
	g.want(ErrnoBadf, "fd_renumber", 77, a)
	g.want(ErrnoSuccess, "fd_renumber", a, a)
	g.want(ErrnoSuccess, "fd_renumber", a, b)
	g.want(ErrnoBadf, "fd_close", a)
	if got, errno := g.read(b, 8); got != "a" || errno != ErrnoSuccess {
		t.Errorf("read %q, %v from the renumbered descriptor", got, errno)
	}
	if c := g.mustOpen("b", 0, rightsRW, 0); c != a {
		t.Errorf("next descriptor is %d, want the lowest free, %d", c, a)
	}
	self := g.mustOpen(".", oflagDirectory, 0, 0)
	g.want(ErrnoSuccess, "fd_renumber", self, 3) // over a preopen
	if _, errno := g.openAt(3, "a", 0, 0, 0, 0); errno != ErrnoSuccess {
		t.Errorf("open below the replaced preopen: %v", errno)
	}
	g.want(ErrnoBadf, "fd_prestat_get", 3, g.alloc(8))
}

// A file that notifies must do so under the number it has now.
func TestRenumberedStreamNotifies(t *testing.T) {
	g := newGuest(t, Config{})
	st := NewStream(8)
	g.sys.SetFile(5, st)
	g.sys.SetFile(6, NewStream(8))
	g.want(ErrnoSuccess, "fd_renumber", 5, 6)
	if _, err := st.Host().Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if got := g.sys.TakeReady(); got != 1<<6 {
		t.Errorf("ready %#x, want bit 6", got)
	}
}

func TestPrestat(t *testing.T) {
	g, _ := newDirGuest(t, false)
	g.preopen(4, "/data", t.TempDir(), false)
	g.sys.SetFile(0, NewInput(nil))
	g.sys.SetFile(5, NewListener())
	res, name := g.alloc(8), g.alloc(8)
	g.want(ErrnoSuccess, "fd_prestat_get", 4, res)
	if g.u32(res) != prestatDir || g.u32(res+4) != 5 {
		t.Errorf("prestat %d, length %d", g.u32(res), g.u32(res+4))
	}
	g.want(ErrnoSuccess, "fd_prestat_dir_name", 4, name, 5)
	if got := string(g.bytes(name, 6)); got != "/data\x00" {
		t.Errorf("name %q", got)
	}
	g.want(ErrnoNametoolong, "fd_prestat_dir_name", 4, name, 4)
	g.want(ErrnoSuccess, "fd_prestat_get", 5, res)
	if g.u32(res) == prestatDir {
		t.Error("a socket says that it is a directory")
	}
	g.want(ErrnoBadf, "fd_prestat_dir_name", 5, name, 8)
	g.want(ErrnoBadf, "fd_prestat_get", 0, res)
	g.want(ErrnoBadf, "fd_prestat_get", 6, res)
	g.want(ErrnoBadf, "fd_prestat_get", 1<<32-1, res)
}

func TestStandardStreams(t *testing.T) {
	var out bytes.Buffer
	g := newGuest(t, Config{Args: []string{"prog", "", "ü"}, Env: []string{"A=1"}})
	g.sys.SetFile(0, NewInput(strings.NewReader("hello")))
	g.sys.SetFile(1, NewOutput(&out))
	g.sys.SetFile(2, NewOutput(nil))
	for fd := range uint64(3) {
		g.want(ErrnoSpipe, "fd_seek", fd, 0, 1, 16)
		g.want(ErrnoSpipe, "fd_tell", fd, 16)
		if _, _, base, _ := g.fdstat(fd); base&(RightFdSeek|RightFdTell) != 0 {
			t.Errorf("descriptor %d says that it can seek", fd)
		}
		g.want(ErrnoNotsock, "sock_shutdown", fd, 1)
	}
	vec, _ := g.iovec(4)
	g.want(ErrnoSpipe, "fd_pread", 0, vec, 1, 0, 16)
	g.want(ErrnoSpipe, "fd_pwrite", 1, vec, 1, 0, 16)
	g.want(ErrnoBadf, "fd_write", 0, vec, 1, 16)
	g.want(ErrnoBadf, "fd_read", 1, vec, 1, 16)
	var got strings.Builder
	for {
		s, errno := g.read(0, 3) // blocks until the reader has something
		if errno != ErrnoSuccess {
			t.Fatal(errno)
		}
		if got.WriteString(s); s == "" {
			break
		}
	}
	if got.String() != "hello" {
		t.Errorf("standard input is %q", got.String())
	}
	if errno := g.write(1, "out"); errno != ErrnoSuccess || out.String() != "out" {
		t.Errorf("standard output is %q, %v", out.String(), errno)
	}
}

func TestArguments(t *testing.T) {
	g := newGuest(t, Config{Args: []string{"prog", "", "ü"}, Env: []string{"A=1"}})
	count, size, ptrs, buf := g.alloc(4), g.alloc(4), g.alloc(12), g.alloc(16)
	g.want(ErrnoSuccess, "args_sizes_get", count, size)
	if g.u32(count) != 3 || g.u32(size) != 9 {
		t.Errorf("%d arguments of %d bytes", g.u32(count), g.u32(size))
	}
	g.want(ErrnoSuccess, "args_get", ptrs, buf)
	if got := string(g.bytes(buf, 9)); got != "prog\x00\x00ü\x00" {
		t.Errorf("arguments %q", got)
	}
	if got := []uint32{g.u32(ptrs), g.u32(ptrs + 4), g.u32(ptrs + 8)}; !slices.Equal(got, []uint32{uint32(buf), uint32(buf) + 5, uint32(buf) + 6}) {
		t.Errorf("pointers %v, buffer at %d", got, buf)
	}
	g.want(ErrnoSuccess, "environ_sizes_get", count, size)
	g.want(ErrnoSuccess, "environ_get", ptrs, buf)
	if got := string(g.bytes(buf, 4)); got != "A=1\x00" || g.u32(size) != 4 {
		t.Errorf("environment %q of %d bytes", got, g.u32(size))
	}
	end := uint64(g.mod.Memory().Size())
	g.want(ErrnoFault, "args_get", ptrs, end-8)
	g.want(ErrnoFault, "args_get", end-8, buf)
	g.want(ErrnoFault, "args_sizes_get", end, size)
}

// fakeClock stands still.
type fakeClock struct{ real, mono int64 }

func (c fakeClock) Realtime() int64  { return c.real }
func (c fakeClock) Monotonic() int64 { return c.mono }

func TestClocksAndRandomness(t *testing.T) {
	g := newGuest(t, Config{Clock: fakeClock{real: 42, mono: 7}, Rand: strings.NewReader("randomness")})
	res := g.alloc(16)
	for id, want := range []uint64{42, 7, 7, 7} {
		g.want(ErrnoSuccess, "clock_time_get", uint64(id), 0, res)
		if got := g.u64(res); got != want {
			t.Errorf("clock %d = %d, want %d", id, got, want)
		}
		g.want(ErrnoSuccess, "clock_res_get", uint64(id), res)
		if g.u64(res) == 0 {
			t.Errorf("clock %d has resolution 0", id)
		}
	}
	g.want(ErrnoInval, "clock_time_get", 4, 0, res)
	g.want(ErrnoInval, "clock_res_get", 4, res)
	g.want(ErrnoFault, "clock_time_get", 0, 0, 1<<32-4)
	g.want(ErrnoSuccess, "random_get", res, 6)
	if got := string(g.bytes(res, 6)); got != "random" {
		t.Errorf("random bytes %q", got)
	}
	g.want(ErrnoIo, "random_get", res, 6) // the source has 4 more
	g.want(ErrnoFault, "random_get", res, 1<<31)
	g.want(ErrnoNosys, "proc_raise", 6)
	g.want(ErrnoSuccess, "sched_yield")
}

// endless reads and writes whatever it is asked to, and counts.
type endless struct {
	File
	bytes, calls int
}

func (e *endless) Read(p []byte) (int, Errno)            { return e.move(p) }
func (e *endless) Write(p []byte) (int, Errno)           { return e.move(p) }
func (e *endless) Pread(p []byte, _ int64) (int, Errno)  { return e.move(p) }
func (e *endless) Pwrite(p []byte, _ int64) (int, Errno) { return e.move(p) }

func (e *endless) move(p []byte) (int, Errno) {
	e.bytes += len(p)
	e.calls++
	return len(p), ErrnoSuccess
}

// TestCallMovesABoundedNumberOfBytes: as many buffers as a call may have, each of them all of the memory. What is asked for is
// gigabytes, and the call that cannot be interrupted ends after some.
func TestCallMovesABoundedNumberOfBytes(t *testing.T) {
	g := newGuest(t, Config{})
	file := &endless{File: NewDisk(bytes.NewReader(nil), 0, false)}
	g.sys.SetFile(3, file)
	size := g.mod.Memory().Size()
	vec, n := g.alloc(8*maxIovecs), g.alloc(4)
	for i := range maxIovecs {
		le.PutUint32(g.bytes(vec+uint64(8*i)+4, 4), size)
	}
	if uint64(size)*maxIovecs < 2*maxTransfer {
		t.Fatalf("a memory of %d bytes is too small for this test", size)
	}
	for name, parameters := range map[string][]uint64{
		"fd_read": {3, vec, maxIovecs, n}, "fd_write": {3, vec, maxIovecs, n},
		"fd_pread": {3, vec, maxIovecs, 0, n}, "fd_pwrite": {3, vec, maxIovecs, 0, n},
	} {
		*file = endless{File: file.File}
		g.want(ErrnoSuccess, name, parameters...)
		if moved := g.u32(n); moved != maxTransfer || file.bytes != maxTransfer {
			t.Errorf("%s moved %d bytes in %d calls and says %d, want %d", name, file.bytes, file.calls, moved, maxTransfer)
		}
	}
}
