package images

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// archiveStream is the plain tar bytes of an archive, whatever it was compressed with.
type archiveStream struct {
	source *countingReader // as stored
	plain  io.Reader
	close  func()
	limits Limits

	compressed bool
	hash       hash.Hash // of the plain bytes; nil when it is not wanted
	copy       io.Writer // receives the plain bytes; may be nil
	done       int64
	ended      bool // a read found nothing but the end
}

// countingReader counts what was read from it.
type countingReader struct {
	io.Reader
	count int64
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.count += int64(n)
	return n, err
}

// zstdWindow bounds the memory a zstd stream may ask for.
const zstdWindow = 128 << 20

// openArchive recognises the compression by its first bytes.
func openArchive(r io.Reader, limits Limits) (*archiveStream, error) {
	source := &countingReader{Reader: r}
	in := bufio.NewReaderSize(source, 1<<16)
	s := &archiveStream{source: source, plain: in, close: func() {}, limits: limits}
	magic, err := in.Peek(6)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("read archive: %w", err)
	}
	switch {
	case len(magic) == 0:
		return nil, fmt.Errorf("archive is empty: %w", io.ErrUnexpectedEOF)
	case bytes.HasPrefix(magic, []byte{0x1F, 0x8B}):
		return s, s.openGzip(in)
	case bytes.HasPrefix(magic, []byte{0x28, 0xB5, 0x2F, 0xFD}):
		return s, s.openZstd(in)
	case bytes.HasPrefix(magic, []byte("\xFD7zXZ\x00")), bytes.HasPrefix(magic, []byte("BZh")):
		return nil, errors.New("archive is compressed with xz or bzip2: unpack it first, or use gzip or zstd")
	}
	return s, nil
}

// storedArchive is a plain archive of so many bytes that was within the limits of compression when it was stored.
func storedArchive(r io.Reader, size int64, limits Limits) *archiveStream {
	in := bufio.NewReaderSize(r, 1<<16)
	return &archiveStream{source: &countingReader{count: size}, plain: in, close: func() {}, limits: limits}
}

func (s *archiveStream) openGzip(in io.Reader) error {
	r, err := gzip.NewReader(in)
	if err != nil {
		return fmt.Errorf("damaged gzip archive: %w", noEOF(err))
	}
	s.plain, s.compressed = r, true
	return nil
}

func (s *archiveStream) openZstd(in io.Reader) error {
	r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow))
	if err != nil {
		return fmt.Errorf("damaged zstd archive: %w", noEOF(err))
	}
	s.plain, s.close, s.compressed = r, r.Close, true
	return nil
}

func (s *archiveStream) Close() { s.close() }

// Read reads plain bytes within the limits.
func (s *archiveStream) Read(p []byte) (int, error) {
	n, err := s.plain.Read(p)
	if s.hash != nil {
		s.hash.Write(p[:n])
	}
	if s.copy != nil && n > 0 {
		if _, err := s.copy.Write(p[:n]); err != nil {
			return 0, err
		}
	}
	s.done += int64(n)
	s.ended = s.ended || n == 0 && err == io.EOF
	if limitErr := s.checkLimits(); limitErr != nil {
		return 0, limitErr
	}
	return n, err
}

// checkLimits catches what entry headers do not announce: padding, and compression beyond reason. Headers and
// padding have an allowance of their own.
func (s *archiveStream) checkLimits() error {
	const free = 1 << 30
	if s.done > free && s.done-free > s.limits.Bytes {
		return fmt.Errorf("%w: more than %d bytes after decompression", ErrLimit, s.limits.Bytes)
	}
	if s.done > free && (s.done-free)/s.limits.Ratio > s.source.count {
		return fmt.Errorf("%w: decompresses to more than %d times its size", ErrLimit, s.limits.Ratio)
	}
	return nil
}
