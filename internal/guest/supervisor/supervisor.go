// Package supervisor holds the guest's supervisor, the program that is PID 1 in the virtual machine, as a committed
// artifact: a fresh clone runs with nothing but Go, and no cross-compilation happens at run time.
//
// manifest.json says from what the artifact was made; a test fails when that has changed and the artifact has not.
package supervisor

import (
	_ "embed"
	"strings"

	"agentvm/internal/host/embedded"
)

//go:generate ../build.sh

// internal/guest/build.sh
//
//go:embed agentvm-guest.zst
var compressed []byte

// Binary returns the supervisor, a static executable for linux/riscv64 that belongs at /init in the initramfs. It is
// decompressed anew by each call, a few milliseconds; the bytes belong to the caller.
func Binary() ([]byte, error) { return embedded.Unpack("guest supervisor", compressed) }

// digest is written with manifest.json, of whose 14 kB no more is needed here.
//
//go:embed agentvm-guest.sha256
var digest string

// Digest returns the SHA-256 of what Binary returns, in hexadecimal, without decompressing it.
func Digest() string { return strings.TrimSpace(digest) }
