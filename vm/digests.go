package vm

import (
	"crypto/sha256"
	"encoding/hex"

	"agentvm/guest/supervisor"
	"agentvm/kernel"
)

// linuxDigests are those of what the machine boots or has booted.
func (p *parts) linuxDigests(c Config) (kernelDigest, supervisorDigest string, err error) {
	if p.origin != nil {
		return p.origin.Kernel, p.origin.Supervisor, nil
	}
	if c.Kernel != nil {
		kernelDigest = hexDigest(c.Kernel)
	} else if kernelDigest, err = kernel.Digest(); err != nil {
		return "", "", err
	}
	supervisorDigest, err = supervisor.Digest()
	return kernelDigest, supervisorDigest, err
}

func hexDigest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
