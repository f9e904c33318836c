package images

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math"
)

const (
	// A file with holes is stored in chunks of 2^chunkBits blocks, of which the zero ones take no space.
	chunkBits = 4
	chunkSize = blockSize << chunkBits

	// inlineMax is the longest end of a file stored beside its inode. More would spread inodes over more blocks,
	// and the guest reads each with a request of its own at boot.
	inlineMax = 2048
	// inlineBudget bounds the memory that such ends take until the inodes are written. Past it, ends get blocks.
	inlineBudget = 64 << 20
)

// dataWriter appends blocks to the disk, from block 1 on. File contents are written as they arrive; the metadata
// follow at the end.
type dataWriter struct {
	out     *bufio.Writer
	next    uint32 // block the next byte goes to
	chunk   []byte // scratch
	inlined int
	chunked bool // some file has holes
}

func newDataWriter(disk io.WriterAt) *dataWriter {
	out := bufio.NewWriterSize(io.NewOffsetWriter(disk, blockSize), 1<<18)
	return &dataWriter{out: out, next: 1, chunk: make([]byte, chunkSize)}
}

// blocks writes p padded to whole blocks.
func (w *dataWriter) blocks(p []byte) error {
	count := (len(p) + blockSize - 1) / blockSize
	if uint64(w.next)+uint64(count) >= math.MaxUint32 {
		return fmt.Errorf("disk would be larger than %d blocks", uint32(math.MaxUint32))
	}
	if _, err := w.out.Write(p); err != nil {
		return err
	}
	w.next += uint32(count)
	return w.pad(count*blockSize - len(p))
}

var zeros [blockSize]byte

func (w *dataWriter) pad(n int) error {
	_, err := w.out.Write(zeros[:n])
	return err
}

// file stores n.size bytes of r as n's content.
func (w *dataWriter) file(n *node, r io.Reader) error {
	n.layout, n.block = layoutPlain, w.next
	for done := uint64(0); done < n.size; {
		p := w.chunk[:min(chunkSize, n.size-done)]
		if _, err := io.ReadFull(r, p); err != nil {
			return fmt.Errorf("content ends after %d of %d bytes: %w", done, n.size, noEOF(err))
		}
		if done == 0 {
			n.machine = elfMachine(p)
		}
		if err := w.fileChunk(n, p, done); err != nil {
			return err
		}
		done += uint64(len(p))
	}
	return nil
}

// fileChunk stores the chunk p at offset done of n. The file turns chunk-based at its first zero chunk.
func (w *dataWriter) fileChunk(n *node, p []byte, done uint64) error {
	hole := len(p) == chunkSize && isZero(p)
	if hole && n.chunks == nil {
		n.layout, w.chunked = layoutChunked, true
		n.chunks = make([]uint32, done/chunkSize, (n.size+chunkSize-1)/chunkSize)
		for i := range n.chunks {
			n.chunks[i] = n.block + uint32(i)<<chunkBits
		}
	}
	switch {
	case hole:
		n.chunks = append(n.chunks, noBlock)
		return nil
	case n.chunks != nil:
		n.chunks = append(n.chunks, w.next)
		return w.blocks(p)
	}
	tail := len(p) % blockSize
	if !w.mayInline(n, tail) {
		return w.blocks(p)
	}
	n.layout = layoutInline
	n.inline = append([]byte(nil), p[len(p)-tail:]...)
	w.inlined += tail
	return w.blocks(p[:len(p)-tail])
}

// mayInline reports whether an end of tail bytes is stored beside n's inode.
func (w *dataWriter) mayInline(n *node, tail int) bool {
	return tail > 0 && tail <= inlineMax && w.inlined+tail <= inlineBudget && inodeSize+len(n.xattrs)+tail <= blockSize
}

// symlink stores n's target, which stays in n.inline because lookups need it.
func (w *dataWriter) symlink(n *node, target string) error {
	n.size, n.inline = uint64(len(target)), []byte(target)
	if inodeSize+len(n.xattrs)+len(target) <= blockSize {
		n.layout = layoutInline
		return nil
	}
	n.layout, n.block = layoutPlain, w.next
	return w.blocks(n.inline)
}

// isZero compares p, which is not empty, with itself, shifted by a byte: many bytes at once, up to the first difference.
func isZero(p []byte) bool { return p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1]) }

// noEOF turns an early end of a stream into an error.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
