package vm

import (
	"math/rand/v2"
	"time"
)

// The contents of a base are 30 MB, and a start has no time to hash them: it looks at one piece of at most 1 MiB, any, while it waits for
// other things. A VM that has lived for a moment then has all of them looked at, once in its process, on one processor.
const baseCheckDelay = time.Second

// checkPiece verifies a piece of the base.
func (s *saved) checkPiece() error {
	n := s.file.Chunks()
	if n == 0 {
		return nil
	}
	return s.file.VerifyChunk(rand.IntN(n))
}

// checkBase has the base verified that the VM was started from. Its damage cannot be taken back from this VM; no other one starts from it.
func (v *VM) checkBase() {
	s := v.parts.saved
	if s == nil || v.parts.baseKey == "" || s.checked.Swap(true) {
		return
	}
	err := v.own(func() {
		if err := s.check(v.halted, baseCheckDelay); err != nil {
			v.config.Logger.Warn("the saved machine that this VM was started from is damaged and is removed: what the VM does may be wrong, stop it and start it again",
				"error", err)
			v.parts.removeBase(v.config, s.file)
		}
	})
	if err != nil { // the VM has ended
		s.checked.Store(false)
	}
}

// check verifies all pieces, unless it is to stop before.
func (s *saved) check(stop <-chan struct{}, delay time.Duration) error {
	wait := time.NewTimer(delay)
	defer wait.Stop()
	select {
	case <-stop:
		s.checked.Store(false) // the next VM does it
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
