package guestrpc

import (
	"errors"
	"fmt"
	"net"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// Restored tells a guest that it continues from a snapshot. Other machines may continue from the same one.
type Restored struct {
	// Entropy is mixed into the kernel's random number generator, which is then seeded anew, before anything else happens. It is
	// at least 32 bytes that no other machine receives.
	Entropy []byte
	// Generation and GenerationID are shown to the guest's programs in /run/agentvm/generation. The number is higher than that
	// of the machine from which the snapshot was taken, and the ID is different each time.
	Generation   uint64
	GenerationID [16]byte
	// NewIdentity gives the machine a new machine-id, the MAC and a new lease of its address. Its connections to other machines
	// are reset.
	NewIdentity bool
	// MAC is, with NewIdentity, the network interface's address of 6 bytes; nil: it keeps its own.
	MAC net.HardwareAddr
	// KeepPrograms lets processes run on that ended programs of earlier sessions left running, such as daemons.
	// ClientConfig.KeepPrograms is for the programs of the session that this one ends.
	KeepPrograms bool
	// Programs are the ExecParams.Key of programs whose output waits until Client.Adopt continues with them. Output of others that run on is
	// discarded.
	Programs []string
}

// write fills what create makes; nil stays null.
func (r *Restored) write(create func() (guestwire.Restored, error)) error {
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
	if err := errors.Join(w.SetEntropy(r.Entropy), capnprpc.WriteTexts(w.NewPrograms, r.Programs)); err != nil {
		return err
	}
	if err := w.SetGenerationId(r.GenerationID[:]); err != nil {
		return err
	}
	return w.SetMac(r.MAC)
}

func readRestored(w guestwire.Restored, err error) (*Restored, error) {
	if err != nil || !w.IsValid() {
		return nil, err
	}
	r := &Restored{Generation: w.Generation(), NewIdentity: w.NewIdentity(), KeepPrograms: w.KeepPrograms()}
	if r.Entropy, err = capnprpc.CopyData(w.Entropy()); err != nil {
		return nil, err
	}
	if r.Programs, err = capnprpc.ReadTexts(w.Programs()); err != nil {
		return nil, err
	}
	id, err := w.GenerationId()
	if err != nil {
		return nil, err
	}
	copy(r.GenerationID[:], id)
	mac, err := capnprpc.CopyData(w.Mac())
	if err != nil {
		return nil, err
	}
	if len(mac) != 0 && len(mac) != 6 {
		return nil, fmt.Errorf("%w: MAC of %d bytes", capnprpc.ErrProtocol, len(mac))
	}
	r.MAC = mac
	return r, nil
}
