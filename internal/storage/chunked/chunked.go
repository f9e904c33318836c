// Package chunked keeps data in files of compressed chunks that can be read from anywhere and are verified when they are read.
//
// Such a file is a zstd stream, which other tools unpack too. Each chunk of ChunkSize bytes, the last one shorter, is a frame of its own.
// After them a skippable frame has the index and the footer, numbers little-endian:
//
//	index    for each chunk: size of its frame u32, SHA-256 of its frame
//	footer   SHA-256 of the index and of the 24 bytes that follow; plain size u64, ChunkSize u32, 4 zero bytes, magic
//
// A chunk is unpacked only when its frame has the digest in the index, so damage is an error (*DamagedError) and never other data.
package chunked

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// ChunkSize is how many bytes are compressed together.
const ChunkSize = 128 << 10

// maxSize bounds the plain size of a file, so that an index, which is kept in memory, has at most 36 MiB.
const maxSize = 128 << 30

const (
	entrySize     = 4 + sha256.Size
	tailSize      = 24
	footerSize    = sha256.Size + tailSize
	skippable     = 0x184D2A5E // RFC 8878, 3.1.2
	skippableSize = 8
	magic         = "avmchnk\x01"
	maxFrame      = ChunkSize + 4096 // of noise: the header and a block header for each 128 KiB
)

// DamagedError means that a file is not what was written.
type DamagedError struct{ Name, Cause string }

func (e *DamagedError) Error() string { return fmt.Sprintf("%s is damaged: %s", e.Name, e.Cause) }

// newEncoder returns the encoder of chunks. The fastest level takes half the time of the default one, and gives files that are a
// twelfth larger (docs/measurements/storage.md).
func newEncoder() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(ChunkSize), zstd.WithEncoderCRC(false))
}

// Writer writes a file. It is for one goroutine, and has some of its own until Close. The same data gives the same bytes.
type Writer struct {
	size  int64
	chunk []byte
	queue chan packed // in the order of the chunks
	plain hash.Hash
	ready sync.WaitGroup // the goroutine that writes
	free  chan *zstd.Encoder

	mu     sync.Mutex
	err    error
	closed bool
}

// packed is a chunk that is being compressed.
type packed struct {
	plain []byte
	frame chan []byte
}

// NewWriter begins a file. The caller closes the Writer, also after an error.
func NewWriter(w io.Writer) (*Writer, error) {
	workers := runtime.GOMAXPROCS(0)
	c := &Writer{queue: make(chan packed, workers), plain: sha256.New(), free: make(chan *zstd.Encoder, workers)}
	for range workers {
		encoder, err := newEncoder()
		if err != nil {
			return nil, err
		}
		c.free <- encoder
	}
	c.ready.Go(func() { c.write(w) })
	return c, nil
}

// Write adds plain data. An error of the file may come with a later call or with Close.
func (c *Writer) Write(p []byte) (int, error) {
	if err := c.failed(); err != nil {
		return 0, err
	}
	if int64(len(p)) > maxSize-c.size {
		return 0, fmt.Errorf("more than %d bytes for a file of chunks", int64(maxSize))
	}
	for done := 0; done < len(p); {
		n := min(len(p)-done, ChunkSize-len(c.chunk))
		if c.chunk == nil {
			c.chunk = make([]byte, 0, ChunkSize)
		}
		c.chunk = append(c.chunk, p[done:done+n]...)
		if done += n; len(c.chunk) == ChunkSize {
			c.compress()
		}
	}
	c.size += int64(len(p))
	return len(p), nil
}

func (c *Writer) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && c.closed {
		return errors.New("write to a closed file of chunks")
	}
	return c.err
}

// compress has the chunk compressed. It waits while each processor has one already.
func (c *Writer) compress() {
	chunk, encoder, frame := c.chunk, <-c.free, make(chan []byte, 1)
	c.chunk = nil
	go func() {
		compressed := encoder.EncodeAll(chunk, nil)
		c.free <- encoder
		frame <- compressed
	}()
	c.queue <- packed{chunk, frame}
}

// write writes the frames in their order, then the index. After an error it only waits for the goroutines.
func (c *Writer) write(w io.Writer) {
	var index []byte
	var err error
	for next := range c.queue {
		c.plain.Write(next.plain)
		frame := <-next.frame
		if err != nil {
			continue
		}
		sum := sha256.Sum256(frame)
		index = append(binary.LittleEndian.AppendUint32(index, uint32(len(frame))), sum[:]...)
		if _, err = w.Write(frame); err != nil {
			c.fail(err)
		}
	}
	if err != nil {
		return
	}
	tail := binary.LittleEndian.AppendUint64(nil, uint64(c.size)) // which no call changes any more
	tail = binary.LittleEndian.AppendUint32(tail, ChunkSize)
	tail = append(binary.LittleEndian.AppendUint32(tail, 0), magic...)
	sum := sha256.Sum256(append(bytes.Clone(index), tail...))
	end := binary.LittleEndian.AppendUint32(nil, skippable)
	end = binary.LittleEndian.AppendUint32(end, uint32(len(index)+footerSize))
	for _, p := range [][]byte{end, index, sum[:], tail} {
		if _, err := w.Write(p); err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *Writer) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// Sum returns the SHA-256 of the plain data, after Close.
func (c *Writer) Sum() []byte { return c.plain.Sum(nil) }

// Close completes the file, which the caller flushes. A second Close does nothing.
func (c *Writer) Close() error {
	if err := c.failed(); err == nil && len(c.chunk) > 0 {
		c.compress()
	}
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if !closed {
		close(c.queue)
		c.ready.Wait()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
