package imagebuild

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/xi2/xz"
)

// decompress returns what an archive for ADD has when it is decompressed; nil for what is no archive.
func decompress(r io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	magic, err := in.Peek(512)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil // not gzip after all: it is copied
		}
		return z, nil
	case bytes.HasPrefix(magic, []byte("BZh")):
		return io.NopCloser(bzip2.NewReader(in)), nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case bytes.HasPrefix(magic, []byte("\xfd7zXZ\x00")):
		z, err := xz.NewReader(in, xz.DefaultDictMax) // 64 MiB, which xz -9 needs
		if err != nil {
			return nil, err
		}
		return io.NopCloser(z), nil
	case len(magic) == 512 && bytes.Equal(magic[257:262], []byte("ustar")):
		return io.NopCloser(in), nil
	}
	return nil, nil
}
