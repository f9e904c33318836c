package machine

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"testing"

	"agentvm/internal/machine/native"
)

// slowStore saves when the test lets it.
type slowStore struct {
	begun, proceed chan struct{}

	mu    sync.Mutex
	saved map[[sha256.Size]byte]int // sizes
}

func (s *slowStore) Load([sha256.Size]byte) []byte { return nil }

func (s *slowStore) Save(pieces map[[sha256.Size]byte][]byte) {
	s.begun <- struct{}{}
	<-s.proceed
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, piece := range pieces {
		s.saved[name] = len(piece)
	}
}

func keyOf(n int) (k native.Key) {
	binary.LittleEndian.PutUint32(k.Sum[:], uint32(n))
	return k
}

// TestUnsaved: pieces are saved in batches while machines run, what is left when one is closed, and little is not worth it; what waits for a slow disk is
// bounded.
func TestUnsaved(t *testing.T) {
	s := &slowStore{begun: make(chan struct{}), proceed: make(chan struct{}), saved: map[[sha256.Size]byte]int{}}
	u := newUnsaved(s)
	u.add(keyOf(0), make([]byte, 100))
	u.flush() // or this would wait for ever
	u.add(keyOf(1), make([]byte, batchBytes/2))
	u.add(keyOf(1), make([]byte, batchBytes/4)) // instead of the first one
	u.add(keyOf(2), make([]byte, batchBytes/2))
	select {
	case <-s.begun:
		t.Error("too little was saved")
	default:
	}
	u.add(keyOf(3), make([]byte, batchBytes/2))
	<-s.begun
	for n := range 100 {
		u.add(keyOf(100+n), make([]byte, batchBytes/8))
	}
	if u.bytes > 3*batchBytes {
		t.Errorf("%d bytes wait", u.bytes)
	}
	flushed := make(chan struct{})
	for range 3 {
		go func() {
			u.flush()
			flushed <- struct{}{}
		}()
	}
	s.proceed <- struct{}{}
	<-s.begun // of one of the three; the others find nothing
	s.proceed <- struct{}{}
	for range 3 {
		<-flushed
	}
	for n, want := range map[int]int{0: 100, 1: batchBytes / 4, 2: batchBytes / 2, 3: batchBytes / 2, 100: batchBytes / 8, 199: 0} {
		key := keyOf(n)
		if got := s.saved[key.Digest()]; got != want {
			t.Errorf("piece %d: %d bytes were saved, want %d", n, got, want)
		}
	}
	if u.bytes != 0 || len(u.pieces) != 0 || u.saving != nil {
		t.Errorf("%d bytes are left", u.bytes)
	}
}
