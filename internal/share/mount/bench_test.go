package mount

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"agentvm/internal/share/mount/fusetest"
)

func BenchmarkRead(b *testing.B) {
	dir := b.TempDir()
	const size = 16 << 20
	if err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, size), 0o644); err != nil {
		b.Fatal(err)
	}
	f := open(b, attach(b, Config{Dir: dir}), fusetest.ReadOnly, "big")
	buf := make([]byte, size)
	b.SetBytes(size)
	for b.Loop() {
		if _, err := f.ReadAt(buf, 0); err != nil && err != io.EOF {
			b.Fatal(err)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	dir := b.TempDir()
	writeFile(b, filepath.Join(dir, "out"), "")
	f := open(b, attach(b, Config{Dir: dir}), fusetest.ReadWrite, "out")
	buf := make([]byte, 16<<20)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if _, err := f.WriteAt(buf, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen is what a build does most: look a name up three levels down, open and close it.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	writeFile(b, filepath.Join(dir, "a/b/c"), "")
	parent := walk(b, attach(b, Config{Dir: dir}), "a", "b")
	for b.Loop() {
		open(b, parent, fusetest.ReadOnly, "c").Close()
	}
}

func BenchmarkReaddir(b *testing.B) {
	dir := b.TempDir()
	for i := range 1000 {
		writeFile(b, filepath.Join(dir, fmt.Sprint("file-", i)), "")
	}
	root := attach(b, Config{Dir: dir})
	for b.Loop() {
		d := open(b, root, fusetest.ReadOnly)
		if n := len(readAll(b, d, 64<<10)); n < 1000 {
			b.Fatal(n)
		}
		d.Close()
	}
}
