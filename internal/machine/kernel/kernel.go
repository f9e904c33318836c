// Package kernel holds the Linux that a machine boots: one image for riscv64, built from Debian's source package with
// the options of agentvm.config, and embedded compressed.
//
// The image is GPL-2.0 (see COPYING); provenance.json records what it was built from and how. docs/internals/kernel.md says what
// is in it and what the machine and the command line have to provide.
package kernel

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"

	"agentvm/internal/host/embedded"
)

// Version is the kernel's release as `uname -r` prints it in the guest.
const Version = "6.12.117-agentvm"

// compressed is made by
//
//	make kernel        (internal/machine/kernel/build.sh; internal/machine/kernel/verify.sh rebuilds and compares)
//
//go:embed Image.zst
var compressed []byte

// Image returns the kernel as a riscv boot image (Documentation/arch/riscv/boot-image-header.rst of the kernel tree),
// to be copied to a 2 MiB boundary of RAM plus the header's text_offset. The first call decompresses it; every call
// returns the same bytes, which the caller must not modify. It fails only when the embedded file is damaged.
func Image() ([]byte, error) {
	return decompressed()
}

var decompressed = sync.OnceValues(func() ([]byte, error) { return embedded.Unpack("kernel image", compressed) })

//go:embed provenance.json
var recorded []byte

// Digest returns the SHA-256 of what Image returns, in hexadecimal, without decompressing it.
func Digest() (string, error) { return digest() }

var digest = sync.OnceValues(func() (string, error) {
	var p struct {
		Image struct {
			SHA256 string `json:"raw_sha256"`
		} `json:"image"`
	}
	if err := json.Unmarshal(recorded, &p); err != nil || p.Image.SHA256 == "" {
		return "", fmt.Errorf("kernel: provenance.json does not say its digest: %w", err)
	}
	return p.Image.SHA256, nil
})
