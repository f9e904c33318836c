package images

import (
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

// dataWriter gives blocks of the disk to what is stored, from block 1 on. File contents come as they arrive, and are where the layers are
// kept; the metadata follow at the end, and are the disk's own.
type dataWriter struct {
	out     io.Writer // the disk's own data
	written int64     // bytes of out
	extents []extent  // in the order of the disk, except for the superblock's
	next    uint32    // block the next byte goes to
	chunk   []byte    // scratch
	inlined int
	chunked bool // some file has holes
}

func newDataWriter(own io.Writer) *dataWriter {
	return &dataWriter{out: own, next: 1, chunk: make([]byte, chunkSize)}
}

// where is the place in a layer's plain archive of bytes that are to be stored.
type where struct {
	layer  int   // from 1; 0: nowhere
	offset int64 // bytes
}

// blocks stores p padded to whole blocks.
func (w *dataWriter) blocks(p []byte, at where) error {
	count := (len(p) + blockSize - 1) / blockSize
	if uint64(w.next)+uint64(count) >= math.MaxUint32 {
		return fmt.Errorf("disk would be larger than %d blocks", uint32(math.MaxUint32))
	}
	begin := int64(w.next) * blockSize
	w.next += uint32(count)
	if at.layer > 0 {
		w.extend(extent{begin, int64(len(p)), at.layer, at.offset})
		return nil
	}
	return w.own(begin, p, count*blockSize)
}

// own stores p at a place of the disk among the disk's own data, followed by zeros until it has size bytes.
func (w *dataWriter) own(at int64, p []byte, size int) error {
	if size == 0 {
		return nil
	}
	w.extend(extent{at, int64(size), 0, w.written})
	w.written += int64(size)
	if _, err := w.out.Write(p); err != nil {
		return err
	}
	for size -= len(p); size > 0; size -= min(size, blockSize) {
		if _, err := w.out.Write(zeros[:min(size, blockSize)]); err != nil {
			return err
		}
	}
	return nil
}

var zeros [blockSize]byte

// extend adds an extent, or makes the last one longer.
func (w *dataWriter) extend(e extent) {
	if e.length == 0 {
		return
	}
	if n := len(w.extents); n > 0 {
		last := &w.extents[n-1]
		if last.source == e.source && last.at+last.length == e.at && last.offset+last.length == e.offset {
			last.length += e.length
			return
		}
	}
	w.extents = append(w.extents, e)
}

// file stores n.size bytes of r as n's content. Position, unless it is nil, says how much of the layer's plain archive was read: what comes
// straight from there is not stored again.
func (w *dataWriter) file(n *node, r io.Reader, layer int, position func() int64) error {
	n.layout, n.block = layoutPlain, w.next
	for done := uint64(0); done < n.size; {
		p := w.chunk[:min(chunkSize, n.size-done)]
		begin := int64(0)
		if position != nil {
			begin = position()
		}
		if _, err := io.ReadFull(r, p); err != nil {
			return fmt.Errorf("content ends after %d of %d bytes: %w", done, n.size, noEOF(err))
		}
		var at where
		if position != nil && position()-begin == int64(len(p)) { // otherwise the archive leaves out some of the zeros
			at = where{layer, begin}
		}
		if done == 0 {
			n.machine = elfMachine(p)
		}
		if err := w.fileChunk(n, p, done, at); err != nil {
			return err
		}
		done += uint64(len(p))
	}
	return nil
}

// fileChunk stores the chunk p at offset done of n. The file turns chunk-based at its first zero chunk.
func (w *dataWriter) fileChunk(n *node, p []byte, done uint64, at where) error {
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
		return w.blocks(p, at)
	}
	tail := len(p) % blockSize
	if !w.mayInline(n, tail) {
		return w.blocks(p, at)
	}
	n.layout = layoutInline
	n.inline = append([]byte(nil), p[len(p)-tail:]...)
	w.inlined += tail
	return w.blocks(p[:len(p)-tail], at)
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
	return w.blocks(n.inline, where{})
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
