package emulator

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// Hash identifies what the guest can see of itself: registers, RAM and the state of its devices. Two machines that did the
// same have the same hash, a restored one and its original included. It is for tests: of the RAM it has only check
// sums.
func (m *Machine) Hash() ([32]byte, error) {
	h := sha256.New()
	for _, r := range m.layout.Hashed[:m.layout.HashedCount] {
		data, ok := m.memory.Read(r.Address, r.Size)
		if !ok {
			return [32]byte{}, errors.New("a part of the machine is outside its memory")
		}
		h.Write(data)
	}
	ram, err := m.ram()
	if err != nil {
		return [32]byte{}, err
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	for ; len(ram) > 0; ram = ram[imagePage:] {
		var sum [4]byte
		binary.LittleEndian.PutUint32(sum[:], crc32.Checksum(ram[:imagePage], table))
		h.Write(sum[:])
	}
	return [32]byte(h.Sum(nil)), nil
}
