package chunked

import (
	"bytes"
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Cache has the chunks that were read last, of all files that were opened with it.
type Cache struct {
	max int // chunks

	mu     sync.Mutex
	chunks map[chunkKey]*list.Element
	order  *list.List // of *cached, the last used first

	decoder *zstd.Decoder
}

type chunkKey struct {
	file  *File
	index int64
}

type cached struct {
	chunkKey
	plain []byte // never changes
}

// NewCache returns an empty cache of at most size bytes, but at least one chunk. It needs no closing.
func NewCache(size int) (*Cache, error) {
	// Without concurrency of its own a decoder has no goroutines. The calls at the same time that it permits are as many as there are
	// decoders in it, each of which takes about as much memory as a chunk.
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxMemory(ChunkSize), zstd.WithDecoderMaxWindow(2*ChunkSize))
	if err != nil {
		return nil, err
	}
	return &Cache{max: max(1, size/ChunkSize), chunks: map[chunkKey]*list.Element{}, order: list.New(), decoder: decoder}, nil
}

func (c *Cache) get(key chunkKey) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	element, ok := c.chunks[key]
	if !ok {
		return nil
	}
	c.order.MoveToFront(element)
	return element.Value.(*cached).plain
}

func (c *Cache) put(key chunkKey, plain []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.chunks[key]; ok {
		return
	}
	c.chunks[key] = c.order.PushFront(&cached{key, plain})
	for c.order.Len() > c.max {
		delete(c.chunks, c.order.Remove(c.order.Back()).(*cached).chunkKey)
	}
}

// forget drops a file's chunks.
func (c *Cache) forget(f *File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, element := range c.chunks {
		if key.file == f {
			delete(c.chunks, key)
			c.order.Remove(element)
		}
	}
}

// File is an open file. Its methods may be called at the same time.
type File struct {
	name   string
	source io.ReaderAt
	cache  *Cache
	size   int64
	index  []byte  // as in the file
	starts []int64 // of the frames, and their end
}

// Open reads the index of a file, which source has with a size of so many bytes. Name is for errors: *DamagedError is wrapped when the file is
// not whole. The caller closes source, after the File.
func Open(name string, source io.ReaderAt, size int64, cache *Cache) (*File, error) {
	f := &File{name: name, source: source, cache: cache}
	if size < skippableSize+footerSize {
		return nil, f.damaged("it is too short")
	}
	footer := make([]byte, footerSize)
	if err := f.read(footer, size-footerSize); err != nil {
		return nil, err
	}
	tail := footer[sha256.Size:]
	plain := binary.LittleEndian.Uint64(tail)
	if string(tail[16:]) != magic || binary.LittleEndian.Uint32(tail[8:]) != ChunkSize || plain > maxSize {
		return nil, f.damaged("its end is not that of a file of chunks")
	}
	f.size = int64(plain)
	count := (f.size + ChunkSize - 1) / ChunkSize
	begin := size - footerSize - count*entrySize
	if begin < skippableSize {
		return nil, f.damaged("its index is longer than the file")
	}
	f.index = make([]byte, count*entrySize)
	if err := f.read(f.index, begin); err != nil {
		return nil, err
	}
	hash := sha256.New()
	hash.Write(f.index)
	hash.Write(tail)
	if !bytes.Equal(hash.Sum(nil), footer[:sha256.Size]) {
		return nil, f.damaged("its index has another checksum")
	}
	f.starts = make([]int64, count+1)
	for i := range count {
		length := binary.LittleEndian.Uint32(f.index[i*entrySize:])
		if length == 0 || length > maxFrame {
			return nil, f.damaged("its index is wrong")
		}
		f.starts[i+1] = f.starts[i] + int64(length)
	}
	if f.starts[count] != begin-skippableSize {
		return nil, f.damaged("its chunks have not the sizes in its index")
	}
	return f, nil
}

func (f *File) damaged(format string, args ...any) error {
	return &DamagedError{f.name, fmt.Sprintf(format, args...)}
}

func (f *File) read(p []byte, offset int64) error {
	n, err := f.source.ReadAt(p, offset)
	switch {
	case n == len(p):
		return nil
	case err == io.EOF:
		return f.damaged("it is cut short")
	}
	return fmt.Errorf("read %s: %w", f.name, err)
}

// Size returns the size of the plain data in bytes.
func (f *File) Size() int64 { return f.size }

// ReadAt implements io.ReaderAt for the plain data. Chunks are kept in the cache.
func (f *File) ReadAt(p []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, fmt.Errorf("read %s: negative offset", f.name)
	}
	done := 0
	for done < len(p) && offset < f.size {
		i := offset / ChunkSize
		plain := f.cache.get(chunkKey{f, i})
		if plain == nil {
			var err error
			if plain, err = f.unpack(i, nil); err != nil {
				return done, err
			}
			f.cache.put(chunkKey{f, i}, plain)
		}
		n := copy(p[done:], plain[offset-i*ChunkSize:])
		done, offset = done+n, offset+int64(n)
	}
	if done < len(p) {
		return done, io.EOF
	}
	return done, nil
}

// unpack returns chunk i, in the memory of plain when it has enough.
func (f *File) unpack(i int64, plain []byte) ([]byte, error) {
	frame := make([]byte, f.starts[i+1]-f.starts[i])
	if err := f.read(frame, f.starts[i]); err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(frame); !bytes.Equal(sum[:], f.index[i*entrySize+4:(i+1)*entrySize]) {
		return nil, f.damaged("chunk %d of %d, at byte %d, has another checksum", i, len(f.starts)-1, f.starts[i])
	}
	want := min(ChunkSize, f.size-i*ChunkSize)
	if int64(cap(plain)) < want {
		plain = make([]byte, 0, want)
	}
	plain, err := f.cache.decoder.DecodeAll(frame, plain[:0])
	if err != nil || int64(len(plain)) != want {
		return nil, f.damaged("chunk %d of %d unpacks to %d bytes, not %d (%v)", i, len(f.starts)-1, len(plain), want, err)
	}
	return plain, nil
}

// NewReader reads the plain data from its start without filling the cache. It is for one goroutine.
func (f *File) NewReader() io.Reader { return &reader{file: f} }

type reader struct {
	file  *File
	next  int64  // chunk
	chunk []byte // in which plain is
	plain []byte // that was not read yet
}

func (r *reader) Read(p []byte) (int, error) {
	if len(r.plain) == 0 {
		if r.next == int64(len(r.file.starts))-1 {
			return 0, io.EOF
		}
		var err error
		if r.chunk, err = r.file.unpack(r.next, r.chunk); err != nil {
			return 0, err
		}
		r.plain, r.next = r.chunk, r.next+1
	}
	n := copy(p, r.plain)
	r.plain = r.plain[n:]
	return n, nil
}

// Close drops what the cache has of the file. No other method may be running.
func (f *File) Close() { f.cache.forget(f) }
