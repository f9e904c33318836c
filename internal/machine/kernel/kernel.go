// Package kernel holds the Linux that a machine boots, one image for each architecture, built from Debian's source package with
// the options of agentvm.config and ARCHITECTURE.config, and embedded compressed.
//
// The images are GPL-2.0 (see COPYING); ARCHITECTURE.json records what each was built from and how. docs/internals/kernel.md says what
// is in them and what the machine and the command line have to provide.
package kernel

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"

	"agentvm/internal/host/embedded"
	"agentvm/internal/host/platform"
)

// Version is the kernel's release as `uname -r` prints it in the guest.
const Version = "6.12.117-agentvm"

// The files are made by
//
//	make kernel        (internal/machine/kernel/build.sh; internal/machine/kernel/verify.sh rebuilds and compares)
var (
	//go:embed riscv64.zst
	compressedRISCV64 []byte
	//go:embed riscv64.json
	recordedRISCV64 []byte
	//go:embed arm64.zst
	compressedARM64 []byte
	//go:embed arm64.json
	recordedARM64 []byte
)

var kernels = map[platform.Architecture]*built{
	platform.RISCV64: newBuilt(compressedRISCV64, recordedRISCV64),
	platform.ARM64:   newBuilt(compressedARM64, recordedARM64),
}

// built is one architecture's kernel. image and digest do their work once.
type built struct {
	image  func() ([]byte, error)
	digest func() (string, error)
}

func newBuilt(compressed, recorded []byte) *built {
	return &built{
		image:  sync.OnceValues(func() ([]byte, error) { return embedded.Unpack("kernel image", compressed) }),
		digest: sync.OnceValues(func() (string, error) { return digestOf(recorded) }),
	}
}

func of(architecture platform.Architecture) (*built, error) {
	if k := kernels[architecture]; k != nil {
		return k, nil
	}
	return nil, fmt.Errorf("there is no kernel for %s", architecture)
}

// Image returns the kernel as a boot image (Documentation/arch/riscv/boot-image-header.rst and Documentation/arch/arm64/booting.rst of the kernel
// tree), to be copied to a 2 MiB boundary of RAM plus the header's text_offset. The first call for an architecture decompresses it; every call
// returns the same bytes, which the caller must not modify. It fails only when the embedded file is damaged.
func Image(architecture platform.Architecture) ([]byte, error) {
	k, err := of(architecture)
	if err != nil {
		return nil, err
	}
	return k.image()
}

// Digest returns the SHA-256 of what Image returns, in hexadecimal, without decompressing it.
func Digest(architecture platform.Architecture) (string, error) {
	k, err := of(architecture)
	if err != nil {
		return "", err
	}
	return k.digest()
}

func digestOf(recorded []byte) (string, error) {
	var p struct {
		Image struct {
			SHA256 string `json:"raw_sha256"`
		} `json:"image"`
	}
	if err := json.Unmarshal(recorded, &p); err != nil || p.Image.SHA256 == "" {
		return "", fmt.Errorf("kernel: its record does not say its digest: %w", err)
	}
	return p.Image.SHA256, nil
}
