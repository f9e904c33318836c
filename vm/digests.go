package vm

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"

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
	} else if kernelDigest, err = builtinKernel(); err != nil {
		return "", "", err
	}
	supervisorDigest, err = builtinSupervisor()
	return kernelDigest, supervisorDigest, err
}

func hexDigest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

var builtinKernel = sync.OnceValues(func() (string, error) {
	b, err := kernel.Image()
	return hexDigest(b), err
})

var builtinSupervisor = sync.OnceValues(func() (string, error) {
	b, err := supervisor.Binary()
	return hexDigest(b), err
})
