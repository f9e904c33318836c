package disk

import (
	"bytes"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
)

const (
	blockSize = 4096
	// sizes are multiples of this: Linux leaves out a last group that is too small for its own tables, 2.7 MiB.
	sizeStep = 4 << 20
)

// Made by disk/build.sh, described by provenance.json.
//
//go:embed template.ext4.zst
var template []byte

// Create makes a disk of size bytes, rounded up to 4 MiB, in a new file of mode 0600; 0 is DefaultSize. The file system on
// it takes 64 MiB until the guest grows it, and has identifiers of its own. Nothing is left of a failure; a process that
// is killed meanwhile leaves a file that Open refuses.
func Create(path string, size int64) error {
	return create(path, size, rand.Reader)
}

func create(path string, size int64, random io.Reader) error {
	if size == 0 {
		size = DefaultSize
	}
	if size < MinSize || size > MaxSize {
		return fmt.Errorf("create disk %s: a size of %d bytes: a disk has %d MiB to %d GiB", path, size, MinSize>>20, MaxSize>>30)
	}
	size = (size + sizeStep - 1) / sizeStep * sizeStep
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("create disk: %w", err)
	}
	err = errors.Join(format(file, size, random), file.Close())
	if err != nil {
		return errors.Join(fmt.Errorf("create disk %s: %w", path, err), os.Remove(path))
	}
	return nil
}

// format makes file a disk. The first block, with the mark that Open looks for, goes in last.
func format(file *os.File, size int64, random io.Reader) error {
	makeSparse(file)
	if err := file.Truncate(size); err != nil {
		return err
	}
	image, err := zstd.NewReader(bytes.NewReader(template), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	if err != nil {
		return fmt.Errorf("template: %w", err)
	}
	defer image.Close()
	begin := make([]byte, 2*blockSize) // the superblock, and the descriptor of the group
	if _, err := io.ReadFull(image, begin); err != nil {
		return fmt.Errorf("template: %w", err)
	}
	if err := identify(begin, random); err != nil {
		return err
	}
	if err := copySparse(file, image, int64(len(begin))); err != nil {
		return err
	}
	if _, err := file.WriteAt(begin[blockSize:], blockSize); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if _, err := file.WriteAt(begin[:blockSize], 0); err != nil {
		return err
	}
	return file.Sync()
}

// copySparse writes the blocks of image that are not all zeros, from offset on.
func copySparse(file *os.File, image io.Reader, offset int64) error {
	chunk := make([]byte, 64*blockSize)
	for {
		n, err := io.ReadFull(image, chunk)
		for at := 0; at < n; at += blockSize {
			block := chunk[at:min(n, at+blockSize)]
			if zero(block) {
				continue
			}
			if _, err := file.WriteAt(block, offset+int64(at)); err != nil {
				return err
			}
		}
		offset += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("template: %w", err)
		}
	}
}

// zero says whether p is all zeros.
func zero(p []byte) bool {
	const step = 512
	var zeros [step]byte
	for len(p) > step {
		if !bytes.Equal(p[:step], zeros[:]) {
			return false
		}
		p = p[step:]
	}
	return bytes.Equal(p, zeros[:len(p)])
}
