package budget

// Share is what one VM takes of a budget that it has in common with others: never more than it leaves to them. The first may take half of the
// whole, one that comes when so much is taken half of the rest, and so on: none finds nothing. A nil Share has no limit. All methods may be called
// from any goroutine.
type Share struct {
	whole *Budget
	used  int64 // guarded by whole.mu
}

// Share returns a share that has taken nothing.
func (b *Budget) Share() *Share { return &Share{whole: b} }

// Take takes some, or none and returns false when more would be taken than left.
func (s *Share) Take(n int64) bool {
	if s == nil {
		return true
	}
	s.whole.mu.Lock()
	defer s.whole.mu.Unlock()
	if s.used+n > s.whole.limit-s.whole.used-n {
		s.whole.refused++
		return false
	}
	s.used += n
	s.whole.used += n
	return true
}

// Give gives back what was taken.
func (s *Share) Give(n int64) {
	if s == nil {
		return
	}
	s.whole.mu.Lock()
	defer s.whole.mu.Unlock()
	s.used -= n
	s.whole.used -= n
}
