// Package budget counts the memory of this process that one VM makes it hold: buffers, queues and tables that grow with what
// the guest does. There is one Budget for each VM, so that many small bounds do not add up to more than is intended.
package budget

import "sync"

// Budget is a number of bytes that can be taken and given back. It counts and does not allocate: code that holds memory on a
// guest's behalf takes that much before, and gives it back afterwards. A nil Budget has no limit and counts nothing. All methods
// may be called from any goroutine.
type Budget struct {
	limit int64
	warn  func(Use) // without mu; may be nil

	mu      sync.Mutex
	used    int64
	refused uint64
	warned  bool
}

// Use is how much of a budget is taken.
type Use struct {
	Used, Limit int64  // bytes
	Refused     uint64 // how often Take found too little
}

// New makes a budget of limit bytes, more than 0. warn is called when four fifths of it are taken, and not again before less
// than half was; it may be nil.
func New(limit int64, warn func(Use)) *Budget {
	return &Budget{limit: limit, warn: warn}
}

// Take takes bytes. When fewer are left it takes none and returns false; the caller then refuses the guest's request.
func (b *Budget) Take(bytes int64) bool {
	return b.take(bytes, 1, 1, true)
}

// TakeWithin is Take for memory that is not necessary: it returns false when more than parts/of of the budget would be taken
// afterwards.
func (b *Budget) TakeWithin(bytes, parts, of int64) bool {
	return b.take(bytes, parts, of, false)
}

// Charge takes bytes even if fewer are left: for memory that has another bound, and counts here so that less remains for
// others. It returns false when the budget is exceeded.
func (b *Budget) Charge(bytes int64) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	b.used += bytes
	within := b.used <= b.limit
	use, due := b.dueLocked()
	b.mu.Unlock()
	if due {
		b.warn(use)
	}
	return within
}

func (b *Budget) take(bytes, parts, of int64, needed bool) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	if b.used+bytes > b.limit/of*parts {
		if needed {
			b.refused++
		}
		b.mu.Unlock()
		return false
	}
	b.used += bytes
	use, due := b.dueLocked()
	b.mu.Unlock()
	if due {
		b.warn(use)
	}
	return true
}

// dueLocked reports whether a warning is due now.
func (b *Budget) dueLocked() (Use, bool) {
	if b.warned || b.warn == nil || b.used < b.limit/5*4 {
		return Use{}, false
	}
	b.warned = true
	return b.useLocked(), true
}

// Give gives back what was taken or charged.
func (b *Budget) Give(bytes int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= bytes
	if b.used < b.limit/2 {
		b.warned = false
	}
}

// Use returns how much is taken now; for a nil Budget, zero.
func (b *Budget) Use() Use {
	if b == nil {
		return Use{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.useLocked()
}

func (b *Budget) useLocked() Use { return Use{Used: b.used, Limit: b.limit, Refused: b.refused} }
