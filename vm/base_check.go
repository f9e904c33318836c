package vm

import (
	"math/rand/v2"
	"time"

	"agentvm/internal/shortage"
)

// baseCheckDelay is how long a VM runs before the whole base is verified. A base has 30 MB, which a start has no time to hash: it verifies
// one random piece of at most 1 MiB while it waits for other things. All pieces are then verified once per process, on one processor.
const baseCheckDelay = time.Second

// checkPiece verifies one random piece of the base.
func (s *saved) checkPiece() error {
	n := s.file.Chunks()
	if n == 0 {
		return nil
	}
	return s.file.VerifyChunk(rand.IntN(n))
}

// checkBase starts verifying the base that the VM was started from. Damage cannot be undone in this VM, but no other VM starts from it.
func (v *VM) checkBase() {
	s := v.resources.saved
	if s == nil || v.resources.baseKey == "" || s.checked.Swap(true) {
		return
	}
	err := v.goTracked(func() {
		switch err := s.check(v.halted, baseCheckDelay); {
		case err == nil:
		case shortage.Is(err):
			s.checked.Store(false) // the next VM verifies it
			v.config.Logger.Warn("the saved machine that this VM was started from cannot be verified now", "error", err, "advice", shortage.Advice(err))
		default:
			v.config.Logger.Warn("the saved machine that this VM was started from is damaged and is removed: what the VM does may be wrong, stop it and start it again",
				"error", err)
			v.resources.removeBase(v.config, s.file)
		}
	})
	if err != nil { // the VM has ended
		s.checked.Store(false)
	}
}

// check verifies all pieces after delay. It returns early, without an error, when stop is closed.
func (s *saved) check(stop <-chan struct{}, delay time.Duration) error {
	wait := time.NewTimer(delay)
	defer wait.Stop()
	select {
	case <-stop:
		s.checked.Store(false) // the next VM verifies it
		return nil
	case <-wait.C:
	}
	for i := range s.file.Chunks() {
		select {
		case <-stop:
			s.checked.Store(false)
			return nil
		default:
		}
		if err := s.file.VerifyChunk(i); err != nil {
			return err
		}
	}
	return nil
}
