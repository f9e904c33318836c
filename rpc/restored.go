package rpc

import (
	"fmt"
	"net"

	"agentvm/rpc/wire"
)

// Restored tells a guest that it goes on from a snapshot, beside others that may go on from the same one.
type Restored struct {
	// Entropy is mixed into the kernel's random number generator, which is then seeded anew, before anything else happens:
	// at least 32 bytes that no other machine is given.
	Entropy []byte
	// Generation and GenerationID are shown to the guest's programs in /run/agentvm/generation. The number is higher than that
	// of the machine which the snapshot was taken of, the ID another one each time.
	Generation   uint64
	GenerationID [16]byte
	// NewIdentity makes the machine another one than it was: it gets a new machine-id, the MAC, a new lease of its address, and
	// its connections to other machines are reset.
	NewIdentity bool
	// MAC is the network card's address with NewIdentity, 6 bytes; nil: it keeps its own.
	MAC net.HardwareAddr
	// KeepPrograms has what ended programs of earlier sessions left running, such as daemons, run on. Programs of the session
	// that ends with this one are ClientConfig.KeepPrograms'.
	KeepPrograms bool
}

// write fills what create makes; nil stays null.
func (r *Restored) write(create func() (wire.Restored, error)) error {
	if r == nil {
		return nil
	}
	w, err := create()
	if err != nil {
		return err
	}
	w.SetGeneration(r.Generation)
	w.SetNewIdentity(r.NewIdentity)
	w.SetKeepPrograms(r.KeepPrograms)
	if err := w.SetEntropy(r.Entropy); err != nil {
		return err
	}
	if err := w.SetGenerationId(r.GenerationID[:]); err != nil {
		return err
	}
	return w.SetMac(r.MAC)
}

func readRestored(w wire.Restored, err error) (*Restored, error) {
	if err != nil || !w.IsValid() {
		return nil, err
	}
	r := &Restored{Generation: w.Generation(), NewIdentity: w.NewIdentity(), KeepPrograms: w.KeepPrograms()}
	if r.Entropy, err = copyData(w.Entropy()); err != nil {
		return nil, err
	}
	id, err := w.GenerationId()
	if err != nil {
		return nil, err
	}
	copy(r.GenerationID[:], id)
	mac, err := copyData(w.Mac())
	if err != nil {
		return nil, err
	}
	if len(mac) != 0 && len(mac) != 6 {
		return nil, fmt.Errorf("%w: MAC of %d bytes", errProtocol, len(mac))
	}
	r.MAC = mac
	return r, nil
}
