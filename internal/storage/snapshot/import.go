package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

// ImportLimits bounds the size of an imported snapshot, so that a small hostile stream does not fill the disk.
type ImportLimits struct {
	// Size is how many bytes the file may take on the disk, holes not counted. 0: DefaultImportSize, and beyond the first 64 MiB no more
	// than ImportRatio times the stream's own size.
	Size int64
}

// Limits of Store.Import without ImportLimits.Size. Compression makes memory and disks of VMs in use 2 to 10 times smaller, and pages that are
// all equal ten thousand times.
const (
	DefaultImportSize = 32 << 30
	ImportRatio       = 200

	freeImport = 64 << 20 // bytes for which the ratio does not count
)

// ErrLimit is wrapped by errors about exported snapshots that exceed ImportLimits.
var ErrLimit = errors.New("the snapshot exceeds a limit")

// receive makes a snapshot of what Export has written. It verifies everything before the file gets its name, and a failure leaves no
// file. It writes no more than the header announces, which MaxMemory, MaxDisk and limits bound, and keeps 8 MiB for the decoder. It ends
// with ctx between two reads.
func receive(ctx context.Context, r io.Reader, path string, limits ImportLimits, p publication) error {
	compressed := &countingReader{r: r}
	z, err := zstd.NewReader(compressed, zstd.WithDecoderConcurrency(streamWorkers), zstd.WithDecoderMaxWindow(streamWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return err
	}
	defer z.Close()
	in := &stream{ctx: ctx, r: &boundedReader{r: z, compressed: compressed, limits: limits}}
	err = in.begin()
	if err == nil {
		err = in.fits(limits)
	}
	if err != nil {
		return err // the file does not exist yet
	}
	t, err := newTemporary(path)
	if err != nil {
		return err
	}
	defer t.discard()
	if err := in.contents(t.file); err != nil {
		return err
	}
	return t.publish(ctx, p)
}

// countingReader counts the bytes that were read. The count is atomic because the decoder reads in a goroutine of its own.
type countingReader struct {
	r     io.Reader
	count atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.count.Add(int64(n))
	return n, err
}

// boundedReader returns an error when a stream expands beyond ImportRatio.
type boundedReader struct {
	r          io.Reader
	compressed *countingReader
	limits     ImportLimits
	count      int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.count += int64(n)
	if b.limits.Size == 0 && b.count > freeImport && (b.count-freeImport)/ImportRatio > b.compressed.count.Load() {
		return 0, fmt.Errorf("%w: it becomes more than %d times as large", ErrLimit, ImportRatio)
	}
	return n, err
}

// fits checks that the contents that the tables announce are within the limits.
func (s *stream) fits(limits ImportLimits) error {
	size := s.header.memory.length + s.header.disk.length
	if limit := cmp.Or(limits.Size, DefaultImportSize); size > limit {
		return fmt.Errorf("%w: it has %d MiB, more than %d MiB", ErrLimit, size>>20, limit>>20)
	}
	return nil
}

// stream reads an exported snapshot.
type stream struct {
	ctx          context.Context
	r            io.Reader
	header       *header
	meta         []byte
	memory, disk table
}

// read reads all of p.
func (s *stream) read(p []byte) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	_, err := io.ReadFull(s.r, p)
	return streamError(err)
}

// streamError marks errors of the decoder as damage of the snapshot. Errors of the underlying reader stay as they are.
func streamError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: it ends too early", ErrCorrupt)
	case errors.Is(err, zstd.ErrMagicMismatch):
		return fmt.Errorf("%w: it does not begin like an exported one", ErrFormat)
	}
	for _, damage := range []error{zstd.ErrReservedBlockType, zstd.ErrCompressedSizeTooBig, zstd.ErrBlockTooSmall, zstd.ErrUnexpectedBlockSize,
		zstd.ErrWindowSizeExceeded, zstd.ErrWindowSizeTooSmall, zstd.ErrDecoderSizeExceeded, zstd.ErrUnknownDictionary,
		zstd.ErrFrameSizeExceeded, zstd.ErrFrameSizeMismatch, zstd.ErrCRCMismatch} {
		if errors.Is(err, damage) {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	}
	return err
}

// begin reads the header, the tables and the description. Their lengths are bounded by those that a snapshot can have.
func (s *stream) begin() error {
	page := make([]byte, headerSize)
	if err := s.read(page[:streamBegin]); err != nil {
		return err
	}
	if string(page[:8]) != streamMagic {
		return fmt.Errorf("%w: it does not begin like an exported one", ErrFormat)
	}
	version := binary.LittleEndian.Uint32(page[8:])
	if err := checkVersion(version); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(page[12:]) != 0 {
		return fmt.Errorf("%w: its begin", ErrCorrupt)
	}
	if err := s.read(page); err != nil {
		return err
	}
	var err error
	if s.header, err = decodeHeader(page); err != nil {
		return err
	}
	if s.header.version != version {
		return fmt.Errorf("%w: its header has another version", ErrCorrupt)
	}
	if s.header.base != (digest{}) {
		return fmt.Errorf("%w: an exported one has no base", ErrCorrupt)
	}
	return s.tables()
}

// tables reads the description and the tables, and checks that they fit the header before any page is accepted.
func (s *stream) tables() error {
	h := s.header
	var err error
	if s.meta, err = s.section(h.meta, "description"); err != nil {
		return err
	}
	if _, err := decodeMeta(s.meta, h); err != nil {
		return err
	}
	memory, err := s.section(h.memoryTable, "table of the memory")
	if err != nil {
		return err
	}
	if s.memory, err = decodeTable(memory, h.memorySize, false); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if h.diskSize > 0 {
		disk, err := s.section(h.diskTable, "table of the disk")
		if err != nil {
			return err
		}
		if s.disk, err = decodeTable(disk, h.diskSize, false); err != nil {
			return fmt.Errorf("disk: %w", err)
		}
	}
	if err := h.arranged(s.memory, s.disk); err != nil {
		return err
	}
	h.version = Version // the file is written in this version, whatever the stream's was
	h.arrange(s.memory, s.disk)
	h.place()
	return nil
}

// section reads a section. It allocates memory for the bytes that have arrived, not for the announced length.
func (s *stream) section(part section, name string) ([]byte, error) {
	var b bytes.Buffer
	for int64(b.Len()) < part.length {
		if s.ctx.Err() != nil {
			return nil, context.Cause(s.ctx)
		}
		if _, err := io.CopyN(&b, s.r, min(chunkSize, part.length-int64(b.Len()))); err != nil {
			return nil, streamError(err)
		}
	}
	return b.Bytes(), part.check(b.Bytes(), name)
}

// contents reads the pages and writes the file.
func (s *stream) contents(file io.WriterAt) error {
	h := s.header
	if err := s.pages(file, s.memory, h.memory, "memory"); err != nil {
		return err
	}
	if err := s.pages(file, s.disk, h.disk, "disk"); err != nil {
		return err
	}
	if n, err := io.ReadFull(s.r, make([]byte, 1)); n > 0 {
		return fmt.Errorf("%w: something follows it", ErrCorrupt)
	} else if !errors.Is(err, io.EOF) {
		return streamError(err)
	}
	_, err := h.finish(file, s.memory, s.disk, s.meta)
	return err
}

// pages reads the own pages of a section and writes them to their places, after their hash was compared.
func (s *stream) pages(file io.WriterAt, t table, part section, name string) error {
	p := make([]byte, chunkSize)
	for i := range t {
		c := &t[i]
		for from, to := c.own.next(0); from < to; from, to = c.own.next(to) {
			if err := s.read(p[from*PageSize : to*PageSize]); err != nil {
				return err
			}
		}
		own := c.own
		if dropZeros(&own, p); own != c.own || c.hash(p) != c.sum {
			return fmt.Errorf("%w: its %s at %#x", ErrCorrupt, name, c.at())
		}
		if err := c.write(file, part.offset, p); err != nil {
			return err
		}
	}
	return nil
}
