package snapshot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Import makes a snapshot of what Export has written, replacing what is at path. Everything is verified before the file gets
// its name, and nothing is left of a failure. The header limits what is written, and that has at most MaxMemory and MaxDisk; to
// look back, 8 MiB are kept. Between reads it heeds ctx.
func Import(ctx context.Context, r io.Reader, path string) error {
	return importTo(ctx, r, path, publication{})
}

func importTo(ctx context.Context, r io.Reader, path string, p publication) error {
	if err := receive(ctx, r, path, p); err != nil {
		return fmt.Errorf("import snapshot to %s: %w", path, err)
	}
	return nil
}

func receive(ctx context.Context, r io.Reader, path string, p publication) error {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(streamWorkers), zstd.WithDecoderMaxWindow(streamWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return err
	}
	defer z.Close()
	in := &stream{ctx: ctx, r: z}
	if err := in.begin(); err != nil {
		return err // before there is a file
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

// stream is an exported snapshot that is being read.
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

// streamError says which of an exported snapshot's own failures are damage: those of its reader are not.
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

// begin reads what comes before the contents, as much as it says itself and no more than a snapshot has.
func (s *stream) begin() error {
	page := make([]byte, headerSize)
	if err := s.read(page[:streamBegin]); err != nil {
		return err
	}
	if string(page[:8]) != streamMagic {
		return fmt.Errorf("%w: it does not begin like an exported one", ErrFormat)
	}
	if v := binary.LittleEndian.Uint32(page[8:]); v != Version {
		return fmt.Errorf("%w: it has format %d, this agentvm has format %d", ErrVersion, v, Version)
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
	if s.header.base != (digest{}) {
		return fmt.Errorf("%w: an exported one has no base", ErrCorrupt)
	}
	return s.tables()
}

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
	if s.memory, err = decodeTable(memory, h.memory.length, false); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if h.disk.length == 0 {
		return nil
	}
	disk, err := s.section(h.diskTable, "table of the disk")
	if err != nil {
		return err
	}
	if s.disk, err = decodeTable(disk, h.disk.length, false); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	return nil
}

// section reads a section. Memory for it grows with what has come, not with what was announced.
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
	_, err := h.finish(file, s.memory.encode(), s.disk.encode(), s.meta)
	return err
}

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
