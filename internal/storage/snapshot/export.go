package snapshot

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// An exported snapshot is one Zstandard stream (RFC 8878) of:
//
//	8 bytes  magic
//	u32      version of the format, u32 0
//	header   4096 bytes: that of the file that Import makes, which has no base
//	meta, memory table, disk table: as long as the header says, without padding
//	the own pages of the memory, then of the disk, ascending, without what is between them
//
// So Import makes the file byte for byte, and knows its size before its contents.
const (
	streamMagic   = "\x89avmx\r\n\x1a"
	streamBegin   = 16
	streamWindow  = 8 << 20 // bytes that the decoder must keep
	streamWorkers = 2       // a constant, so that equal snapshots give equal streams everywhere
)

// Export writes the snapshot as one compressed stream that needs no base. It verifies everything it reads and
// fails when the snapshot is damaged. Equal snapshots give equal streams with the same version of the compressor.
func (f *File) Export(ctx context.Context, w io.Writer) error {
	if err := f.export(ctx, w); err != nil {
		return fmt.Errorf("export snapshot %s: %w", f.path, err)
	}
	return nil
}

func (f *File) export(ctx context.Context, w io.Writer) error {
	memory, err := f.flatten(ctx)
	if err != nil {
		return err
	}
	x := &flat{File: f, header: header{version: Version, memorySize: f.header.memorySize}, memory: memory, disk: f.disk}
	meta := f.meta
	saved, err := f.OpenDisk()
	if err != nil {
		return err
	}
	if saved != nil {
		defer saved.Close()
		if err := x.flattenDisk(ctx, saved); err != nil {
			return err
		}
		x.header.diskSize, meta.Disk = saved.Size(), &Disk{Size: saved.Size()}
	}
	encoded, err := encodeMeta(meta)
	if err != nil {
		return err
	}
	x.parts = x.header.describe(x.memory, x.disk, encoded)
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(streamWorkers), zstd.WithWindowSize(streamWindow))
	if err != nil {
		return err
	}
	err = x.stream(ctx, z)
	if closed := z.Close(); err == nil {
		err = closed
	}
	return err
}

// flatten returns the memory table of the file that f would be without a base.
func (f *File) flatten(ctx context.Context) (table, error) {
	flat := slices.Clone(f.memory)
	if f.base == nil {
		return flat, nil
	}
	err := each(ctx, len(flat), func(_ context.Context, i int, p []byte) error {
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
	return flat, err
}

// flat is a file as Import will write it.
type flat struct {
	*File
	header       header
	memory, disk table
	parts        []part  // tables and description
	source       *source // of the disk; nil: none
}

// flattenDisk makes the disk a part of x.
func (x *flat) flattenDisk(ctx context.Context, d SavedDisk) (err error) {
	if err := d.Verify(ctx); err != nil { // or damaged contents would get hashes that fit them
		return err
	}
	spans, err := diskSpans(d, d.Size())
	if err != nil {
		return err
	}
	if x.source, err = newSource(d.Size(), spans, nil); err != nil {
		return err
	}
	if x.besideName() != "" {
		x.disk, err = x.source.table(ctx)
	}
	x.disk = slices.Clone(x.disk)
	return err
}

// stream writes the bytes that w compresses.
func (x *flat) stream(ctx context.Context, w io.Writer) error {
	begin := binary.LittleEndian.AppendUint32([]byte(streamMagic), Version)
	begin = binary.LittleEndian.AppendUint32(begin, 0)
	meta, tables := x.parts[len(x.parts)-1], x.parts[:len(x.parts)-1]
	for _, part := range slices.Concat([]part{{nil, begin}, {nil, x.header.encode()}, meta}, tables) {
		if _, err := w.Write(part.bytes); err != nil {
			return err
		}
	}
	p := make([]byte, chunkSize)
	for i := range x.memory {
		c := x.File.memory[i]
		if err := x.readMemory(&c, p, false); err != nil {
			return err
		}
		if x.memory[i].hash(p) != x.memory[i].sum {
			return fmt.Errorf("%w: its memory at %#x", ErrCorrupt, c.at())
		}
		if err := x.memory[i].send(ctx, w, p); err != nil {
			return err
		}
	}
	for i := range x.disk {
		c := &x.disk[i]
		if _, _, err := x.source.read(c.number, p); err != nil {
			return err
		}
		if c.hash(p) != c.sum {
			return fmt.Errorf("%w: its disk at %#x", ErrCorrupt, c.at())
		}
		if err := c.send(ctx, w, p); err != nil {
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
		} else {
			part := *below
			part.own = c.base
			if err := f.base.readOwn(&part, p, f.base.header.memory, "memory", false); err != nil {
				return err
			}
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
		if err := f.readRun(s, c, p, from, to); err != nil {
			return err
		}
	}
	if verify && c.hash(p) != c.sum {
		return fmt.Errorf("%w: its %s at %#x", ErrCorrupt, name, c.at())
	}
	return nil
}

// readRun reads stored pages of a chunk, from one page to another, into their places in p.
func (f *File) readRun(s section, c *chunk, p []byte, from, to int) error {
	return plain(readFull(f.file, p[from*PageSize:to*PageSize], s.offset+c.place(from)))
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
