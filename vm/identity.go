package vm

import (
	"crypto/rand"
	"encoding/hex"
	"net"

	"agentvm/internal/guestrpc"
)

// entropySize is how many random bytes a guest gets that continues from a saved machine.
const entropySize = 64

// identity distinguishes a VM from others that continue from the same memory.
type identity struct {
	generation uint64           // forks and restores that led to this VM
	id         [16]byte         // random, for each VM
	mac        net.HardwareAddr // of the network card; nil: netstack's default
	renewed    bool             // the guest has to take a new identity
}

// newIdentity returns the identity of a VM that Start makes.
func newIdentity() identity {
	var i identity
	_, _ = rand.Read(i.id[:])
	return i
}

// successor returns the identity of a VM that continues from one with identity i; with renewed it gets another MAC and host name.
func (i identity) successor(renewed bool) identity {
	next := newIdentity()
	next.generation, next.mac, next.renewed = max(i.generation, i.generation+1), i.mac, renewed // a file may claim any number, so an overflow is possible
	if renewed {
		next.mac = make(net.HardwareAddr, 6)
		_, _ = rand.Read(next.mac)
		next.mac[0] = next.mac[0]&^1 | 2 // one station, administered locally (IEEE 802 section 8.2)
	}
	return next
}

// hostname returns the host name of a VM that continues from one called name.
func (i identity) hostname(name string) string {
	if !i.renewed {
		return name
	}
	const maxHostname = 64 // Linux's HOST_NAME_MAX
	suffix := "-" + hex.EncodeToString(i.id[:3])
	return name[:min(len(name), maxHostname-len(suffix))] + suffix
}

// restored returns what the guest receives, with random bytes that are used nowhere else.
func (i identity) restored(keepPrograms bool) *guestrpc.Restored {
	entropy := make([]byte, entropySize)
	_, _ = rand.Read(entropy)
	return &guestrpc.Restored{
		Entropy: entropy, Generation: i.generation, GenerationID: i.id, NewIdentity: i.renewed, MAC: i.mac, KeepPrograms: keepPrograms,
	}
}
