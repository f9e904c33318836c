// Package supervisor holds the guest's supervisor, the program that is PID 1 in the virtual machine, as a committed
// artifact: a fresh clone runs with nothing but Go, and no cross-compilation happens at run time.
//
// manifest.json says from what the artifact was made; a test fails when that has changed and the artifact has not.
package supervisor

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

//go:generate ../build.sh

// internal/guest/build.sh
//
//go:embed agentvm-guest.zst
var compressed []byte

// Binary returns the supervisor, a static executable for linux/riscv64 that belongs at /init in the initramfs. It is
// decompressed anew by each call, a few milliseconds; the bytes belong to the caller.
func Binary() ([]byte, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("guest supervisor: %w", err)
	}
	defer d.Close()
	b, err := d.DecodeAll(compressed, nil)
	if err != nil {
		return nil, fmt.Errorf("guest supervisor: %w", err)
	}
	return b, nil
}

//go:embed manifest.json
var described []byte

// Digest returns the SHA-256 of what Binary returns, in hexadecimal, without decompressing it.
func Digest() (string, error) { return digest() }

var digest = sync.OnceValues(func() (string, error) {
	var m struct {
		SHA256 string `json:"sha256"`
	}
	if err := json.Unmarshal(described, &m); err != nil || m.SHA256 == "" {
		return "", fmt.Errorf("guest supervisor: manifest.json does not say its digest: %w", err)
	}
	return m.SHA256, nil
})
