package machine

import (
	"crypto/sha256"
	"sync"

	"agentvm/internal/machine/native"
)

// Translations is where translated code stays when no process has it. It guarantees that a piece is what was saved. Each is verified again before it is
// executed, so that it reaches nothing but its machine's memory, but only the store knows that it does what the guest's page says. Both methods
// may be called at once.
type Translations interface {
	// Load returns the piece that was saved last by this name, by any process of this build; nil when there is none.
	Load(name [sha256.Size]byte) []byte
	// Save keeps pieces by their names, if it can. They are its own from now on.
	Save(pieces map[[sha256.Size]byte][]byte)
}

const (
	batchBytes = 1 << 20  // of pieces that are saved while machines run
	leastBytes = 32 << 10 // of pieces that are worth saving when a machine is closed: some ten milliseconds of translation
)

// unsaved are the translations of a program's machines that the store does not have yet.
type unsaved struct {
	store Translations

	mu     sync.Mutex
	pieces map[[sha256.Size]byte][]byte
	bytes  int
	saving chan struct{} // closed when a batch is saved; nil: none is being saved
}

func newUnsaved(store Translations) *unsaved {
	return &unsaved{store: store, pieces: map[[sha256.Size]byte][]byte{}}
}

// add notes a piece. When there are enough, a goroutine saves them, for which close waits.
func (u *unsaved) add(key native.Key, piece []byte) {
	name := key.Digest()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.bytes >= 2*batchBytes {
		return // the disk is slow
	}
	u.bytes += len(piece) - len(u.pieces[name])
	u.pieces[name] = piece
	if u.bytes >= batchBytes && u.saving == nil {
		save := u.take()
		go save()
	}
}

// take returns what saves all pieces. The caller has the lock, and there is no batch being saved.
func (u *unsaved) take() func() {
	batch, done := u.pieces, make(chan struct{})
	u.pieces, u.bytes, u.saving = map[[sha256.Size]byte][]byte{}, 0, done
	return func() {
		u.store.Save(batch)
		u.mu.Lock()
		u.saving = nil
		u.mu.Unlock()
		close(done)
	}
}

// flush saves what is worth it, and waits for what is being saved. A machine that is closed calls it: the process may end then.
func (u *unsaved) flush() {
	u.mu.Lock()
	for u.saving != nil {
		saving := u.saving
		u.mu.Unlock()
		<-saving
		u.mu.Lock()
	}
	save := func() {}
	if u.bytes >= leastBytes {
		save = u.take()
	}
	u.mu.Unlock()
	save()
}
