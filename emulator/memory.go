package emulator

import "github.com/tetratelabs/wazero/experimental"

// linearMemory is a machine's memory: one reservation of exactly what the machine will ever need, made beforehand so
// that growing never moves it (wazero would otherwise copy it on each growth) and a refusal is an ordinary error.
type linearMemory struct{ memory []byte }

func newLinearMemory(size uint64) (*linearMemory, error) {
	memory, err := reserve(size)
	return &linearMemory{memory}, err
}

// Allocate implements experimental.MemoryAllocator for the one instance that this memory is for.
func (l *linearMemory) Allocate(_, _ uint64) experimental.LinearMemory { return l }

// Reallocate implements experimental.LinearMemory.
func (l *linearMemory) Reallocate(size uint64) []byte {
	if size > uint64(len(l.memory)) {
		return nil
	}
	return l.memory[:size:size]
}

// Free implements experimental.LinearMemory.
func (l *linearMemory) Free() {
	if l.memory != nil {
		release(l.memory)
	}
	l.memory = nil
}
