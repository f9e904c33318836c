package mount

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/hugelgupf/p9/fsimpl/localfs"
	"github.com/hugelgupf/p9/p9"
)

// libraryServer is the peer: the p9 library's own server on its local file system, without containment.
func libraryServer(b *testing.B, dir string) net.Conn {
	b.Helper()
	host, guest := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p9.NewServer(localfs.Attacher(dir)).Handle(host, host)
	}()
	b.Cleanup(func() { guest.Close(); <-done })
	return guest
}

// servers runs a benchmark against ours and against the peer in the same run.
func servers(b *testing.B, dir string, run func(b *testing.B, conn net.Conn)) {
	b.Run("server=agentvm", func(b *testing.B) { run(b, serve(b, Config{Dir: dir})) })
	b.Run("server=p9", func(b *testing.B) { run(b, libraryServer(b, dir)) })
}

func BenchmarkRead(b *testing.B) {
	dir := b.TempDir()
	const size = 16 << 20
	if err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, size), 0o644); err != nil {
		b.Fatal(err)
	}
	for _, msize := range []uint32{128 << 10, 512 << 10} {
		b.Run(fmt.Sprintf("msize=%dK", msize>>10), func(b *testing.B) {
			servers(b, dir, func(b *testing.B, conn net.Conn) {
				f := open(b, attachConn(b, conn, msize), p9.ReadOnly, "big")
				buf := make([]byte, size)
				b.SetBytes(size)
				for b.Loop() {
					if _, err := f.ReadAt(buf, 0); err != nil && err != io.EOF {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

func BenchmarkWrite(b *testing.B) {
	dir := b.TempDir()
	writeFile(b, filepath.Join(dir, "out"), "")
	servers(b, dir, func(b *testing.B, conn net.Conn) {
		f := open(b, attachConn(b, conn, 128<<10), p9.ReadWrite, "out")
		buf := make([]byte, 16<<20)
		b.SetBytes(int64(len(buf)))
		for b.Loop() {
			if _, err := f.WriteAt(buf, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkStat is what a build does most: walk to a name three levels down, getattr, clunk.
func BenchmarkStat(b *testing.B) {
	dir := b.TempDir()
	writeFile(b, filepath.Join(dir, "a/b/c"), "")
	servers(b, dir, func(b *testing.B, conn net.Conn) {
		parent := walk(b, attachConn(b, conn, 128<<10), "a", "b")
		for b.Loop() {
			f := walk(b, parent, "c")
			getattr(b, f)
			f.Close()
		}
	})
}

func BenchmarkReaddir(b *testing.B) {
	dir := b.TempDir()
	for i := range 1000 {
		writeFile(b, filepath.Join(dir, fmt.Sprint("file-", i)), "")
	}
	servers(b, dir, func(b *testing.B, conn net.Conn) {
		root := attachConn(b, conn, 128<<10)
		for b.Loop() {
			d := open(b, root, p9.ReadOnly)
			if n := len(readAll(b, d, 64<<10)); n < 1000 {
				b.Fatal(n)
			}
			d.Close()
		}
	})
}
