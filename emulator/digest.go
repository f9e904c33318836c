package emulator

import (
	"crypto/sha256"
	"encoding/hex"
)

// ModuleDigest identifies the machine that this program holds: "sha256:" and the digest of machine.wasm.
func ModuleDigest() string {
	sum := sha256.Sum256(machineWasm)
	return "sha256:" + hex.EncodeToString(sum[:])
}
