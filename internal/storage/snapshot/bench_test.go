package snapshot

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// A machine of 256 MB that has booted and used 100 MB of it, in runs of 64 pages.
func benchContent(b *testing.B) Content {
	m := make(memory, 300<<20)
	used := 0
	for page := 0; used < 100<<20; page += 192 {
		for n := range 64 {
			m.scribble(page+n, uint64(page+n))
			used += PageSize
		}
	}
	return content(m)
}

func BenchmarkWrite(b *testing.B) {
	c := benchContent(b)
	path := filepath.Join(b.TempDir(), "x.snap")
	b.SetBytes(100 << 20)
	for b.Loop() {
		if err := Write(context.Background(), path, c); err != nil {
			b.Fatal(err)
		}
		b.StopTimer() // giving 100 MB back takes ext4 longer than writing them
		if err := os.Remove(path); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkContents is Write without the file: reading, finding zeros and hashing.
func BenchmarkContents(b *testing.B) {
	p, err := newPlan(benchContent(b))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(100 << 20)
	for b.Loop() {
		if _, err := p.write(context.Background(), discardAt{}); err != nil {
			b.Fatal(err)
		}
	}
}

type discardAt struct{}

func (discardAt) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

func benchFile(b *testing.B) *File {
	return writeFile(b, filepath.Join(b.TempDir(), "x.snap"), benchContent(b))
}

func BenchmarkOpen(b *testing.B) {
	path := benchFile(b).Path()
	for b.Loop() {
		f, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		if len(f.Memory()) == 0 {
			b.Fatal("no memory")
		}
		f.Close()
	}
}

func BenchmarkVerify(b *testing.B) {
	f := benchFile(b)
	b.SetBytes(100 << 20)
	for b.Loop() {
		if err := f.Verify(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExport(b *testing.B) {
	f := benchFile(b)
	b.SetBytes(100 << 20)
	for b.Loop() {
		if err := f.Export(context.Background(), io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkImport(b *testing.B) {
	var exported bytes.Buffer
	if err := benchFile(b).Export(context.Background(), &exported); err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "y.snap")
	b.SetBytes(100 << 20)
	for b.Loop() {
		if err := Import(context.Background(), bytes.NewReader(exported.Bytes()), path, ImportLimits{}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := os.Remove(path); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
