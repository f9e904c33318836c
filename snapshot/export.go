package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// An exported snapshot is one Zstandard stream (RFC 8878) of:
//
//	8 bytes  magic
//	u32      version of the format, u32 0
//	header   4096 bytes: the one of the file that Import makes, which has no base
//	meta, memory table, disk table: as long as the header says, without padding
//	the own pages of the memory, then of the disk, ascending, without what is between them
//
// So the file comes out byte for byte, and its size is known before its contents.
const (
	streamMagic   = "\x89avmx\r\n\x1a"
	streamBegin   = 16
	streamWindow  = 8 << 20 // bytes that the decoder may have to look back
	streamWorkers = 2       // a constant, so that equal snapshots give equal streams everywhere
)

// Export writes the snapshot as one compressed stream that needs no base. What is damaged is not exported: everything is
// verified on its way. Equal snapshots give equal streams, as long as it is the same version of the compressor.
func (f *File) Export(ctx context.Context, w io.Writer) error {
	if err := f.export(ctx, w); err != nil {
		return fmt.Errorf("export snapshot %s: %w", f.path, err)
	}
	return nil
}

func (f *File) export(ctx context.Context, w io.Writer) error {
	h, memory, err := f.flatten(ctx)
	if err != nil {
		return err
	}
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(streamWorkers), zstd.WithWindowSize(streamWindow))
	if err != nil {
		return err
	}
	err = f.stream(ctx, z, h, memory)
	if closed := z.Close(); err == nil {
		err = closed
	}
	return err
}

// flatten returns header and memory table of the file that f would be without a base.
func (f *File) flatten(ctx context.Context) (*header, table, error) {
	if f.base == nil {
		return f.header, f.memory, nil
	}
	flat := make(table, len(f.memory))
	err := each(ctx, len(flat), func(i int, p []byte) error {
		c := f.memory[i]
		if err := f.readMemory(&c, p, true); err != nil {
			return err
		}
		for n := range c.own {
			c.own[n] |= c.base[n]
		}
		c.base = pageSet{}
		c.sum = c.hash(p)
		flat[i] = c
		return nil
	})
	h := *f.header
	h.base = digest{}
	h.memoryTable.sum = sha256.Sum256(flat.encode())
	h.place()
	return &h, flat, err
}

// stream writes what is compressed.
func (f *File) stream(ctx context.Context, w io.Writer, h *header, memory table) error {
	meta, err := f.section(f.header.meta, "description")
	if err != nil {
		return err
	}
	begin := binary.LittleEndian.AppendUint32([]byte(streamMagic), Version)
	begin = binary.LittleEndian.AppendUint32(begin, 0)
	for _, part := range [][]byte{begin, h.encode(), meta, memory.encode(), f.disk.encode()} {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	p := make([]byte, chunkSize)
	for i := range memory {
		c := f.memory[i]
		if err := f.readMemory(&c, p, false); err != nil {
			return err
		}
		if memory[i].hash(p) != memory[i].sum {
			return fmt.Errorf("%w: its memory at %#x", ErrCorrupt, c.at())
		}
		if err := memory[i].send(ctx, w, p); err != nil {
			return err
		}
	}
	for i := range f.disk {
		if err := f.readOwn(&f.disk[i], p, f.header.disk, "disk", true); err != nil {
			return err
		}
		if err := f.disk[i].send(ctx, w, p); err != nil {
			return err
		}
	}
	return nil
}

// readMemory reads the own pages of a chunk, and those of the base, into p; with verify it compares their hashes first.
func (f *File) readMemory(c *chunk, p []byte, verify bool) error {
	if below := f.below(c); below != nil {
		if verify {
			if err := f.base.readOwn(below, p, f.base.header.memory, "memory", true); err != nil {
				return fmt.Errorf("its base %s: %w", f.base.path, err)
			}
		} else if err := f.base.readOwn(&chunk{number: c.number, own: c.base}, p, f.base.header.memory, "memory", false); err != nil {
			return err
		}
	}
	return f.readOwn(c, p, f.header.memory, "memory", verify)
}

// below is the base's entry that pages of c come from, or nil.
func (f *File) below(c *chunk) *chunk {
	if f.base == nil || c.base.empty() {
		return nil
	}
	return f.base.memory.find(c.number)
}

// readOwn reads the own pages of a chunk into their places in p.
func (f *File) readOwn(c *chunk, p []byte, s section, name string, verify bool) error {
	for from, to := c.own.next(0); from < to; from, to = c.own.next(to) {
		if err := readFull(f.file, p[from*PageSize:to*PageSize], s.offset+c.at()+int64(from)*PageSize); err != nil {
			return plain(err)
		}
	}
	if verify && c.hash(p) != c.sum {
		return fmt.Errorf("%w: its %s at %#x", ErrCorrupt, name, c.at())
	}
	return nil
}

// send writes the own pages in p.
func (c *chunk) send(ctx context.Context, w io.Writer, p []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for from, to := c.own.next(0); from < to; from, to = c.own.next(to) {
		if _, err := w.Write(p[from*PageSize : to*PageSize]); err != nil {
			return err
		}
	}
	return nil
}
