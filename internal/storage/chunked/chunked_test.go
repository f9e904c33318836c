package chunked

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// content returns n bytes, half of them noise.
func content(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(p[:n/2])
	return p
}

func write(t testing.TB, p []byte, piece int) []byte {
	t.Helper()
	whole := p
	var out bytes.Buffer
	w, err := NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for len(p) > 0 {
		n := min(piece, len(p))
		if m, err := w.Write(p[:n]); m != n || err != nil {
			t.Fatal(m, err)
		}
		p = p[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if want := sha256.Sum256(whole); !bytes.Equal(w.Sum(), want[:]) {
		t.Error("the sum is wrong")
	}
	if _, err := w.Write([]byte{1}); err == nil {
		t.Error("write after the end")
	}
	return out.Bytes()
}

func open(t testing.TB, b []byte, size int) (*File, *Cache) {
	t.Helper()
	cache, err := NewCache(size)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open("file", bytes.NewReader(b), int64(len(b)), cache)
	if err != nil {
		t.Fatal(err)
	}
	return f, cache
}

func TestFiles(t *testing.T) {
	for _, size := range []int{0, 1, ChunkSize - 1, ChunkSize, ChunkSize + 1, 5*ChunkSize + 77} {
		want := content(size)
		b := write(t, want, 1000)
		if again := write(t, want, 1<<20); !bytes.Equal(b, again) {
			t.Errorf("%d bytes: two files differ", size)
		}
		f, _ := open(t, b, ChunkSize)
		if f.Size() != int64(size) {
			t.Errorf("%d bytes: size %d", size, f.Size())
		}
		got, err := io.ReadAll(f.NewReader())
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: read %d other ones, %v", size, len(got), err)
		}
		for _, at := range []int{0, 1, ChunkSize - 1, ChunkSize, 3 * ChunkSize, size - 1, size} {
			if at < 0 || at > size {
				continue
			}
			p := make([]byte, ChunkSize+100)
			n, err := f.ReadAt(p, int64(at))
			if m := copy(p[n:], want[min(size, at+n):]); (err == io.EOF) != (n < len(p)) || m != 0 || !bytes.Equal(p[:n], want[at:at+n]) {
				t.Errorf("%d bytes, at %d: %d, %v", size, at, n, err)
			}
		}
		// Other tools can unpack it.
		d, err := zstd.NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(d); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: as a zstd stream %d other ones, %v", size, len(got), err)
		}
		d.Close()
	}
}

func TestCacheIsBounded(t *testing.T) {
	b := write(t, content(6*ChunkSize), 1<<20)
	f, cache := open(t, b, 3*ChunkSize)
	other, err := Open("other", bytes.NewReader(b), int64(len(b)), cache)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 6*ChunkSize)
	for _, f := range []*File{f, other} {
		if _, err := f.ReadAt(p, 0); err != nil {
			t.Fatal(err)
		}
	}
	if len(cache.chunks) != 3 || cache.order.Len() != 3 {
		t.Errorf("%d chunks of 3, %d in order", len(cache.chunks), cache.order.Len())
	}
	other.Close()
	if len(cache.chunks) != 0 || cache.order.Len() != 0 {
		t.Errorf("%d chunks of a closed file", len(cache.chunks))
	}
}

// countingReader counts what is read of it.
type countingReader struct {
	io.ReaderAt
	mu    sync.Mutex
	bytes int
}

func (r *countingReader) ReadAt(p []byte, at int64) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes += len(p)
	return r.ReaderAt.ReadAt(p, at)
}

func TestChunksAreReadOnce(t *testing.T) {
	b := write(t, content(4*ChunkSize), 1<<20)
	cache, err := NewCache(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	source := &countingReader{ReaderAt: bytes.NewReader(b)}
	f, err := Open("file", source, int64(len(b)), cache)
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(0); at < f.Size(); at += 4096 {
		if _, err := f.ReadAt(make([]byte, 4096), at); err != nil {
			t.Fatal(err)
		}
	}
	if source.bytes > len(b)+footerSize {
		t.Errorf("%d bytes were read of a file of %d", source.bytes, len(b))
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			p := make([]byte, f.Size())
			if _, err := f.ReadAt(p, 0); err != nil || !bytes.Equal(p, content(4*ChunkSize)) {
				t.Error("reads at the same time give something else", err)
			}
		})
	}
	group.Wait()
}

// TestDamage flips each bit of some bytes and cuts the file: what is read is an error or the right thing.
func TestDamage(t *testing.T) {
	want := content(3*ChunkSize + 5)
	whole := write(t, want, 1<<20)
	for at := 0; at < len(whole); at += max(1, len(whole)/3000) {
		b := bytes.Clone(whole)
		b[at] ^= 1 << (at % 8)
		checkDamaged(t, b, want)
	}
	for size := range len(whole) {
		if size%997 == 0 || size > len(whole)-200 {
			checkDamaged(t, whole[:size], want)
		}
	}
}

func checkDamaged(t *testing.T, b, want []byte) {
	t.Helper()
	cache, err := NewCache(0)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open("file", bytes.NewReader(b), int64(len(b)), cache)
	if err == nil {
		var got []byte
		if got, err = io.ReadAll(f.NewReader()); !bytes.HasPrefix(want, got) {
			t.Error("damage gives other data")
		}
		if err == nil && len(got) == len(want) { // the frame's header of the index, which only other tools need
			return
		}
	}
	if !errors.As(err, new(*DamagedError)) {
		t.Errorf("error %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(write(f, content(100), 100))
	f.Add(write(f, nil, 100))
	f.Fuzz(func(t *testing.T, b []byte) {
		cache, err := NewCache(0)
		if err != nil {
			t.Fatal(err)
		}
		file, err := Open("file", bytes.NewReader(b), int64(len(b)), cache)
		if err != nil {
			return
		}
		if n, err := io.Copy(io.Discard, file.NewReader()); err == nil && n != file.Size() {
			t.Errorf("%d bytes of %d", n, file.Size())
		}
	})
}

type failing struct{ left int }

func (w *failing) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errors.New("no space")
	}
	return len(p), nil
}

func TestWriteErrors(t *testing.T) {
	for _, left := range []int{0, 100000, 300000} {
		w, err := NewWriter(&failing{left})
		if err != nil {
			t.Fatal(err)
		}
		_, writeErr := w.Write(content(8 * ChunkSize))
		if err := w.Close(); err == nil || writeErr != nil && writeErr.Error() != "no space" {
			t.Errorf("after %d bytes: %v, %v", left, writeErr, err)
		}
		if err := w.Close(); err == nil {
			t.Error("a second Close forgets the error")
		}
	}
}

func BenchmarkReadAt(b *testing.B) {
	f, _ := open(b, write(b, content(64<<20), 1<<20), 16<<20)
	p := make([]byte, 4096)
	b.SetBytes(int64(len(p)))
	for i := range b.N {
		if _, err := f.ReadAt(p, int64(i)*4096%f.Size()); err != nil {
			b.Fatal(err)
		}
	}
}
