package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"agentvm/internal/storage/disk"
)

// Verify reads all contents, the base's and the disk's included, and compares the hashes. It also checks that the padding is zeros. It uses all
// processors. Of a disk beside the file that was not hashed only the structure is verified, see DiskHashed.
func (f *File) Verify(ctx context.Context) error {
	if f.base != nil {
		if err := f.base.Verify(ctx); err != nil {
			return err
		}
	}
	err := f.verifyPadding()
	if err == nil {
		err = f.verifyContents(ctx, f.header.memory, f.memory, "memory")
	}
	if err == nil && f.header.diskSize > 0 {
		err = f.verifyContents(ctx, f.header.disk, f.disk, "disk")
	}
	if err == nil {
		err = f.verifyBeside(ctx)
	}
	if err != nil {
		return fmt.Errorf("verify snapshot %s: %w", f.path, err)
	}
	return nil
}

// DiskHashed reports whether the contents of the disk, if there is one, are hashed. Earlier versions did not hash those beside files.
func (f *File) DiskHashed() bool {
	name := f.besideName()
	if name == "" {
		return true
	}
	saved, err := openBeside(f.path, name)
	if err != nil {
		return false
	}
	defer saved.Close()
	return saved.Hashed()
}

// verifyBeside verifies the disk beside the file, if there is one.
func (f *File) verifyBeside(ctx context.Context) error {
	if f.besideName() == "" {
		return nil
	}
	saved, err := f.OpenDisk()
	if err == nil {
		err = errors.Join(saved.Verify(ctx), saved.Close())
	}
	var damaged *disk.DamagedError
	var invalid *disk.InvalidError
	if errors.As(err, &damaged) || errors.As(err, &invalid) || errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}

// verifyPadding checks that the bytes between the sections are zeros.
func (f *File) verifyPadding() error {
	at := int64(headerSize)
	for _, s := range f.header.sections() {
		padding := make([]byte, s.offset-at)
		if err := readFull(f.file, padding, at); err != nil {
			return plain(err)
		}
		if i := slices.IndexFunc(padding, func(b byte) bool { return b != 0 }); i >= 0 {
			return fmt.Errorf("%w: something between its parts, at %d", ErrCorrupt, at+int64(i))
		}
		at = s.offset + s.length
	}
	return nil
}

// verifyContents checks every chunk that has an entry. The section has no others.
func (f *File) verifyContents(ctx context.Context, s section, t table, name string) error {
	return each(ctx, len(t), func(_ context.Context, i int, p []byte) error { return f.verifyChunk(s, &t[i], p, name) })
}

func (f *File) verifyChunk(s section, c *chunk, p []byte, name string) error {
	for from, to := c.stored.next(0); from < to; from, to = c.stored.next(to) {
		if err := f.readRun(s, c, p, from, to); err != nil {
			return err
		}
	}
	if !c.matches(p) {
		return fmt.Errorf("%w: its %s between %#x and %#x", ErrCorrupt, name, c.at(), c.at()+chunkSize)
	}
	return nil
}

// matches reports whether p, a chunk, has the own pages of the entry, and zeros in all others that are stored.
func (c *chunk) matches(p []byte) bool {
	for n := range chunkPages {
		if c.stored.has(n) && zero(p[n*PageSize:(n+1)*PageSize]) == c.own.has(n) {
			return false
		}
	}
	return c.hash(p) == c.sum
}

// Chunks returns the number of pieces of the memory for ChunkVerifier, without those of the base.
func (f *File) Chunks() int { return len(f.memory) }

// ChunkVerifier returns what verifies one piece, up to 1 MiB of the memory in this file, for callers that cannot wait for Verify. It is for one
// goroutine, and has room for one piece.
func (f *File) ChunkVerifier() func(i int) error {
	room := make([]byte, chunkSize)
	return func(i int) error {
		if err := f.verifyChunk(f.header.memory, &f.memory[i], room, "memory"); err != nil {
			return fmt.Errorf("verify snapshot %s: %w", f.path, err)
		}
		return nil
	}
}
