// Package embedded unpacks files that are compressed in the program.
package embedded

import (
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// Unpack decompresses the zstd frames of a file that go:embed has read. The result belongs to the caller. It fails only when the file is damaged,
// and then names it.
func Unpack(name string, compressed []byte) ([]byte, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer d.Close()
	file, err := d.DecodeAll(compressed, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return file, nil
}
