package disk

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"agentvm/internal/host/atomicfile"
)

const (
	blockSize = 4096
	// sizeStep divides all sizes: Linux leaves out a last group that is too small for its own tables, 2.7 MiB.
	sizeStep = 4 << 20
)

// The templates are made by internal/storage/disk/build.sh and described by provenance.json: a file system of 64 MiB, and one of DefaultSize, which
// would take the guest four million instructions to grow to.
var (
	//go:embed template.blocks.zst
	smallTemplate []byte
	//go:embed default.blocks.zst
	defaultTemplate []byte
)

// templateOf returns the largest template that fits into a disk of size bytes.
func templateOf(size int64) []byte {
	if size >= DefaultSize {
		return defaultTemplate
	}
	return smallTemplate
}

// Create makes a disk of size bytes, rounded up to 4 MiB, in new files of mode 0600; 0 is DefaultSize. The file system on
// it takes 64 MiB, or DefaultSize, until the guest grows it, and has identifiers of its own. A failure leaves no files. A killed process may leave
// a directory of layers, but no disk of that name.
func Create(path string, size int64) error {
	return create(path, size, rand.Reader)
}

// create is Create with a source of identifiers that a test can repeat.
func create(path string, size int64, random io.Reader) error {
	if size == 0 {
		size = DefaultSize
	}
	if size < MinSize || size > MaxSize {
		return fmt.Errorf("create disk %s: a size of %d bytes: a disk has %d MiB to %d GiB", path, size, MinSize>>20, MaxSize>>30)
	}
	size = (size + sizeStep - 1) / sizeStep * sizeStep
	return wrap("create disk", path, build(path, size, func(d *Disk) error { return format(d, random) }))
}

// build makes a disk with the contents that fill writes. It gets its name when it is complete and durable.
func build(path string, size int64, fill func(d *Disk) error) error {
	if err := vacant(path); err != nil {
		return err
	}
	dir := layersDir(path)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	err := buildIn(path, dir, size, fill)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return nil
}

// buildIn writes the manifest last: without it there is no disk, so everything that it names must be durable before. In what order the layer's
// data and records become durable does not matter, so that it is committed before its one sync.
func buildIn(path, dir string, size int64, fill func(d *Disk) error) error {
	top, err := newLayer(dir, newID(), size)
	if err != nil {
		return err
	}
	d := &Disk{path: path, size: size, stack: []*layer{top}, places: newPlaces(size)}
	if err = fill(d); err == nil {
		err = top.append(wideRecord(recordCommit, top.ordinal))
	}
	if err == nil {
		err = publish(path, manifest{Size: size, Top: top.id}, top.sync, func() error { return atomicfile.SyncFolder(dir) })
	}
	return errors.Join(err, d.closeLayers())
}

// format writes a new disk's contents: the template's blocks, each of which has its number before it.
func format(d *Disk, random io.Reader) error {
	image, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	if err != nil {
		return fmt.Errorf("template: %w", err)
	}
	defer image.Close()
	records, err := image.DecodeAll(templateOf(d.size), nil)
	if err != nil {
		return fmt.Errorf("template: %w", err)
	}
	const record = 8 + blockSize
	if len(records)%record != 0 || len(records) < 2*record {
		return fmt.Errorf("template: %d bytes", len(records))
	}
	blocks := make(map[uint32][]byte, len(records)/record)
	numbers := make([]uint32, 0, len(records)/record)
	for from := 0; from < len(records); from += record {
		number := uint32(binary.LittleEndian.Uint64(records[from:]))
		blocks[number] = records[from+8 : from+record]
		numbers = append(numbers, number)
	}
	if err := setIdentifiers(blocks, random); err != nil {
		return err
	}
	for _, number := range numbers {
		if _, err := d.WriteAt(blocks[number], int64(number)*blockSize); err != nil {
			return err
		}
	}
	return nil
}

// writeBlocks writes the blocks of p that are not zeros to a new disk.
func writeBlocks(d *Disk, p []byte, offset int64) error {
	for from := 0; from < len(p); {
		to := min(len(p), from+blockSize)
		if zero(p[from:to]) {
			from = to
			continue
		}
		for to < len(p) && !zero(p[to:min(len(p), to+blockSize)]) {
			to = min(len(p), to+blockSize)
		}
		if _, err := d.WriteAt(p[from:to], offset+int64(from)); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// CloneFrom makes a disk with the size bytes of r, which is the disk inside a snapshot. When r has a method NextData like Frozen's,
// only the parts that it returns are read.
func CloneFrom(ctx context.Context, r io.ReaderAt, size int64, to string) error {
	begin := make([]byte, blockSize)
	if n, err := r.ReadAt(begin, 0); n < len(begin) {
		return fmt.Errorf("clone a disk to %s: %w", to, errors.Join(io.ErrUnexpectedEOF, err))
	}
	if cause := wrong(begin, size); cause != "" {
		return fmt.Errorf("clone a disk to %s: what is to be copied is none: %s", to, cause)
	}
	if size > MaxSize {
		return fmt.Errorf("clone a disk to %s: a size of %d bytes, more than %d GiB", to, size, MaxSize>>30)
	}
	return wrap("clone a disk to", to, build(to, size, func(d *Disk) error { return copyData(ctx, d, r, size) }))
}

// dataSeeker is a sparse disk: see Frozen.NextData.
type dataSeeker interface {
	NextData(offset int64) (start, length int64, err error)
}

// copyData copies the blocks of r that are not zeros.
func copyData(ctx context.Context, d *Disk, r io.ReaderAt, size int64) error {
	chunk := make([]byte, 16*clusterSize)
	for at := int64(0); at < size; {
		end := size
		if s, ok := r.(dataSeeker); ok {
			start, length, err := s.NextData(at)
			switch {
			case errors.Is(err, errors.ErrUnsupported):
			case err != nil:
				return err
			case length <= 0:
				return nil
			default:
				at, end = max(at, start/blockSize*blockSize), min(size, start+length)
			}
		}
		for at < end {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			n := min(int64(len(chunk)), end-at)
			if err := readFull(r, chunk[:n], at); err != nil {
				return err
			}
			if err := writeBlocks(d, chunk[:n], at); err != nil {
				return err
			}
			at += n
		}
	}
	return nil
}

// WriteRaw writes a disk that no VM uses to a new file without layers, for programs that read file systems. Zeros are holes.
func WriteRaw(ctx context.Context, from, to string) error {
	d, err := Open(from)
	if err != nil {
		return err
	}
	err = d.writeRaw(ctx, to)
	return wrap("write disk "+from+" to", to, errors.Join(err, d.Close()))
}

func (d *Disk) writeRaw(ctx context.Context, to string) error {
	file, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	chunk := make([]byte, 16*clusterSize)
	err = file.Truncate(d.size)
	for at := int64(0); at < d.size && err == nil; {
		start, length := d.places.nextData(at, d.size)
		if length == 0 {
			break
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			break
		}
		p := chunk[:min(int64(len(chunk)), length)]
		if err = readFull(d, p, start); err == nil && !zero(p) {
			_, err = file.WriteAt(p, start)
		}
		at = start + int64(len(p))
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return nil
}

// zero reports whether p is all zeros. Comparing p with itself, shifted by a byte, ends at the first difference and takes many bytes at once.
func zero(p []byte) bool { return len(p) == 0 || p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1]) }
