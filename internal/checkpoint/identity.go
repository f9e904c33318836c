package checkpoint

import (
	"crypto/rand"
	"encoding/hex"
	"net"
)

// Identity distinguishes a VM from others that continue from the same memory.
type Identity struct {
	Generation uint64           // forks and restores that led to this VM
	ID         [16]byte         // random, for each VM
	MAC        net.HardwareAddr // of the network card; nil: netstack's default
	Renewed    bool             // the guest has to take a new identity
}

// NewIdentity returns the identity of a VM that continues from no other.
func NewIdentity() Identity {
	var i Identity
	_, _ = rand.Read(i.ID[:])
	return i
}

// Successor returns the identity of a VM that continues from one with identity i; with renewed it gets another MAC and host name.
func (i Identity) Successor(renewed bool) Identity {
	next := NewIdentity()
	next.Generation, next.MAC, next.Renewed = max(i.Generation, i.Generation+1), i.MAC, renewed // a file may claim any number, so an overflow is possible
	if renewed {
		next.MAC = make(net.HardwareAddr, 6)
		_, _ = rand.Read(next.MAC)
		next.MAC[0] = next.MAC[0]&^1 | 2 // one station, administered locally (IEEE 802 section 8.2)
	}
	return next
}

// Hostname returns the host name of a VM that continues from one called name.
func (i Identity) Hostname(name string) string {
	if !i.Renewed {
		return name
	}
	const maxHostname = 64 // Linux's HOST_NAME_MAX
	suffix := "-" + hex.EncodeToString(i.ID[:3])
	return name[:min(len(name), maxHostname-len(suffix))] + suffix
}
