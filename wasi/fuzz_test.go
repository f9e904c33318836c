package wasi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fuzzGuest returns a guest for a fuzz target, with one descriptor of each kind: 0 input, 3 directory, 4 connection, 5
// stream, 6 listener, 8 disk.
func fuzzGuest(tb testing.TB) (*guest, string) {
	tb.Helper()
	g, dir := newDirGuest(tb, false)
	makeTree(tb, dir, testTree...)
	g.sys.SetFile(0, NewInput(nil))
	g.sys.SetFile(1, NewOutput(nil))
	g.sys.SetFile(4, NewConn(32))
	g.sys.SetFile(5, NewStream(32))
	g.sys.SetFile(6, NewListener())
	g.sys.SetFile(8, NewDisk(strings.NewReader("disk"), 64, false))
	return g, dir
}

// FuzzPollSubscriptions gives poll_oneoff any subscriptions. A timer that has passed is added so that it returns.
func FuzzPollSubscriptions(f *testing.F) {
	g, _ := fuzzGuest(f)
	seed := g.putSubs(sub{event: eventClock, clock: 1, timeout: time.Hour}, sub{event: EventRead, fd: 5}, sub{event: EventWrite, fd: 3})
	f.Add(append([]byte(nil), g.bytes(seed, 3*subscriptionSize)...), uint32(4))
	f.Add([]byte{}, uint32(1<<31))
	f.Fuzz(func(t *testing.T, subs []byte, count uint32) {
		g.TB = t
		g.reset()
		subs = subs[:min(len(subs), 4096)/subscriptionSize*subscriptionSize]
		n := uint32(len(subs)/subscriptionSize) + 1
		in := g.putSubs(sub{userdata: 1 << 63, event: eventClock})
		g.put(string(subs))
		out, res := g.alloc(int(n)*eventSize), g.alloc(4)
		errno := g.call("poll_oneoff", in, out, uint64(n), res)
		if got := g.u32(res); errno == ErrnoSuccess && (got == 0 || got > n) {
			t.Errorf("%d events for %d subscriptions", got, n)
		}
		if count > n { // may reach outside of memory, but must not be taken for less
			g.call("poll_oneoff", in, uint64(g.mod.Memory().Size()-8), uint64(count), res)
		}
	})
}

// FuzzIovecs gives the reading and writing calls any vectors.
func FuzzIovecs(f *testing.F) {
	f.Add([]byte{16, 0, 0, 0, 4, 0, 0, 0}, uint32(1), uint32(5), int64(0))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255}, uint32(1<<29), uint32(8), int64(-1))
	g, _ := fuzzGuest(f)
	g.mustOpen("file", 0, rightsRW, 0)
	f.Fuzz(func(t *testing.T, vec []byte, count, fd uint32, offset int64) {
		g.TB = t
		g.top = 4096
		at, _ := g.put(string(vec[:min(len(vec), 128)])) // more would write megabytes to the file
		fd %= 16
		if fd == 0 {
			return // blocks by design when the vector is empty and the input is not at its end
		}
		g.sys.SetFile(5, NewStream(32)) // never full, or a blocking write would wait
		for _, name := range []string{"fd_read", "fd_write"} {
			g.call(name, uint64(fd), at, uint64(count), 16)
		}
		for _, name := range []string{"fd_pread", "fd_pwrite"} {
			g.call(name, uint64(fd), at, uint64(count), uint64(offset), 16)
		}
		g.call("sock_recv", uint64(fd), at, uint64(count), uint64(offset), 16, 24)
		g.call("sock_send", uint64(fd), at, uint64(count), 0, 16)
	})
}

// FuzzPaths gives the path functions any path; nothing outside of the directory may appear or change.
func FuzzPaths(f *testing.F) {
	for _, p := range append(append([]string{"a/../b", "dir/./sub//", "x\x00y", strings.Repeat("../", 50), "\xff\xfe"}, escapeFiles...), escapeLinks...) {
		f.Add(p, "dir/../x")
	}
	base := f.TempDir()
	makeTree(f, base, "secret=keep", "inside/")
	inside := filepath.Join(base, "inside")
	makeTree(f, inside, testTree...)
	g := newGuest(f, Config{})
	g.preopen(3, "/", inside, false)
	f.Fuzz(func(t *testing.T, a, b string) {
		g.TB = t
		g.reset()
		a, b = a[:min(len(a), 5000)], b[:min(len(b), 5000)]
		if fd, errno := g.openAt(3, a, follow, oflagCreat, rightsRW, 0); errno == ErrnoSuccess {
			g.call("fd_close", fd)
		}
		g.stat(a, follow)
		g.symlink(a, b)
		g.rename(a, b)
		g.link(b, a, 0)
		g.setTimes(b, follow, 1, 1, fstMtim)
		for _, name := range []string{"path_create_directory", "path_remove_directory", "path_unlink_file"} {
			g.path(name, a)
			g.path(name, b)
		}
		entries, err := os.ReadDir(base)
		if err != nil || len(entries) != 2 {
			t.Fatalf("outside there is now %v, %v", entries, err)
		}
		info, err := os.Stat(filepath.Join(base, "secret"))
		if err != nil || info.Size() != 4 || info.ModTime().Unix() <= 1 {
			t.Fatalf("the secret is now %v, %v", info, err)
		}
	})
}

// FuzzReaddir reads a directory with any buffer and cookie; what is whole in the buffer must be an entry.
func FuzzReaddir(f *testing.F) {
	g, _ := fuzzGuest(f)
	f.Add(uint16(24), uint64(0))
	f.Add(uint16(100), uint64(3))
	f.Fuzz(func(t *testing.T, size uint16, cookie uint64) {
		g.TB = t
		g.reset()
		buf, n := g.alloc(int(size)), g.alloc(4)
		g.want(ErrnoSuccess, "fd_readdir", 3, buf, uint64(size), cookie, n)
		used := g.u32(n)
		if used > uint32(size) {
			t.Fatalf("used %d of %d bytes", used, size)
		}
		for b := g.bytes(buf, int(used)); len(b) >= direntSize; {
			end := direntSize + int(le.Uint32(b[16:]))
			if cookie++; le.Uint64(b) != cookie {
				t.Fatalf("cookie %d, want %d", le.Uint64(b), cookie)
			}
			if end > len(b) {
				break
			}
			b = b[end:]
		}
	})
}

// FuzzFrames splits a stream of bytes at any places; a connection must deliver them all, in order, and no part of a
// header of a frame that fits.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x01a\x00\x00\x00\x02bc"), uint8(3), uint8(4))
	f.Add([]byte("\xff\xff\xff\xffa lot"), uint8(1), uint8(7))
	f.Fuzz(func(t *testing.T, data []byte, chunk, want uint8) {
		c := NewConn(max(len(data), 4))
		buf := make([]byte, max(int(want), 1))
		var got []byte
		for rest := data; len(rest) > 0; {
			n := min(len(rest), int(chunk)+1)
			if _, err := c.Host().Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
			for c.Poll(EventRead).Ready {
				n, errno := c.Read(buf)
				if n == 0 || errno != ErrnoSuccess {
					t.Fatalf("ready, but read %d, %v", n, errno)
				}
				got = append(got, buf[:n]...)
			}
		}
		if !strings.HasPrefix(string(data), string(got)) {
			t.Fatalf("sent %q, delivered %q", data, got)
		}
	})
}
