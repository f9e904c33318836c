// Package supervisor holds the guest's supervisor, the program that is PID 1 in the virtual machine, as a committed
// artifact for each architecture: a fresh clone runs with nothing but Go, and no cross-compilation happens at run time.
//
// manifest.json says from what the artifacts were made; a test fails when that has changed and they have not.
package supervisor

import (
	_ "embed"
	"fmt"
	"strings"

	"agentvm/internal/host/embedded"
	"agentvm/internal/host/platform"
)

//go:generate ../build.sh

// internal/guest/build.sh
var (
	//go:embed riscv64.zst
	compressedRISCV64 []byte
	//go:embed arm64.zst
	compressedARM64 []byte
)

// Binary returns the supervisor, a static executable for Linux that belongs at /init in the initramfs. It is
// decompressed anew by each call, a few milliseconds; the bytes belong to the caller. It fails for an architecture that
// VMs do not have, and when the embedded file is damaged.
func Binary(architecture platform.Architecture) ([]byte, error) {
	switch architecture {
	case platform.RISCV64:
		return embedded.Unpack("guest supervisor", compressedRISCV64)
	case platform.ARM64:
		return embedded.Unpack("guest supervisor", compressedARM64)
	}
	return nil, fmt.Errorf("there is no supervisor for %q: VMs have %s", architecture, platform.Names())
}

// The digests are written with manifest.json, of whose 16 kB no more is needed here.
var (
	//go:embed riscv64.sha256
	digestRISCV64 string
	//go:embed arm64.sha256
	digestARM64 string
)

// Digest returns the SHA-256 of what Binary returns, in hexadecimal, without decompressing it; "" for an architecture that
// VMs do not have.
func Digest(architecture platform.Architecture) string {
	switch architecture {
	case platform.RISCV64:
		return strings.TrimSpace(digestRISCV64)
	case platform.ARM64:
		return strings.TrimSpace(digestARM64)
	}
	return ""
}
