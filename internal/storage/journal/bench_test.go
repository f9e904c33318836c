package journal

import (
	"fmt"
	"path/filepath"
	"testing"
)

var sizes = []int{1, 100, 4 << 10, 64 << 10}

func BenchmarkAppend(b *testing.B) {
	for _, size := range sizes {
		for _, place := range []string{"file", "memory"} {
			b.Run(fmt.Sprintf("to=%s/size=%d", place, size), func(b *testing.B) {
				path := ""
				if place == "file" {
					path = filepath.Join(b.TempDir(), "journal")
				}
				l := create(b, path, Config{})
				p := make([]byte, size)
				b.SetBytes(int64(size))
				for b.Loop() {
					if err := l.Append(Stdout, p); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkRead(b *testing.B) {
	for _, size := range sizes[1:] {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			l := create(b, filepath.Join(b.TempDir(), "journal"), Config{Head: 1 << 20, Tail: 7 << 20})
			p := make([]byte, size)
			for at := 0; at < 32<<20; at += size {
				if err := l.Append(Stdout+Stream(at/size%2), p); err != nil {
					b.Fatal(err)
				}
			}
			_, kept := l.Size()
			b.SetBytes(kept)
			for b.Loop() {
				for batch := (Batch{}); int64(batch.Next) < 32<<20; {
					batch = read(b, l, batch.Next, 64<<10)
				}
			}
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	path := written(b, Config{}, 40<<20, 4000, nil)
	b.SetBytes(16 << 20)
	for b.Loop() {
		l, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		l.Close()
	}
}
