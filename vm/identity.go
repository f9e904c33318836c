package vm

import (
	"crypto/rand"
	"encoding/hex"
	"net"

	"agentvm/rpc"
)

// entropySize is how many random bytes a guest is given that goes on from a saved machine.
const entropySize = 64

// identity is what tells a VM from others that go on from the same memory.
type identity struct {
	generation uint64           // forks and restores that led to this VM
	id         [16]byte         // of this one
	mac        net.HardwareAddr // the network card's; nil: netstack's default
	anew       bool             // the guest is another one than the saved one was
}

// newIdentity is that of a VM that starts.
func newIdentity() identity {
	var i identity
	_, _ = rand.Read(i.id[:])
	return i
}

// successor is that of a VM that goes on from one of identity i; with anew it is another computer.
func (i identity) successor(anew bool) identity {
	next := newIdentity()
	next.generation, next.mac, next.anew = max(i.generation, i.generation+1), i.mac, anew // a file may say any number
	if anew {
		next.mac = make(net.HardwareAddr, 6)
		_, _ = rand.Read(next.mac)
		next.mac[0] = next.mac[0]&^1 | 2 // one station, administered locally (IEEE 802 section 8.2)
	}
	return next
}

// hostname is that of a VM that goes on from one called name.
func (i identity) hostname(name string) string {
	if !i.anew {
		return name
	}
	const longest = 64 // of Linux
	suffix := "-" + hex.EncodeToString(i.id[:3])
	return name[:min(len(name), longest-len(suffix))] + suffix
}

// restored is what the guest is told, with random numbers that nobody else is given.
func (i identity) restored(keepPrograms bool) *rpc.Restored {
	entropy := make([]byte, entropySize)
	_, _ = rand.Read(entropy)
	return &rpc.Restored{
		Entropy: entropy, Generation: i.generation, GenerationID: i.id, NewIdentity: i.anew, MAC: i.mac, KeepPrograms: keepPrograms,
	}
}
