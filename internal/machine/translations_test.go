package machine_test

import (
	"bytes"
	"crypto/sha256"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"agentvm/internal/machine"
	"agentvm/internal/test/leaktest"
)

// memoryStore keeps pieces in memory.
type memoryStore struct {
	mu     sync.Mutex
	pieces map[[sha256.Size]byte][]byte
	saves  int
	asked  int
	change func([]byte) []byte // of what is loaded
}

func (s *memoryStore) Load(name [sha256.Size]byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	piece := bytes.Clone(s.pieces[name])
	if piece != nil && s.change != nil {
		piece = s.change(piece)
	}
	return piece
}

func (s *memoryStore) Save(pieces map[[sha256.Size]byte][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saves++
	if s.pieces == nil {
		s.pieces = map[[sha256.Size]byte][]byte{}
	}
	for name, piece := range pieces {
		s.pieces[name] = piece
	}
}

// runWith runs the guest of lockstepGuest in a program of its own, as a new process does, and returns what its memory is then.
func runWith(t *testing.T, store *memoryStore, forks int) (sum any, stats machine.JITStats) {
	t.Helper()
	p, err := machine.NewProgram(t.Context(), machine.ProgramConfig{Translation: machine.TranslateHot, Translations: store})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	w := lockstepGuest(t, p)
	w.advance(40_000_000)
	sum, stats = w.hash(), w.JITStats()
	for range forks {
		image := w.capture()
		fork := newWorker(t)
		fork.attach(p.Restore(t.Context(), lockstepConfig(fork), image))
		fork.advance(10_000_000)
		if s := fork.JITStats(); s.Shared < s.Regions/2 {
			t.Errorf("%d of %d regions of a fork are shared", s.Shared, s.Regions)
		}
		fork.close()
	}
	w.close()
	return sum, stats
}

// TestStoredTranslations: a new process executes what an earlier one has translated, soon and with the same result; its forks share it. What comes back from
// the store in another form, or as code that the verifier refuses, is translated again.
func TestStoredTranslations(t *testing.T) {
	programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot}) // or skip
	before := goleak.IgnoreCurrent()
	interpreted := lockstepGuest(t, testProgram(t))
	interpreted.advance(40_000_000)
	want := interpreted.hash()
	interpreted.close()
	var store memoryStore
	first, cold := runWith(t, &store, 0)
	if first != want || cold.Stored != 0 || len(store.pieces) < cold.Regions/2 {
		t.Fatalf("%d pieces of %d regions were saved, %d came from an empty store; same result: %t", len(store.pieces), cold.Regions, cold.Stored, first == want)
	}
	again, warm := runWith(t, &store, 1)
	if again != want || warm.Stored < cold.Regions/2 || warm.Stored > len(store.pieces) {
		t.Errorf("%d of %d pieces were used; same result: %t", warm.Stored, len(store.pieces), again == want)
	}
	if warm.Executed <= cold.Executed {
		t.Errorf("%d instructions were executed translated, %d of a process without stored code", warm.Executed, cold.Executed)
	}
	if store.asked > 4*len(store.pieces)+1000 {
		t.Errorf("the store was asked %d times for %d pieces", store.asked, len(store.pieces))
	}
	t.Logf("%d pieces in %d batches; without: %+v; with: %+v", len(store.pieces), store.saves, cold, warm)
	for name, change := range map[string]func([]byte) []byte{
		"cut short": func(b []byte) []byte { return b[:len(b)/2] },
		"garbage":   func(b []byte) []byte { return bytes.Repeat([]byte{0xA5}, len(b)) },
		"a system call": func(b []byte) []byte {
			copy(b[len(b)-16:], bytes.Repeat([]byte{0x0f, 0x05}, 8)) // on arm64 no instruction of the list either
			return b
		},
	} {
		store.change = change
		sum, stats := runWith(t, &store, 0)
		if sum != want || stats.Executed < cold.Executed/2 {
			t.Errorf("%s: same result: %t, %d instructions translated, %d before", name, sum == want, stats.Executed, cold.Executed)
		}
	}
	leaktest.None(t, before)
}

// TestRefusedTranslationIsInterpreted: a fault of the translator that the verifier finds costs speed, not the machine.
func TestRefusedTranslationIsInterpreted(t *testing.T) {
	t.Parallel()
	run := func(each int) (sum any, stats machine.JITStats) {
		p := programThat(t, machine.ProgramConfig{Translation: machine.TranslateHot})
		if each > 0 {
			p.SpoilTranslations(each)
		}
		w := lockstepGuest(t, p)
		defer w.close()
		w.advance(40_000_000)
		return w.hash(), w.JITStats()
	}
	want, sound := run(0)
	got, spoiled := run(3)
	if got != want {
		t.Errorf("the memory is %v, without refusals %v", got, want)
	}
	if spoiled.Refused <= sound.Refused || spoiled.Regions == 0 {
		t.Errorf("%d refused, %d without spoiling; %d regions", spoiled.Refused, sound.Refused, spoiled.Regions)
	}
}
